"""What messages cost the runtime, and hosts that several nodes share, are part of a price."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.codecs.registry import coded_bytes
from weft.codecs.times import CodecTimes
from weft.fleet.fleet import Device, Fleet, Link
from weft.planning.decide import decide
from weft.planning.task import make_task
from weft.plans.plan import Part, Plan, Shard
from weft.plans.profile import DeviceTimes, LayerCost, Profile, crowded_s
from weft.simulate.price import price

NAMES = ("a", "b", "c")
FLEET = Fleet(
    tuple(Device(name, data=name == "a") for name in NAMES),
    tuple(Link(pair, 1e5, 1e5) for pair in (("a", "b"), ("a", "c"), ("b", "c"))),
)
LENET = Profile(  # measured on one core of a quiet machine: 3.9 ms a step of 32 samples
    "lenet5", 3136,
    tuple(LayerCost(f"layer{n}", 1000, size) for n, size in enumerate((4704, 1600, 480, 336, 40))),
    {}, target_bytes=8,
)  # fmt: skip


def times(**fields: object) -> DeviceTimes:
    plain = DeviceTimes(
        (1.4e-5, 1.2e-5, 2e-6, 1e-6, 1e-6), (2.5e-5, 2.2e-5, 5e-6, 2e-6, 2e-6), (3e-5,) * 5,
        (6e-5,) * 5, (1.1e-4,) * 5,
    )  # fmt: skip
    return msgspec.structs.replace(plain, **fields)


def profile(**fields: object) -> Profile:
    return msgspec.structs.replace(LENET, devices=dict.fromkeys(NAMES, times(**fields)))


def row(costs: Profile, pieces: int = 1) -> Plan:
    """Layers 0 and 1 on a, 2 on b, 3 and 4 on c."""
    shards = (Shard("a", (0, 1)), Shard("b", (2, 2)), Shard("c", (3, 4)))
    return Plan(strategy="by hand", model="lenet5", batch=32, mode="train", shards=shards, source="a",
                fleet=FLEET, profile=costs, micro_batches=pieces, in_flight=pieces)  # fmt: skip


def test_messages_cost_both_ends() -> None:
    free, costly = price(row(profile())), price(row(profile(message_s=1e-3, byte_s=1e-9)))
    assert costly.seconds > free.seconds + 8e-3  # four messages on the way, two ends each
    assert costly.compute_s == free.compute_s
    assert costly.transfer_bytes == free.transfer_bytes


def test_bytes_cost_more_where_there_are_more() -> None:
    per_byte = price(row(profile(byte_s=1e-8))).seconds - price(row(profile())).seconds
    # act2 and act3 there, their gradients back, and the labels from a to c, at both ends of each
    assert per_byte == pytest.approx(2 * 1e-8 * 32 * 2 * (1600 + 480), rel=0.05)


@given(st.floats(1e-10, 1e-5), st.sampled_from([1.0, 10.0, 1e3, 1e5]))
def test_a_link_hides_the_work_for_its_bytes_and_the_device_has_it_all_the_same(
    byte_s: float, mbps: float
) -> None:
    """On links of 20 Mbps a node of a quarter core was charged 12% more for each transfer, twice: the work
    for the bytes was taken to begin when the last one had come."""
    links = tuple(Link(pair, mbps, mbps) for pair in (("a", "b"), ("a", "c"), ("b", "c")))
    fleet = Fleet(FLEET.devices, links)
    free, costly = (
        price(msgspec.structs.replace(row(profile(byte_s=s)), fleet=fleet)) for s in (0.0, byte_s)
    )
    bytes_ = sum(32 * 2 * size for size in (1600, 480))
    labels = LENET.labels_bytes(32)
    seen = 2 * max(0.0, byte_s - 8e-6 / mbps)
    busiest = max(costly.compute_s[n] + costly.messages_s[n] for n in NAMES)
    expected = max(free.seconds + seen * bytes_, busiest)
    assert costly.seconds == pytest.approx(expected, rel=0.05, abs=seen * labels)
    assert sum(costly.messages_s.values()) == pytest.approx(
        2 * byte_s * bytes_, rel=1e-6, abs=4 * byte_s * labels
    )


def test_nodes_of_one_host_share_its_cores() -> None:
    apart = price(row(profile(), pieces=4)).seconds
    alone = price(row(profile(host="h", cores=1.0), pieces=4)).seconds
    work = sum(price(row(profile(), pieces=4)).compute_s.values())
    assert alone == pytest.approx(work)
    assert apart < 0.9 * alone
    quota = price(row(profile(host="h", cores=1.0, share=0.25), pieces=4)).seconds
    assert quota == pytest.approx(apart)  # three quarter cores fit into one


@given(
    st.lists(st.tuples(st.sampled_from(["", "h", "g"]), st.floats(0, 1)), min_size=1, max_size=6)
)
def test_a_crowd_is_the_work_of_a_host_over_its_cores(nodes: list[tuple[str, float]]) -> None:
    devices = {str(n): times(host=host, cores=2.0) for n, (host, _) in enumerate(nodes)}
    busy = {str(n): seconds for n, (_, seconds) in enumerate(nodes)}
    sums = [
        sum(s for other, s in nodes if other == host) / 2
        for host in ("h", "g")
        if sum(other == host for other, _ in nodes) > 1
    ]
    assert crowded_s(devices, busy) == pytest.approx(max(sums, default=0.0))


def test_chain_leaves_a_small_network_whole_where_messages_cost_what_they_do() -> None:
    """The case: LeNet-5 on three nodes of one two-core machine. Without these costs sixteen pieces on three
    nodes were predicted to be three times as fast as one node; they were six times as slow."""
    unaware = decide("chain", make_task(_called(profile(), 0.0), FLEET, batch=32))
    assert len(unaware.devices) == 3
    aware = profile(message_s=1.4e-4, byte_s=5e-10, host="h", cores=2.0)
    chosen = decide("chain", make_task(aware, FLEET, batch=32))
    assert {shard.device for shard in chosen.shards} == {"a"}
    assert chosen.predicted is not None
    assert chosen.predicted.seconds == pytest.approx(4.1e-3, rel=0.2)
    split = price(row(aware, pieces=16)).seconds
    assert 0.015 < split < 0.04  # 25 ms were measured


def _called(costs: Profile, call_s: float) -> Profile:
    """The profile as it follows from FLOPs: calls cost nothing."""
    devices = {
        name: msgspec.structs.replace(
            t, forward_call_s=(call_s,) * 5, backward_call_s=(call_s,) * 5
        )
        for name, t in costs.devices.items()
    }
    return msgspec.structs.replace(costs, devices=devices)


CODING = {"int8": CodecTimes(1e-4, 2e-9, 5e-5, 1e-9)}


def test_a_codec_costs_the_sender_and_the_receiver_what_was_measured() -> None:
    def coded(**fields: object) -> Plan:
        return msgspec.structs.replace(row(profile(**fields)), codec="int8")

    free, costly = price(coded()), price(coded(codecs=CODING))
    wire = [
        coded_bytes(32 * size, "int8") for size in (1600, 480)
    ]  # act2, act3; their gradients too
    labels = LENET.labels_bytes(32)  # in one message with an activation
    measured = sum(2 * (1.5e-4 + 3e-9 * size) for size in wire)
    assert costly.seconds - free.seconds == pytest.approx(measured, abs=2 * 3e-9 * labels + 1e-9)
    assert sum(costly.messages_s.values()) == pytest.approx(measured, abs=4 * 3e-9 * labels)
    assert costly.compute_s == free.compute_s
    assert costly.transfer_bytes == free.transfer_bytes


def test_what_codecs_cost_changes_nothing_where_no_codec_is_used() -> None:
    assert price(row(profile(codecs=CODING))) == price(row(profile()))


def test_a_sum_of_gradients_is_coded_once_for_all_who_get_it() -> None:
    shards = tuple(Shard(n, (0, 4), Part(8, 8 * k)) for k, n in enumerate(NAMES))
    plan = msgspec.structs.replace(
        row(profile(codecs=CODING)), shards=shards, batch=24, gradient_codec="int8", micro_batches=1
    )
    size = coded_bytes(5 * 1000, "int8")
    codes, reads = 1e-4 + 2e-9 * size, 5e-5 + 1e-9 * size
    spent = price(plan).messages_s
    assert spent["a"] == pytest.approx(
        2 * reads + codes + reads
    )  # two parts in, one sum, its own copy
    assert spent["b"] == spent["c"] == pytest.approx(codes + reads)


def test_a_slower_device_codes_more_slowly() -> None:
    slower = times(codecs=CODING).scaled(3.0)
    assert slower.encode(1000, "int8") == pytest.approx(
        3 * times(codecs=CODING).encode(1000, "int8")
    )
    assert slower.decode(1000, "fp16") == 0.0
