"""One function lowers every kind of plan, and refuses what a kind cannot do."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from weft.errors import InputError
from weft.plans.plan import Plan, Shard
from weft.program.lower.lower import DELIVERIES, lower

GOLDEN = Path(__file__).parents[1] / "golden"
RECORDED = {
    "swarm": "stitchnet-perceptron", "peers": "decoupled-cnn5-ring", "rounds": "coopai-lenet5",
    "norms": "lanes-norms",
}  # fmt: skip


class Recorded(msgspec.Struct):
    plan: Plan


@pytest.mark.parametrize("field", DELIVERIES)
def test_stale_weights_and_standby_are_refused_where_a_plan_has_no_lanes(field: str) -> None:
    path = GOLDEN / f"{RECORDED[field]}.json"
    plan = msgspec.json.decode(path.read_bytes(), type=Recorded).plan
    assert lower(plan).code
    first = plan.shards[0] if plan.shards else Shard(plan.source, (0, 0))
    for change in ({"stale": 1}, {"standby": (first,)}):
        with pytest.raises(InputError, match=f"neither is allowed in a plan with {field}"):
            lower(msgspec.structs.replace(plan, **change))
