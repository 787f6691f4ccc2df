"""`decoupled+` within the time of its rivals.

    quick_enough(task, choices, plan_of, (decoupled, fedavg))

More classes and filters at a peer make a minibatch longer where computing takes most of the time. Where links
do, exchanges in 8 bits make up for it. The simulator decides: the first choice is taken whose minibatch takes
no longer than the quickest rival's.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from weft.plans.plan import Plan
from weft.plans.task import Task
from weft.strategies.common.prefer import price_or_never
from weft.strategies.decoupled.decide import Chosen, layer_shares, peer_seconds


def quick_enough(
    task: Task,
    choices: Iterable[Chosen],
    plan_of: Callable[[Chosen], Plan],
    rivals: Sequence[Callable[[Task], Plan]],
) -> Chosen:
    """The first choice that costs no more than the cheapest rival; if there is none, the cheapest choice."""
    limit = min(price_or_never(task, partial(rival, task)) for rival in rivals)
    too_slow = []
    for choice in choices:
        computing = _computing(task, choice)
        price = task.price(plan_of(choice)) if computing <= limit else None
        if price is not None and price <= limit:
            return choice
        too_slow.append((choice, computing, price))
    best, least = too_slow[-1][0], math.inf
    for choice, computing, price in reversed(
        too_slow
    ):  # the lightest first: others need no price then
        if computing < least:
            price = task.price(plan_of(choice)) if price is None else price
            best, least = (choice, price) if price < least else (best, least)
    return best


def _computing(task: Task, choice: Chosen) -> float:
    """Seconds that half of the peers compute at least: no minibatch is shorter. 0 if not time is counted."""
    if task.objective != "time":
        return 0.0
    shares = layer_shares(task, choice)
    return statistics.median_low([peer_seconds(task, name, shares[name]) for name in choice.sets])
