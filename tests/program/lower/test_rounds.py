"""Rounds of strips: every turn reads exactly its strips, only what is missing travels."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import InputError
from weft.fleet.fleet import Device, Fleet, Medium
from weft.plans.plan import Part, Plan, Shard
from weft.plans.profile import DeviceTimes, LayerCost, Profile
from weft.plans.rounds import UNIT_DIM, Round, Strip, Turn
from weft.program import instructions as ins
from weft.program.lower.lower import lower
from weft.program.memory import memory_bytes
from weft.program.validate import check_flow
from weft.simulate.simulate import simulate

ROW = 100  # bytes


def plan_of(rounds: tuple[Round, ...], count: int, **fields: Any) -> Plan:
    names = ["gw", *(f"r{d}" for d in range(1, count + 1))]
    layers = rounds[-1].layers[1] + 1
    times = DeviceTimes((1.0,) * layers, (0.0,) * layers, (0.0,) * layers)
    values: dict[str, Any] = {"batch": 1, "micro_batches": 1, **fields}
    return Plan(
        strategy="by hand", model="toy", mode="infer", source="gw", rounds=rounds,
        shards=tuple(Shard(n, (0, layers - 1), Part(rows=(0, 1))) for n in names[1:]),
        fleet=Fleet(tuple(Device(n) for n in names),
                    medium=(Medium("wifi", "gw", tuple(names[1:]), 0.05),)),
        profile=Profile("toy", 0, (LayerCost("l", 0, 0),) * layers, {n: times for n in names}),
        **values,
    )  # fmt: skip


def split(height: int, count: int) -> list[tuple[int, int]]:
    bounds = [height * d // count for d in range(count + 1)]
    return list(itertools.pairwise(bounds))


def rows_rounds(height: int, count: int, halos: list[int], overlap: bool) -> tuple[Round, ...]:
    """Maps of one height; a round's rows need `halo` more of the map before on either side."""
    rounds = []
    for r, halo in enumerate(halos):
        turns = []
        for d, (a, b) in enumerate(split(height, count), start=1):
            inner = (a if a == 0 else a + halo, b if b == height else b - halo)
            spans = [(a, b)]
            if overlap and r and inner[0] < inner[1] and inner != (a, b):
                spans = [inner, *(s for s in ((a, inner[0]), (inner[1], b)) if s[0] < s[1])]
            for first, last in spans:
                need = max(0, first - halo), min(height, last + halo)
                turns.append(
                    Turn(f"r{d}", (Strip(f"v{r}", *need, ROW),), (Strip(f"v{r + 1}", first, last, ROW),),
                         ((last - first) / height,))
                )  # fmt: skip
        rounds.append(Round((r, r), "rows", tuple(turns)))
    return tuple(rounds)


def run_symbolically(plan: Plan) -> tuple[dict[str, list[int]], int]:
    """Executes a program on lists of row numbers; (the answer, bytes that travelled)."""
    program = lower(plan)
    check_flow(program)
    turns = {(r.layers, n): t for r in plan.rounds for n, t in r.numbered.items()}
    held: dict[str, dict[ins.Tensor, dict[str, list[int]]]] = defaultdict(dict)
    flying: dict[tuple[str, str, ins.Tensor], dict[str, list[int]]] = {}
    answer: dict[str, list[int]] = {}
    travelled = 0
    todo = {device: list(code) for device, code in program.code.items()}
    while any(todo.values()):
        for device, code in todo.items():
            while code:
                i = code[0]
                mine = held[device]
                if isinstance(i, ins.Recv):
                    if (i.source, device, i.tensor) not in flying:
                        break
                    mine[i.tensor] = flying.pop((i.source, device, i.tensor))
                elif isinstance(i, ins.Load):
                    rows = {
                        s.value: list(range(s.last)) for t in plan.rounds[0].turns for s in t.takes
                    }
                    mine[ins.Tensor("act", 0, i.micro)] = {
                        v: list(range(max(len(r), 64))) for v, r in rows.items()
                    }
                elif isinstance(i, ins.Stitch):
                    made: dict[str, list[int]] = defaultdict(list)
                    for p in i.pieces:
                        made[p.value] += mine[p.tensor][p.value][p.first : p.last]
                    mine[i.into] = made
                elif isinstance(i, ins.Send):
                    values = mine[i.tensor]
                    assert i.bytes == ROW * sum(map(len, values.values()))
                    travelled += i.bytes
                    flying[device, i.dest, i.tensor] = values
                elif isinstance(i, ins.Forward):
                    turn = turns[i.layers, i.part]
                    read = mine[ins.Tensor("in", i.layers[0], i.micro, part=i.part)]
                    assert read == {s.value: list(range(s.first, s.last)) for s in turn.takes}
                    mine[ins.Tensor("act", i.layers[1] + 1, i.micro, part=i.part)] = {
                        s.value: list(range(s.first, s.last)) for s in turn.gives
                    }
                elif isinstance(i, ins.Emit):
                    answer.update(mine[ins.Tensor("act", i.at, i.micro)])
                code.pop(0)
    assert not flying
    return answer, travelled


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    height=st.integers(4, 60),
    count=st.integers(1, 8),
    halos=st.lists(st.integers(0, 3), min_size=1, max_size=5),
    overlap=st.booleans(),
    frames=st.integers(1, 3),
    in_flight=st.integers(1, 3),
)
def test_every_turn_reads_exactly_its_strips_and_the_answer_is_whole(
    height: int, count: int, halos: list[int], overlap: bool, frames: int, in_flight: int
) -> None:
    count = min(count, height)
    rounds = rows_rounds(height, count, halos, overlap)
    plan = plan_of(rounds, count, batch=frames, micro_batches=frames, in_flight=in_flight)
    answer, _ = run_symbolically(plan)
    assert answer == {f"v{len(halos)}": list(range(height))}


