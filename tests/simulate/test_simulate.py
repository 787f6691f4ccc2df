"""The simulator against sums done by hand."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from weft.errors import InputError, WeftError
from weft.fleet.fleet import Device, Fleet, Link, Medium
from weft.plans.plan import Plan, Shard
from weft.plans.profile import DeviceTimes, LayerCost, Profile
from weft.program.instructions import Backward, Forward, Instruction, Recv, Send, Tensor
from weft.program.instructions import Update as Step
from weft.program.lower.lower import lower
from weft.program.program import Program
from weft.simulate.simulate import simulate

MakePlan = Callable[..., Plan]
MB = 1_000_000


def test_one_minibatch_is_the_sum_of_its_parts(phone_and_edge: MakePlan) -> None:
    plan = phone_and_edge(latency_ms=250.0, update=0.125)
    timeline = simulate(lower(plan), steps=2)
    there_and_back = 1.0 + 2.25 + 0.5 + 1.0 + 2.25 + 2.0
    assert timeline.step_ends == (there_and_back + 0.125, 2 * (there_and_back + 0.125))
    assert timeline.step_s == there_and_back + 0.125
    assert timeline.busy("phone>edge") == timeline.busy("edge>phone") == 4.0
    assert timeline.busy("phone") == 2 * (1.0 + 2.0 + 0.125)


def test_the_spans_tell_who_did_what_when(phone_and_edge: MakePlan) -> None:
    spans = simulate(lower(phone_and_edge(latency_ms=250.0))).spans
    told = [(s.where, s.what, s.label, s.start, s.end) for s in spans if s.end > s.start]
    assert sorted(told, key=lambda span: (span[3], span[0])) == [
        ("edge", "wait", "act1.0", 0.0, 3.25),
        ("phone", "forward", "0-0", 0.0, 1.0),
        ("phone", "wait", "grad1.0", 1.0, 7.0),
        ("phone>edge", "transfer", "act1.0", 1.0, 3.0),
        ("edge", "forward", "1-1", 3.25, 3.75),
        ("edge", "backward", "1-1", 3.75, 4.75),
        ("edge>phone", "transfer", "grad1.0", 4.75, 6.75),
        ("phone", "backward", "0-0", 7.0, 9.0),
    ]
    assert {s.what for s in spans} >= {"load", "loss", "update"}
    assert next(s.bytes for s in spans if s.label == "act1.0" and s.what == "transfer") == 2 * MB


def test_computing_overlaps_with_sending(phone_and_edge: MakePlan) -> None:
    plan = phone_and_edge(mode="infer", batch=3, micro_batches=3, in_flight=3)
    # The phone computes at 0, 1, 2; its link carries two seconds each, one after the other from 1;
    # the edge adds half a second and the last answer two seconds on the way back.
    assert simulate(lower(plan)).step_ends == (1.0 + 3 * 2.0 + 0.5 + 2.0,)


@pytest.mark.parametrize(
    ("slow", "bottleneck"),
    [
        ({"phone": (3.0, 5.0)}, 8.0),
        ({"edge": (3.0, 5.0)}, 8.0),
        ({"up": 8.0}, 8.0),
        ({"down": 8.0}, 8.0),
    ],
)
def test_with_many_micro_batches_the_slowest_resource_sets_the_pace(
    phone_and_edge: MakePlan, slow: dict[str, object], bottleneck: float
) -> None:
    settings = {"phone": (1.0, 1.0), "edge": (1.0, 1.0), "up": 2.0, "down": 2.0, **slow}
    count = 100
    plan = phone_and_edge(**settings, batch=count, micro_batches=count, in_flight=12)
    pace = simulate(lower(plan), steps=3, spans=False).step_s / count
    assert bottleneck <= pace <= bottleneck * 1.05
    alone = phone_and_edge(**settings, batch=count, micro_batches=count, in_flight=1)
    everything = bottleneck + 3 * 2.0
    assert simulate(lower(alone), steps=3, spans=False).step_s / count == pytest.approx(everything)


def test_more_in_flight_is_never_slower_on_a_link_of_its_own(phone_and_edge: MakePlan) -> None:
    paces = [
        simulate(
            lower(phone_and_edge(batch=16, micro_batches=16, in_flight=n)), steps=4, spans=False
        ).step_s
        for n in range(1, 9)
    ]
    assert paces == sorted(paces, reverse=True)
    assert paces[0] > 1.5 * paces[-1]


def messages(fleet: Fleet, route: str, *sends: tuple[str, str, int]) -> dict[str, float]:
    """When each of some messages, all sent at time 0 in this order, arrives."""
    code: dict[str, list[Instruction]] = {device.name: [] for device in fleet.devices}
    for n, (source, dest, size) in enumerate(sends):
        code[source].append(Send(Tensor("act", n), dest, size))
    for n, (source, dest, _) in enumerate(sends):
        code[dest].append(Recv(Tensor("act", n), source))
        code[dest].append(Forward((n, n), 0, 1))
    count = len(sends)
    times = DeviceTimes(*((0.0,) * count,) * 3)
    plan = Plan(
        strategy="by hand", model="toy", batch=1, mode="infer", source=fleet.names[0],
        shards=(), fleet=fleet, route=route,  # type: ignore[arg-type]
        profile=Profile("toy", 0, (LayerCost("l", 0, 0),) * count,
                        dict.fromkeys(fleet.names, times)),
    )  # fmt: skip
    program = Program(plan, {name: tuple(body) for name, body in code.items()})
    return {s.label: s.end for s in simulate(program).spans if s.what == "forward"}


def row(first_mbps: float, second_mbps: float, latency_ms: float = 500.0) -> Fleet:
    return Fleet(
        (Device("a"), Device("b"), Device("c")),
        (
            Link(("a", "b"), first_mbps, first_mbps, latency_ms),
            Link(("b", "c"), second_mbps, 8.0, latency_ms),
        ),
    )


@pytest.mark.parametrize(("first", "second"), [(8.0, 4.0), (4.0, 8.0)])
def test_a_relay_that_stores_adds_the_links_and_one_that_cuts_through_takes_the_slowest(
    first: float, second: float
) -> None:
    fleet = row(first, second)
    assert messages(fleet, "store_and_forward", ("a", "c", MB)) == {"0-0": 1 + 0.5 + 2 + 0.5}
    assert messages(fleet, "min", ("a", "c", MB)) == {"0-0": 2 + 0.5 + 0.5}


def test_what_passes_through_shares_the_second_link_with_what_starts_there() -> None:
    fleet = row(8.0, 8.0)
    sends = ("b", "c", 3 * MB), ("a", "c", MB)
    # b's own message has the link from 0 to 3, so the one from a waits for it at b.
    for route in ("min", "store_and_forward"):
        assert messages(fleet, route, *sends) == {"0-0": 3.5, "1-1": 4.5}


def test_a_message_that_cuts_through_leaves_room_on_a_faster_second_link() -> None:
    """It takes the fast link for its own bytes only, however slowly they come."""
    fleet = row(1.0, 8.0, latency_ms=0.0)
    # a's message is at b with its first byte before b sends, and has come whole after 8 seconds.
    sends = ("b", "c", 4 * MB), ("a", "c", MB)
    assert messages(fleet, "min", *sends) == {"0-0": 1.0 + 4.0, "1-1": 8.0}


def test_a_medium_is_one_queue_for_all_its_members_both_ways() -> None:
    devices = Device("gw"), Device("r1"), Device("r2")
    wifi = Fleet(devices, medium=(Medium("wifi", "gw", ("r1", "r2"), 8.0),))
    links = Fleet(devices, (Link(("gw", "r1"), 8.0, 8.0), Link(("gw", "r2"), 8.0, 8.0)))
    sends = ("r1", "gw", MB), ("r2", "gw", MB), ("gw", "r1", 2 * MB)
    assert messages(links, "min", *sends) == {"0-0": 1.0, "1-1": 1.0, "2-2": 2.0}
    # At the same moment devices take their turn in the order of the program: gw, r1, r2.
    assert messages(wifi, "min", *sends) == {"2-2": 2.0, "0-0": 3.0, "1-1": 4.0}
    # From member to member the message crosses the medium twice, whatever the route's rule.
    for route in ("min", "store_and_forward"):
        assert messages(wifi, route, ("r1", "r2", MB)) == {"0-0": 2.0}


def test_a_lag_keeps_two_minibatches_in_flight(phone_and_edge: MakePlan) -> None:
    def late(i: Instruction) -> Instruction:
        return msgspec.structs.replace(i, lag=1) if isinstance(i, Recv | Backward | Step) else i

    plan = phone_and_edge(phone=(1.0, 1.0), edge=(1.0, 1.0), up=2.0, down=2.0)
    program = lower(plan)
    ahead = Program(plan, {**program.code, "phone": tuple(map(late, program.code["phone"]))})
    assert simulate(program, steps=3).step_ends == (8.0, 16.0, 24.0)
    # Forward 0 at 0, forward 1 at 1, then the gradients of 0 at 7: every round trip serves two.
    # Tick by tick: F0 ..1 | F1 ..2, g0 at 7, B0 ..8 | F2 ..9, g1 at 9, B1 ..10 | g2 at 15, B2 ..16
    assert simulate(ahead, steps=3).step_ends == (8.0, 10.0, 16.0)


def test_without_spans_the_ends_are_the_same(phone_and_edge: MakePlan) -> None:
    program = lower(phone_and_edge(batch=5, micro_batches=5, in_flight=3))
    bare = simulate(program, steps=4, spans=False)
    assert bare.spans == ()
    assert bare.step_ends == simulate(program, steps=4).step_ends


def test_a_standstill_names_who_waits_for_what(phone_and_edge: MakePlan) -> None:
    program = lower(phone_and_edge())
    silent = tuple(i for i in program.code["edge"] if not isinstance(i, Send))
    with pytest.raises(WeftError) as caught:
        simulate(msgspec.structs.replace(program, code={**program.code, "edge": silent}), steps=2)
    assert "phone waits for grad1.0 of minibatch 0 from edge since 1 s" in str(caught.value)
    assert "edge waits for act1.0 of minibatch 1 from phone" in str(caught.value)


def test_at_least_one_step(phone_and_edge: MakePlan) -> None:
    with pytest.raises(InputError, match="steps = 0"):
        simulate(lower(phone_and_edge()), steps=0)


def test_a_source_without_layers_needs_no_times() -> None:
    fleet = Fleet((Device("home"), Device("edge")), (Link(("home", "edge"), 8.0, 8.0),))
    plan = Plan(
        strategy="by hand", model="toy", batch=1, mode="train", source="home",
        shards=(Shard("edge", (0, 0)),), fleet=fleet,
        profile=Profile("toy", MB, (LayerCost("l", 0, 0),),
                        {"edge": DeviceTimes((1.0,), (2.0,), (0.5,))}, target_bytes=0),
    )  # fmt: skip
    assert simulate(lower(plan)).step_ends == (1.0 + 1.0 + 2.0 + 0.5,)
