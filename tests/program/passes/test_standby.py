"""Devices that stand by follow the holder of their layers, in plans of layers and of samples."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from weft.errors import InputError
from weft.plans.plan import Plan, Shard
from weft.program.instructions import Recv, Reduce, Update
from weft.program.lower.lower import lower
from weft.program.memory import memory_bytes
from weft.program.validate import check_flow, show

MakePlan = Callable[..., Plan]


def words(plan: Plan, device: str) -> list[str]:
    return [show(i) for i in lower(plan).code[device]]


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
    # weights, gradients, the message that is taken over and the one that may wait behind it
    assert memory_bytes(plan)["c"] == 4 * 5000


def test_a_standby_must_match_a_shard_of_another_device(make_plan: MakePlan) -> None:
    for shard in (Shard("c", (1, 1)), Shard("b", (1, 2))):
        with pytest.raises(InputError, match="stands by for layers"):
            lower(make_plan("a", "b", "b", standby=(shard,)))


@pytest.mark.parametrize("stale", [0, 2])
def test_a_segment_that_one_device_holds_is_followed_where_samples_are_split(
    make_lanes: MakePlan, stale: int
) -> None:
    """a and c share layer 0; layers 1 and 2 are all at c, and b stands by for them."""
    plan = make_lanes((3, "acc"), (2, "ccc"), stale=stale, standby=(Shard("b", (1, 2)),))
    program = lower(plan)
    check_flow(program)
    assert [type(i) for i in program.code["b"]] == [Recv, Reduce, Update]
    told = words(plan, "c")
    last = max(n for n, word in enumerate(told) if word.startswith("backward of layers 1-2"))
    follow = told.index("send follow1.0 to b")
    assert last < follow < told.index("update of layers 1-2")


def test_a_standby_may_follow_several_segments_of_several_holders(make_plan: MakePlan) -> None:
    plan = make_plan("a", "b", "c", "a", source="a", standby=(Shard("d", (1, 2)),))
    fleet = make_plan("a", "b", "c", "d").fleet
    program = lower(msgspec.structs.replace(plan, fleet=fleet))
    check_flow(program)
    assert [i.source for i in program.code["d"] if isinstance(i, Recv)] == ["b", "c"]
    assert [i.layers for i in program.code["d"] if isinstance(i, Update)] == [(1, 1), (2, 2)]


def test_a_segment_that_several_devices_hold_needs_no_standby(make_lanes: MakePlan) -> None:
    plan = make_lanes((3, "acc"), (2, "ccc"), standby=(Shard("b", (0, 0)),))
    with pytest.raises(InputError, match="a and c hold together; each is a copy of the other"):
        lower(plan)