def test_only_what_is_missing_travels_and_each_row_goes_up_once() -> None:
    """Three devices, 12 rows, two rounds with one row of halo."""
    plan = plan_of(rows_rounds(12, 3, [1, 1], overlap=False), 3)
    _, travelled = run_symbolically(plan)
    first_down = 5 + 6 + 5
    up = 1 + 2 + 1
    down = 1 + 2 + 1
    final = 12
    assert travelled == ROW * (first_down + up + down + final)


def test_overlap_sends_the_same_rows() -> None:
    plain = run_symbolically(plan_of(rows_rounds(24, 3, [1, 1, 2], overlap=False), 3))
    early = run_symbolically(plan_of(rows_rounds(24, 3, [1, 1, 2], overlap=True), 3))
    assert early == plain


def test_inner_rows_are_computed_while_strips_travel() -> None:
    """Same work and same bytes; the halo's way is hidden behind the inner rows."""
    plain = simulate(lower(plan_of(rows_rounds(24, 2, [2] * 4, overlap=False), 2)))
    early = simulate(lower(plan_of(rows_rounds(24, 2, [2] * 4, overlap=True), 2)))
    assert early.step_ends[0] < plain.step_ends[0]


def test_frames_in_flight_overlap_computing_and_transfer() -> None:
    rounds = rows_rounds(40, 2, [3] * 4, overlap=False)
    one, two = (
        simulate(lower(plan_of(rounds, 2, batch=4, micro_batches=4, in_flight=flight)))
        for flight in (1, 2)
    )
    assert two.step_ends[0] < 0.95 * one.step_ends[0]


def test_partial_sums_are_added_at_the_gateway() -> None:
    vector, total = Strip("x", 0, 10, 4, UNIT_DIM), Strip("y", 0, 6, 4, UNIT_DIM)
    turns = tuple(
        Turn(f"r{d}", (Strip("x", 5 * (d - 1), 5 * d, 4, UNIT_DIM),), (total,), (0.5,))
        for d in (1, 2)
    )
    after = Turn("gw", (total,), (Strip("z", 0, 6, 4, UNIT_DIM),))
    plan = plan_of((Round((0, 0), "data", turns, after=after, sums=True),), 2)
    program = lower(plan)
    check_flow(program)
    adds = [i for i in program.code["gw"] if isinstance(i, ins.Stitch) and i.add]
    assert [len(i.pieces) for i in adds] == [2]
    sent = {
        d: sum(i.bytes for i in program.code[d] if isinstance(i, ins.Send)) for d in program.code
    }
    assert sent == {"gw": vector.size, "r1": total.size, "r2": total.size}


def test_work_is_the_share_of_each_layer() -> None:
    timeline = simulate(lower(plan_of(rows_rounds(10, 2, [0], overlap=False), 2)))
    computed = [s.end - s.start for s in timeline.spans if s.what == "forward"]
    assert computed == pytest.approx([0.5, 0.5])


def test_memory_counts_weights_once_per_round_and_the_largest_strips() -> None:
    turn = Turn("r1", (Strip("x", 0, 6, 10),), (Strip("y", 0, 4, 10),), (1.0,), state_bytes=1000)
    plan = plan_of((Round((0, 0), "rows", (turn, turn)), Round((1, 1), "rows", (turn,))), 1)
    strips = memory_bytes(plan)["r1"] - 2000
    assert (
        60 + 40 <= strips <= 3 * (60 + 40)
    )  # of the turn at work, and of what waits for the others


def test_rounds_that_leave_layers_out_are_refused() -> None:
    rounds = rows_rounds(8, 2, [1, 1], overlap=False)
    with pytest.raises(InputError, match="must begin at layer 0"):
        lower(plan_of(rounds[1:], 2))


def test_what_the_gateway_takes_after_the_first_round_is_gathered_from_the_devices() -> None:
    """A whole network in one round: what the gateway pools at the end is no part of the frame."""
    turns = tuple(
        Turn(f"r{d}", (Strip("v0", a, b, ROW),), (Strip("v1", a, b, ROW),), (0.5,))
        for d, (a, b) in enumerate(split(4, 2), start=1)
    )
    pooled = Turn("gw", (Strip("v1", 0, 4, ROW),), (Strip("v2", 0, 1, ROW),), (0.0,))
    program = lower(plan_of((Round((0, 0), "rows", turns, after=pooled),), 2))
    gateway = program.code["gw"]
    assert sum(isinstance(i, ins.Recv) for i in gateway) == 2
    read = [piece for i in gateway if isinstance(i, ins.Stitch) for piece in i.pieces]
    assert {piece.value for piece in read if piece.tensor.at == 0} == {"v0"}
