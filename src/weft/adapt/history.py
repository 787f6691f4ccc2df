"""Which plans a run has had, and what a step took under each. A change that does not help is taken back.

    history = History()
    history.measured(plan, 0.025, step=50)
    history.seconds(plan, 60, predicted)       # 0.025: what was measured counts more than a prediction

A measured time counts for a while only, because conditions change. After every change the next one must wait
longer, so that a run does not swing between two plans that are equally good.
"""

from __future__ import annotations

from collections.abc import Collection

from weft.plans.plan import Plan

COUNTS_FOR = 1000  # minibatches for which a measured time is believed
LONGEST_WAIT = 16  # looks between two changes, at most


class History:
    """The plans of a run with their measured seconds."""

    def __init__(self) -> None:
        self._plans: list[tuple[Plan, float, int]] = []  # plan, seconds, minibatch
        self._next = 0  # the minibatch before which nothing is changed
        self._changes = 0

    def measured(self, plan: Plan, seconds: float, step: int) -> None:
        """A step of this plan has taken so long."""
        self._plans = [entry for entry in self._plans if not same_plan(entry[0], plan)]
        self._plans.append((plan, seconds, step))

    def seconds(self, plan: Plan, step: int, predicted: float) -> float:
        """What a step takes under a plan: measured if it ran not long ago, else predicted."""
        for known, seconds, at in self._plans:
            if same_plan(known, plan) and step - at <= COUNTS_FOR:
                return seconds
        return predicted

    def plans(self, reach: Collection[str]) -> list[Plan]:
        """The plans that ran before and can run with these devices."""
        return [plan for plan, _, _ in self._plans if set(plan.devices) <= set(reach)]

    def may_change(self, step: int) -> bool:
        """Whether the last change is long enough ago."""
        return step >= self._next

    def changed(self, step: int, every: int) -> None:
        """The plan changes now; `every` minibatches lie between two looks."""
        self._changes += 1
        self._next = step + every * min(2 ** (self._changes - 1), LONGEST_WAIT)


def same_plan(a: Plan, b: Plan) -> bool:
    """Whether two plans compute the same in the same places and order."""
    fields = ("shards", "micro_batches", "in_flight", "ahead", "stale", "codec", "schedule")
    return all(getattr(a, f) == getattr(b, f) for f in fields)
