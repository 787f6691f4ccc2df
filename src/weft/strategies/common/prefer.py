"""The option `prefer`, for strategies that could buy accuracy with time.

    if prefers_time(task):
        limit = price_or_never(task, lambda: faithful_plan(task))

Some strategies with a plus learn more from a minibatch that takes longer. By default their minibatch takes no
longer than that of the strategy by the paper. `prefer=accuracy` lifts that limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from weft.errors import InputError
from weft.plans import options
from weft.plans.plan import Plan
from weft.plans.task import Task

PREFER = (
    "time | accuracy: whether a minibatch takes no longer than {}'s, or as long as helps learning"
)


def prefers_time(task: Task) -> bool:
    """Whether the user wants no minibatch that takes longer than the faithful strategy's; the default."""
    return options.choice(task, "prefer", ("time", "accuracy"), "time") == "time"


def price_or_never(task: Task, plan: Callable[[], Plan]) -> float:
    """The price of a plan; infinite if there is no such plan."""
    try:
        return task.price(plan())
    except InputError:
        return math.inf
