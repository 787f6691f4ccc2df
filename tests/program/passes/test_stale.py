"""Programs with several minibatches in flight, and devices that stand by."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from weft.errors import InputError
from weft.plans.plan import Plan, Shard
from weft.program.instructions import Recv, Reduce, Send, Update
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
        (("a", "b"), {"stale": 1, "micro_batches": 2}),
        (("b", "a"), {"stale": 1, "source": "a"}),
        (("a", "b", "c", "b"), {"stale": 1}),
    ],
)
def test_what_cannot_be_in_flight_is_refused(
    make_plan: MakePlan, owners: tuple[str, ...], fields: dict[str, int]
) -> None:
    with pytest.raises(InputError, match="stale = "):
        lower(make_plan(*owners, **fields))


def test_k_versions_of_weights_and_activations_are_counted(make_plan: MakePlan) -> None:
    """Layer 0: 1000 bytes of weights, 100 kept per sample; sgd keeps two copies; 4 samples of 10
    bytes cross the cut."""
    plain, three = make_plan("a", "b"), make_plan("a", "b", stale=2)
    assert memory_bytes(plain)["a"] == 2 * 1000 + 400 + 40
    assert memory_bytes(three)["a"] == (2 + 3) * 1000 + 3 * 400 + 3 * 40
    assert memory_bytes(three)["b"] - memory_bytes(plain)["b"] == 2 * 40


def test_a_device_that_stands_by_takes_gradients_and_updates(make_plan: MakePlan) -> None:
    plan = make_plan("a", "b", "b", stale=2, standby=(Shard("c", (1, 2)),))
    fleet = make_plan("a", "b", "c").fleet
    plan = msgspec.structs.replace(plan, fleet=fleet)
    program = lower(plan)
    check_flow(program)
    assert plan.devices == ("a", "b", "c")
    assert [type(i) for i in program.code["c"]] == [Recv, Reduce, Update]
    told = words(plan, "b")
    assert told.index("send grad1.0 to a") < told.index("send follow1.0 to c")
    assert told.index("send follow1.0 to c") < told.index("update of layers 1-2")
    assert memory_bytes(plan)["c"] == 3 * 5000


def test_a_standby_must_match_a_shard_of_another_device(make_plan: MakePlan) -> None:
    for shard in (Shard("c", (1, 1)), Shard("b", (1, 2))):
        with pytest.raises(InputError, match="stands by for layers"):
            lower(make_plan("a", "b", "b", standby=(shard,)))
