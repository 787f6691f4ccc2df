"""A layer pipeline over any number of devices.

    pi    | layers 0-2 |            cut 3            | micro-batches 0 1 2 3 follow one another
    nuc   |            | layers 3-5 |                |
    cloud |                         | layers 6-7     |

`cuts` proposes rows of devices with their best cuts, for a full pipeline and for a serial step. Each
device alone is proposed too. The simulator (`task.price`) then compares the proposals with several
numbers of micro-batches. At the end the winner's cuts are moved by one layer as long as that helps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from weft.errors import InputError, WeftError
from weft.plans import options
from weft.plans.plan import Plan
from weft.plans.strategy import strategy
from weft.plans.task import Task
from weft.strategies.chain import cuts
from weft.strategies.common.costs import Costs
from weft.strategies.common.stages import layer_plan, runs

PIECES = (1, 2, 4, 8, 16)  # numbers of micro-batches that are tried if the user sets none
EVERY_ORDER = 5  # all orders of at most so many devices are tried: 325 orders
KEEP = 4  # rows of devices that each goal may propose
MOST_ROWS = 400  # that are tried one by one if something else than time counts
ROUNDS = 50  # a limit for moving cuts, far above what is ever needed


class Choice(NamedTuple):
    """A candidate: a device for each layer, and how the minibatch is cut."""

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
    """The plan with the least predicted time (or period, for throughput) that fits the devices' memory.

    InputError for options that contradict; WeftError if no plan fits.
    """
    costs = Costs(task)
    objective = options.choice(task, "objective", ("latency", "throughput"), "latency")
    if task.mode == "train" and "objective" in task.options:
        raise InputError(
            f"--set objective={objective} is not allowed in training; leave it out: "
            "a training step has only its time"
        )
    devices = options.device_list(task, "devices")
    if len(devices) > costs.layers:
        raise InputError(
            f"--set devices={task.options['devices']} is not allowed; "
            f"{task.profile.model} has {costs.layers} layers, so it must be {costs.layers} or fewer"
        )
    search = _Search(task, costs, throughput=objective == "throughput")
    candidates = proposals(task, costs, devices)
    if task.objective != "time":  # the proposals are those of the fastest rows
        candidates = list(dict.fromkeys([*candidates, *every_row(task, costs, devices)]))
    for assignment in candidates:
        for pieces, flying in search.ladder(assignment):
            search.consider(Choice(assignment, pieces, flying))
    search.move_cuts()
    return search.result(objective)


def proposals(task: Task, costs: Costs, devices: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Several assignments of a device to each layer. The simplest come first and win at equal price.

    `devices` is the row that the user named. If it is empty, rows are searched.
    """
    goals = (cuts.bottleneck(costs), cuts.serial(costs))
    cuttings: list[cuts.Cutting] = []
    if devices:
        cuttings += [c for goal in goals if (c := cuts.best_cuts(costs, goal, devices)) is not None]
    else:
        near = [name for name in task.fleet.names if task.fleet.connected(task.source, name)]
        cuttings += [
            cuts.Cutting(costs.total(name), (name,), ())
            for name in near
            if costs.fits(name, 0, costs.layers - 1)
        ]
        for goal in goals:
            rows = [
                row for follow in _follows(task, costs, near) for row in _rows(costs, goal, follow)
            ]
            rows.sort(key=lambda row: (row.value, len(row.order)))
            cuttings += rows[:KEEP]
    return list(dict.fromkeys(cutting.assignment(costs.layers) for cutting in cuttings))


