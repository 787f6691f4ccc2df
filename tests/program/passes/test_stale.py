"""Programs with several minibatches in flight."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import InputError
from weft.plans.plan import Plan
from weft.program.instructions import Backward, Forward, Recv, Reduce, Send, Update
from weft.program.lower.layout import layout_of
from weft.program.lower.lower import lower
from weft.program.memory import memory_bytes
from weft.program.validate import check_flow, show

MakePlan = Callable[..., Plan]


def words(plan: Plan, device: str) -> list[str]:
    return [show(i) for i in lower(plan).code[device]]


def test_the_first_stage_runs_ahead_and_the_last_never_lags(make_plan: MakePlan) -> None:
    plan = make_plan("a", "b", "b", stale=2)
    assert words(plan, "a") == [
        "load of micro-batch 0",
        "forward of layers 0-0, micro-batch 0",
        "send act1.0 to b",
        "recv grad1.0 from b [lag 2]",
        "backward of layers 0-0, micro-batch 0 [lag 2]",
        "update of layers 0-0 [lag 2]",
    ]
    assert all(i.lag == 0 for i in lower(plan).code["b"])


def test_lags_fall_evenly_from_the_first_stage_to_the_last(make_plan: MakePlan) -> None:
    plan = make_plan("a", "b", "c", stale=4)
    code = lower(plan).code
    assert [max(i.lag for i in code[d]) for d in "abc"] == [4, 2, 0]
    check_flow(lower(plan))


def test_labels_that_stay_home_make_the_middle_lag_too(make_plan: MakePlan) -> None:
    plan = make_plan("a", "b", "a", stale=4)
    program = lower(plan)
    check_flow(program)
    assert not any("target" in show(i) for code in program.code.values() for i in code
                   if isinstance(i, Send | Recv))  # fmt: skip
    updates = {d: [(i.layers, i.lag) for i in c if isinstance(i, Update)]
               for d, c in program.code.items()}  # fmt: skip
    assert updates == {"a": [((0, 0), 4), ((2, 2), 2)], "b": [((1, 1), 2)]}


def test_one_device_alone_is_never_stale(make_plan: MakePlan) -> None:
    assert lower(make_plan("a", "a", stale=3)).max_lag == 0


@pytest.mark.parametrize(
    ("owners", "fields"),
    [
        (("a", "b"), {"stale": -1}),
        (("b", "a"), {"stale": 1, "source": "a"}),
        (("a", "b", "c", "b"), {"stale": 1}),
    ],
)
def test_what_cannot_be_in_flight_is_refused(
    make_plan: MakePlan, owners: tuple[str, ...], fields: dict[str, int]
) -> None:
    with pytest.raises(InputError, match="stale = "):
        lower(make_plan(*owners, **fields))


def test_a_source_without_layers_stays_ahead_of_the_update_by_the_lag_too(
    make_plan: MakePlan,
) -> None:
    """With stale = 3 the first device has four minibatches in hand before the first is updated."""
    program = lower(make_plan("a", "b", source="home", stale=3, ahead=2, micro_batches=2))
    check_flow(program)
    assert [i.lag for i in program.code["home"] if isinstance(i, Recv)] == [5]
    assert [i.lag for i in program.code["a"] if isinstance(i, Send)][-1] == 3


def test_a_shared_segment_has_one_lag_at_all_its_holders(make_lanes: MakePlan) -> None:
    """HierTrain: a has layer 0, b layers 0 to 2, c all. Layers 3 and 4 are at the end of every way."""
    plan = make_lanes((3, "acccc"), (2, "ccccc"), (4, "bbbcc"), stale=2)
    program = lower(plan)
    check_flow(program)
    updates = {(d, i.layers): i.lag for d, code in program.code.items() for i in code
               if isinstance(i, Update)}  # fmt: skip
    assert updates == {
        ("a", (0, 0)): 2, ("b", (0, 0)): 2, ("c", (0, 0)): 2,
        ("b", (1, 2)): 2, ("c", (1, 2)): 2, ("c", (3, 4)): 0,
    }  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(data=st.data(), stale=st.integers(1, 4))
def test_any_split_of_samples_runs_with_one_age_for_all_copies_or_is_refused(
    any_lanes: Callable[..., st.SearchStrategy[Plan]], data: st.DataObject, stale: int
) -> None:
    plan = msgspec.structs.replace(data.draw(any_lanes()), stale=stale)
    paths = [_path(plan, piece.devices) for piece in layout_of(plan).pieces]
    ways = [piece.devices for piece in layout_of(plan).pieces]
    there_and_back = (
        len(ways) == 1 and len(paths[0]) == 3 and ways[0] == (plan.source, paths[0][1], plan.source)
    )
    if any(len(set(path)) < len(path) for path in paths) and not there_and_back:
        with pytest.raises(InputError, match="samples that go from device to device"):
            lower(plan)
        return
    program = lower(plan)
    check_flow(program)
    forwards: dict[tuple[int, int], set[int]] = defaultdict(set)
    backwards: dict[tuple[int, int], set[int]] = defaultdict(set)
    for code in program.code.values():
        for i in code:
            if isinstance(i, Forward):
                forwards[i.layers].add(i.lag)
            elif isinstance(i, Backward | Update | Reduce):
                backwards[i.layers].add(i.lag)
    if there_and_back:
        return
    assert all(lags == {0} for lags in forwards.values())
    assert all(len(lags) == 1 for lags in backwards.values()), "copies of different age"
    by_layer = [next(iter(backwards[layers])) for layers in sorted(backwards)]
    assert by_layer == sorted(by_layer, reverse=True)
    assert by_layer[-1] == 0
    assert by_layer[0] in (0, stale)


def _path(plan: Plan, devices: tuple[str, ...]) -> list[str]:
    path = [plan.source]
    for device in devices:
        if device != path[-1]:
            path.append(device)
    return path


def test_k_versions_of_weights_and_activations_are_counted(make_plan: MakePlan) -> None:
    """Layer 0 has 1000 bytes of weights. One minibatch more in flight: per sample 60 of input, 100 of
    activations, 10 + 8 of a message with labels, 10 of a gradient."""
    plain, two, three = (memory_bytes(make_plan("a", "b", stale=k)) for k in (0, 1, 2))
    assert two["a"] - plain["a"] == 2 * 1000 + 4 * (60 + 100 + 18 + 10)
    assert three["a"] - two["a"] == 1000 + 4 * (60 + 100 + 18 + 10)
    assert three["b"] - two["b"] == two["b"] - plain["b"] == 4 * 18
