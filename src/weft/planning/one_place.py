"""The whole network in one place: what every split is measured against.

best_place(one_places(task), task.source)      # the fastest; the source, if it is about as fast
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from weft.planning.decide import decide
from weft.planning.exactness import differs
from weft.plans import registry
from weft.plans.plan import Plan
from weft.plans.task import Task
from weft.simulate.objective import worth

WORTH = 0.05  # a gain below this share is not worth another place, or a split: predictions are not better


def one_places(task: Task) -> list[Plan]:
    """The whole network on each device that the source reaches and that has the memory for it. A device that
    gets its samples over a link may begin with the first of them, as it may in a split. It waits for all of
    them where they must stay together: a batch norm of pieces is another mathematics."""
    plans = []
    for name in task.fleet.names:
        options = {"devices": name}
        options |= {key: value for key, value in task.options.items() if key == "route"}
        try:
            plan = decide(registry.DEFAULT, dataclasses.replace(task, options=options))
            if differs(plan, task.graph):
                whole = {**options, "micro_batches": "1"}
                plan = decide(registry.DEFAULT, dataclasses.replace(task, options=whole))
        except Exception:  # out of reach, too small; or a defect, which then has no speedup to show
            continue
        plans.append(plan)
    return plans


def best_place(plans: Sequence[Plan], source: str) -> Plan | None:
    """The fastest of these plans. The source itself, unless another device is faster by more than a little:
    nothing has to be sent then."""
    if not plans:
        return None
    best = min(plans, key=place_cost)
    home = next((plan for plan in plans if place_of(plan) == source), best)
    return home if place_cost(home) <= place_cost(best) * (1 + WORTH) else best


def place_of(plan: Plan) -> str | None:
    """The only device that computes; None if there are several."""
    workers = {shard.device for shard in plan.shards}
    workers |= {turn.device for each in plan.rounds for turn in each.turns}
    return workers.pop() if len(workers) == 1 and plan.peers is None else None


def place_cost(plan: Plan) -> float:
    """Seconds of a plan, or what else it was chosen for."""
    assert plan.predicted is not None
    return worth(plan, plan.predicted, plan.objective)
