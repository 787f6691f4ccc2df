"""Programs of peers: they run to their end on any graph, and send what the definition says."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import InputError
from weft.fleet.fleet import Device, Fleet, Medium
from weft.plans.peers import SHARED, Held, Peer, Peers
from weft.plans.plan import Part, Plan, Shard
from weft.plans.profile import DeviceTimes, LayerCost, Profile
from weft.program.instructions import Keep, Recv, Send, Share, due
from weft.program.lower.lower import lower
from weft.program.lower.peers import chunks
from weft.program.memory import memory_bytes
from weft.program.program import Program
from weft.program.validate import check_flow, show
from weft.runtime.run.workload.peer_timeline import round_seconds
from weft.simulate.price import price
from weft.simulate.simulate import simulate

SETS = ((9, 0, 1, 2, 3), (2, 3, 4, 5, 6), (5, 6, 7, 8, 9), (8, 9, 0, 1, 2))
RING = ((0, 1), (1, 2), (2, 3), (3, 0))


def peer_plan(
    sets: tuple[tuple[int, ...], ...] = SETS,
    edges: tuple[tuple[int, int], ...] = RING,
    slow: float = 1.0,
    mbps: float = 800.0,
    shared_numbers: int = 1001,
    **fields: object,
) -> Plan:
    """Peers that take 10 ms for a minibatch; the last of them `slow` times as long."""
    names = [f"p{n}" for n in range(len(sets))]
    peers = Peers(
        peers=tuple(
            Peer(
                name, held, (Held(SHARED, shared_numbers), *(Held(c, 100) for c in held)), 8000, 10
            )
            for name, held in zip(names, sets, strict=True)
        ),
        edges=tuple((names[a], names[b]) for a, b in edges),
        **{"every": 3, **fields},  # type: ignore[arg-type]
    )
    times = DeviceTimes((0.001,), (0.009,), (0.0,))
    return Plan(
        strategy="by hand", model="toy", batch=1, mode="train", source="p0",
        shards=tuple(Shard(n, (0, 0), Part(classes=c)) for n, c in zip(names, sets, strict=True)),
        fleet=Fleet(
            tuple(Device(n) for n in ("gw", *names)), medium=(Medium("air", "gw", tuple(names), mbps),)
        ),
        profile=Profile("toy", 4, (LayerCost("l", 8000, 4),), {
            "gw": times, **dict.fromkeys(names, times), names[-1]: times.scaled(slow),
        }),
        peers=peers,
    )  # fmt: skip


def sends(program: Program, device: str) -> list[Send]:
    return [i for i in program.code[device] if isinstance(i, Send)]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, int], ...]]:
    """Any class sets on any connected graph: a random tree and some more links."""
    count = draw(st.integers(1, 6))
    sets = tuple(tuple(sorted(draw(st.sets(st.integers(0, 5), min_size=1)))) for _ in range(count))
    tree = {(draw(st.integers(0, p - 1)), p) for p in range(1, count)}
    more = draw(st.sets(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))))
    return sets, tuple(sorted(tree | {(a, b) for a, b in more if a < b}))


@given(graphs(), st.sampled_from(["ring", "gossip", "hub"]), st.integers(1, 5))
def test_peers_on_any_graph_come_to_their_end(
    graph: tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, int], ...]], shared: str, every: int
) -> None:
    program = lower(peer_plan(*graph, shared=shared, every=every))
    check_flow(program)
    timeline = simulate(program, steps=2 * every)
    assert len(timeline.step_ends) == 2 * every


@pytest.mark.parametrize("numbers", [1001, 4, 3])
def test_the_ring_sends_two_times_n_minus_one_pieces_which_are_that_share_of_the_bytes(
    numbers: int,
) -> None:
    plan = peer_plan(shared="ring", shared_numbers=numbers)
    program = lower(plan)
    total = 0
    for device in program.code:
        rows = [i for i in sends(program, device) if i.tensor.kind in ("row", "sum")]
        assert len(rows) == 2 * (4 - 1)
        total += sum(i.bytes for i in rows)
    assert total == 2 * (4 - 1) * numbers * 4  # each of four: 2 (n-1) / n of its bytes


def test_structures_go_to_neighbours_that_have_the_class_and_to_no_other() -> None:
    program = lower(peer_plan())
    told = Counter((i.tensor.at, i.dest) for i in sends(program, "p1") if i.tensor.kind == "group")
    # 2 and 3 are p0's too, 5 and 6 p2's; p3 has 2 but is no neighbour; 4 is only p1's: kept by both
    assert told == Counter(
        {(2, "p0"): 1, (3, "p0"): 1, (5, "p2"): 1, (6, "p2"): 1, (4, "p0"): 1, (4, "p2"): 1}
    )
    kept = [i for i in program.code["p0"] if isinstance(i, Keep)]
    assert [i.group for i in kept] == [4]


def test_the_exchange_is_at_the_end_of_each_round_only() -> None:
    code = lower(peer_plan(every=3)).code["p0"]
    exchange = [i for i in code if isinstance(i, Share | Send | Recv)]
    assert [any(due(i, step) for i in exchange) for step in range(6)] == [
        False, False, True, False, False, True,
    ]  # fmt: skip


def test_a_price_per_minibatch_has_its_share_of_the_exchange() -> None:
    plan = peer_plan(shared="ring", mbps=0.8)  # 10 us a byte: the medium takes long
    found = price(plan)
    per_round = sum(i.bytes for d in lower(plan).code for i in sends(lower(plan), d))
    assert found.transfer_bytes["air"] == pytest.approx(2 * per_round / 3, abs=1)  # up and down
    assert found.step_s is not None
    assert found.step_s >= 0.010 + 2 * per_round * 1e-5 / 3 * 0.9


def test_a_slow_peer_holds_up_those_who_wait_and_nobody_else() -> None:
    waits = peer_plan(shared="gossip", slow=10.0)
    free = msgspec.structs.replace(waits, peers=msgspec.structs.replace(waits.peers, late="newest"))
    assert price(waits).seconds > 0.09
    assert price(free).seconds == pytest.approx(0.010)
    held_up = round_seconds(simulate(lower(waits), 12), "p0", 3)
    alone = round_seconds(simulate(lower(free), 12), "p0", 3)
    assert held_up > 0.29
    assert alone <= 2 * 0.030


def test_memory_counts_weights_of_the_peers_own_network_and_what_comes_in() -> None:
    need = memory_bytes(peer_plan())
    handed_out = 4 * (1001 + 5 * 100)
    assert 8000 + 2 * handed_out < need["p0"] < 2 * 8000 + 4 * handed_out


def test_who_is_left_stays_one_graph_without_those_who_are_gone() -> None:
    plan = peer_plan(edges=((0, 1), (1, 2), (2, 3)))
    assert plan.peers is not None
    left = plan.peers.without(frozenset({"p1"}))
    assert left.devices == ("p0", "p2", "p3")
    assert left.near("p0") == ("p2",)
    assert left.owners(4) == ()
    assert set(left.sole("p0")) == {3}  # p1 had it, too


def test_pieces_of_a_row_follow_each_other_and_differ_by_one_at_most() -> None:
    found = chunks(11, 4)
    assert [first for first, _ in found[1:]] == [last for _, last in found[:-1]]
    assert (found[0][0], found[-1][1]) == (0, 11)
    assert {last - first for first, last in found} == {2, 3}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"every": 0}, "every = 0"),
        ({"late": "newest", "shared": "ring"}, "use shared = gossip"),
        ({"edges": ((0, 0),)}, "link p0-p0"),
    ],
)
def test_an_exchange_that_cannot_be_is_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        lower(peer_plan(**fields))  # type: ignore[arg-type]


def test_a_class_of_another_size_elsewhere_is_refused() -> None:
    plan = peer_plan()
    assert plan.peers is not None
    first, *others = plan.peers.peers
    odd = msgspec.structs.replace(first, held=(Held(SHARED, 1001), Held(2, 7)))
    peers = msgspec.structs.replace(plan.peers, peers=(odd, *others))
    with pytest.raises(InputError, match="group 2 has 7 numbers at p0 and 100 at p1"):
        lower(msgspec.structs.replace(plan, peers=peers))


def test_instructions_say_what_they_exchange() -> None:
    words = [show(i) for i in lower(peer_plan(shared="gossip", late="newest")).code["p0"]]
    assert "share of what all share" in words
    assert "keep of class 4" in words
    assert any("[late: newest]" in word for word in words)
