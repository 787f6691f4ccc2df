"""A layer pipeline over any number of devices.

    pi    | layers 0-2 |            cut 3            | micro-batches 0 1 2 3 follow one another
    nuc   |            | layers 3-5 |                |
    cloud |                         | layers 6-7     |

Exact programmes (`cuts`) propose rows of devices with their cuts, for a full pipeline and for a
serial step; every device alone is proposed too. The simulator (`task.price`) then decides among
them, over a ladder of micro-batches, and the winner's cuts are moved while that helps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from weft.errors import InputError, WeftError
from weft.plans import options
from weft.plans.plan import Plan
from weft.plans.strategy import strategy
from weft.plans.task import Task
from weft.strategies.chain import cuts
from weft.strategies.common.costs import Costs
from weft.strategies.common.stages import layer_plan, runs

PIECES = (1, 2, 4, 8, 16)  # micro-batches tried where the user does not say
EVERY_ORDER = 5  # all orders of up to so many devices are tried: 325 of them
KEEP = 4  # rows of devices that each programme may propose
ROUNDS = 50  # an end to moving cuts, far beyond what is ever needed


class Choice(NamedTuple):
    assignment: tuple[str, ...]  # the device of each layer
    micro_batches: int
    in_flight: int


@strategy(
    "chain",
    "a layer pipeline over any number of devices",
    options={
        **options.MICRO_BATCHES,
        "devices": "a,b,c: the devices in the order of the layers; chosen where not given",
        "objective": "latency | throughput: what an inference is planned for",
    },
)
def chain(task: Task) -> Plan:
    costs = Costs(task)
    objective = options.choice(task, "objective", ("latency", "throughput"), "latency")
    if task.mode == "train" and "objective" in task.options:
        raise InputError(
            f"--set objective={objective} is not allowed in training; leave it out: "
            "a training step has only its time"
        )
    given = options.device_list(task, "devices")
    if len(given) > costs.layers:
        raise InputError(
            f"--set devices={task.options['devices']} is not allowed; "
            f"{task.profile.model} has {costs.layers} layers, so it must be {costs.layers} or fewer"
        )
    search = _Search(task, costs, throughput=objective == "throughput")
    for assignment in proposals(task, costs, given):
        for pieces, flying in search.ladder(assignment):
            search.consider(Choice(assignment, pieces, flying))
    search.move_cuts()
    return search.result(objective)


def proposals(task: Task, costs: Costs, given: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """A device for every layer, several ways; the simplest come first and win at equal price."""
    goals = (cuts.bottleneck(costs), cuts.serial(costs))
    found: list[cuts.Cutting] = []
    if given:
        found += [c for goal in goals if (c := cuts.best_cuts(costs, goal, given)) is not None]
    else:
        near = [name for name in task.fleet.names if task.fleet.connected(task.source, name)]
        found += [
            cuts.Cutting(costs.total(name), (name,), ())
            for name in near
            if costs.fits(name, 0, costs.layers - 1)
        ]
        for goal in goals:
            rows = [
                row for follow in _follows(task, costs, near) for row in _rows(costs, goal, follow)
            ]
            rows.sort(key=lambda row: (row.value, len(row.order)))
            found += rows[:KEEP]
    return list(dict.fromkeys(cutting.assignment(costs.layers) for cutting in found))


def _rows(
    costs: Costs, goal: cuts.Goal, follow: Callable[[tuple[str, ...]], Iterable[str]]
) -> list[cuts.Cutting]:
    return [row for row in cuts.cuttings(costs, goal, follow) if len(row.order) > 1]


def _follows(
    task: Task, costs: Costs, names: list[str]
) -> list[Callable[[tuple[str, ...]], Iterable[str]]]:
    """Who may come next: any of a few; in a large fleet also all of them in one long row."""
    tiers = ("device", "edge", "cloud")
    tier = {device.name: tiers.index(device.tier) for device in task.fleet.devices}
    fast = sorted(names, key=costs.total)
    first_of_tier = [next((n for n in fast if tier[n] == t), task.source) for t in range(3)]
    pool = list(dict.fromkeys([task.source, *first_of_tier, *fast]))[:EVERY_ORDER]
    follows: list[Callable[[tuple[str, ...]], Iterable[str]]] = [
        lambda order: [name for name in pool if name not in order]
    ]
    if len(names) > EVERY_ORDER:
        others = sorted(
            (n for n in names if n != task.source), key=lambda n: (tier[n], costs.total(n))
        )
        row = [task.source, *others]
        follows.append(lambda order: row[len(order) : len(order) + 1])
    return follows


class _Search:
    """The best choice so far, and what has been asked of the simulator."""

    def __init__(self, task: Task, costs: Costs, throughput: bool) -> None:
        self.task = task
        self.costs = costs
        self.throughput = throughput
        self.best: Choice | None = None
        self.value = math.inf
        self.seen: set[Choice] = set()

    def ladder(self, assignment: tuple[str, ...]) -> list[tuple[int, int]]:
        """(micro-batches, in flight) to try: as the user said, else a few of each."""
        task, stages = self.task, len(set(assignment))
        pieces = [p for p in PIECES if p <= task.batch]
        if self.throughput or "micro_batches" in task.options:
            pieces = [options.micro_batches(task)]
        steps: list[tuple[int, int]] = []
        for count in pieces:
            # One is lean; as many as stages fills the pipe, twice that also the links between them.
            flights = sorted({min(count, n) for n in (1, stages, 2 * stages, count)})
            if "in_flight" in task.options:
                flights = [options.in_flight(task, 1)]
            steps += [(count, flying) for flying in flights]
        return steps

    def consider(self, choice: Choice) -> bool:
        """Price a choice; whether it is the best so far."""
        if choice in self.seen:
            return False
        self.seen.add(choice)
        if self.throughput:
            value = self.costs.period(choice.assignment)
        else:
            value = self.task.price(self.plan(choice))
        # Better must mean more than the last digit, or the simplest would lose by rounding.
        if value < self.value * (1 - 1e-9) or (self.best is None and value < math.inf):
            self.best, self.value = choice, value
            return True
        return False

    def move_cuts(self) -> None:
        """Move one cut by one layer, or change the micro-batches, as long as that helps."""
        for _ in range(ROUNDS):
            if self.best is None:
                return
            assignment, pieces, flying = self.best
            moved = [Choice(near, pieces, flying) for near in neighbours(assignment)]
            moved = [choice for choice in moved if self.fits(choice.assignment)]
            moved += [Choice(assignment, *step) for step in self.ladder(assignment)]
            if not any([self.consider(choice) for choice in moved]):  # all of them, not the first
                return

    def fits(self, assignment: tuple[str, ...]) -> bool:
        return all(self.costs.fits(*run) for run in runs(assignment))

    def plan(self, choice: Choice) -> Plan:
        return layer_plan(
            self.task,
            "chain",
            choice.assignment,
            micro_batches=choice.micro_batches,
            in_flight=choice.in_flight,
        )

    def result(self, objective: str) -> Plan:
        if self.best is None:
            raise WeftError(
                f"strategy chain found no plan for {self.task.profile.model} that fits the "
                "devices' memory (memory_mb); add a larger device, or take a smaller batch"
            )
        plan = self.plan(self.best)
        more: dict[str, object] = {
            "micro_batches": plan.micro_batches,
            "in_flight": plan.in_flight,
            "period_s": self.costs.period(self.best.assignment),
            "considered": len(self.seen),
        }
        if self.task.mode == "infer":
            more["objective"] = objective
        return plan.deciding(**more)


def neighbours(assignment: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The same devices in the same order with one cut moved by one layer."""
    found = []
    for m in range(1, len(assignment)):
        before, after = assignment[m - 1], assignment[m]
        if before == after:
            continue
        if assignment[m + 1 : m + 2] == (after,):
            found.append((*assignment[:m], before, *assignment[m + 1 :]))
        if assignment[max(m - 2, 0) : m - 1] == (before,):
            found.append((*assignment[: m - 1], after, *assignment[m:]))
    return found