def every_row(task: Task, costs: Costs, devices: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """All rows of devices with all of their cuts, the shortest rows first, but no more than MOST_ROWS."""
    near = devices or tuple(
        name for name in task.fleet.names if task.fleet.connected(task.source, name)
    )
    lengths = [len(devices)] if devices else range(1, min(len(near), costs.layers) + 1)
    rows = (
        cuts.Cutting(0.0, order, places).assignment(costs.layers)
        for count in lengths
        for order in ([devices] if devices else itertools.permutations(near, count))
        for places in itertools.combinations(range(1, costs.layers), count - 1)
    )
    return itertools.islice(rows, MOST_ROWS)


def _rows(
    costs: Costs, goal: cuts.Goal, follow: Callable[[tuple[str, ...]], Iterable[str]]
) -> list[cuts.Cutting]:
    return [row for row in cuts.cuttings(costs, goal, follow) if len(row.order) > 1]


def _follows(
    task: Task, costs: Costs, names: list[str]
) -> list[Callable[[tuple[str, ...]], Iterable[str]]]:
    """Rules for who may come next: any of a few fast devices; in a large fleet also one long row of all."""
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
    """The best choice so far, and the choices that the simulator has already priced."""

    def __init__(self, task: Task, costs: Costs, throughput: bool) -> None:
        self.task = task
        self.costs = costs
        self.throughput = throughput
        self.best: Choice | None = None
        self.value = math.inf
        self.seen: set[Choice] = set()

    def ladder(self, assignment: tuple[str, ...]) -> list[tuple[int, int]]:
        """(micro-batches, in flight) pairs to try: the user's numbers, else a few of each."""
        task, stages = self.task, len(set(assignment))
        pieces = [p for p in PIECES if p <= task.batch]
        if self.throughput or "micro_batches" in task.options:
            pieces = [options.micro_batches(task)]
        steps: list[tuple[int, int]] = []
        for count in pieces:
            # 1 in flight needs least memory. As many as stages fill the devices, twice as many the links too.
            flights = sorted({min(count, n) for n in (1, stages, 2 * stages, count)})
            if "in_flight" in task.options:
                flights = [options.in_flight(task, 1)]
            steps += [(count, flying) for flying in flights]
        return steps

    def consider(self, choice: Choice) -> bool:
        """Price a choice; True if it is the best so far."""
        if choice in self.seen:
            return False
        self.seen.add(choice)
        if self.throughput:
            value = self.costs.period(choice.assignment)
        else:
            value = self.task.price(self.plan(choice))
        # A gain in the last digits is rounding. Without this limit the simplest plan could lose by it.
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
            if not any([self.consider(choice) for choice in moved]):  # a list: all are considered
                return

    def fits(self, assignment: tuple[str, ...]) -> bool:
        """Whether each device can hold the weights of its layers."""
        return all(self.costs.fits(*run) for run in runs(assignment))

    def plan(self, choice: Choice) -> Plan:
        """The plan of a choice."""
        return layer_plan(
            self.task,
            "chain",
            choice.assignment,
            micro_batches=choice.micro_batches,
            in_flight=choice.in_flight,
        )

    def result(self, objective: str) -> Plan:
        """The plan of the best choice, with its numbers for people; WeftError if no choice fits."""
        if self.best is None:
            raise WeftError(
                f"strategy chain found no plan for {self.task.profile.model} that fits the "
                "devices' memory (memory_mb); add a larger device, or take a smaller batch"
            )
        plan = self.plan(self.best)
        numbers: dict[str, object] = {
            "micro_batches": plan.micro_batches,
            "in_flight": plan.in_flight,
            "period_s": self.costs.period(self.best.assignment),
            "considered": len(self.seen),
        }
        if self.task.mode == "infer":
            numbers["objective"] = objective
        return plan.deciding(**numbers)


def neighbours(assignment: tuple[str, ...]) -> list[tuple[str, ...]]:
    """All assignments with the same devices in the same order and one cut moved by one layer."""
    moved = []
    for m in range(1, len(assignment)):
        before, after = assignment[m - 1], assignment[m]
        if before == after:
            continue
        if assignment[m + 1 : m + 2] == (after,):
            moved.append((*assignment[:m], before, *assignment[m + 1 :]))
        if assignment[max(m - 2, 0) : m - 1] == (before,):
            moved.append((*assignment[: m - 1], after, *assignment[m:]))
    return moved
