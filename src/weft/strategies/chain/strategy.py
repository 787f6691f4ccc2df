"""A layer pipeline over any number of devices.

    pi    | layers 0-2 |            cut 3            | micro-batches 0 1 2 3 follow one another
    nuc   |            | layers 3-5 |                |
    cloud |                         | layers 6-7     |

`cuts` proposes rows of devices with their best cuts, for a full pipeline and for a serial step. Each
device alone is proposed too. The simulator (`task.price`) then compares the proposals with several
numbers of micro-batches. At the end the winner's cuts are moved by one layer, or to the next block, as long
as that helps.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from weft.errors import InputError, WeftError
from weft.plans import options
from weft.plans.plan import Plan
from weft.plans.strategy import strategy
from weft.plans.task import Task
from weft.strategies.chain import cuts
from weft.strategies.chain.bounds import Bounds
from weft.strategies.chain.rows import RowSearch
from weft.strategies.common.costs import Costs
from weft.strategies.common.stages import layer_plan, runs

PIECES = (1, 2, 4, 8, 16)  # numbers of micro-batches that are tried if the user sets none
EVERY_ORDER = 5  # all orders of at most so many devices are tried: 325 orders
KEEP = 4  # rows of devices that each goal may propose
MOST_ROWS = 400  # that are tried one by one if something else than time counts
MOST_STARTS = 12  # rows that the search over rows of devices may begin with
MOST_MOVES = 12  # prices of changed rows in each round
ROUNDING = 1e-9
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
    if len(devices) > len(costs.places) - 1:
        raise InputError(
            f"--set devices={task.options['devices']} is not allowed; "
            f"{task.profile.model} has {costs.layers} layers and can be cut into "
            f"{len(costs.places) - 1} parts: give at most {len(costs.places) - 1} devices"
        )
    search = Search(task, costs, throughput=objective == "throughput")
    candidates = proposals(task, costs, devices)
    if task.objective != "time":  # the proposals are those of the fastest rows
        candidates = list(dict.fromkeys([*candidates, *every_row(task, costs, devices)]))
    if not devices and search.bounded and len(task.fleet.devices) > EVERY_ORDER:
        begin = [tuple(dict.fromkeys(assignment)) for assignment in search.promising(candidates)]
        rows = RowSearch(task, costs, search.bounds)
        candidates = list(dict.fromkeys([*candidates, *rows.better(begin)]))
        search.survey(candidates)
        search.change_rows(rows)
    else:
        search.survey(candidates)
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


class Search:
    """The best choice so far, and the choices that the simulator has already priced."""

    def __init__(self, task: Task, costs: Costs, throughput: bool) -> None:
        self.task = task
        self.costs = costs
        self.throughput = throughput
        self.bounds = Bounds(task, costs)
        # A bound is one of seconds. A throughput costs no price, so it needs none.
        self.bounded = task.simulated and task.objective == "time" and not throughput
        self.best: Choice | None = None
        self.value = math.inf
        self.prices: dict[Choice, float] = {}

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

    def survey(self, candidates: Sequence[tuple[str, ...]]) -> None:
        """Price the candidates with all their micro-batches, the most promising first. Those whose bound is
        above the best price are left out. At equal price the first of the list wins, and few pieces."""
        places: dict[Choice, tuple[int, int]] = {}
        # (bound, place in the list, place on the ladder); -1: the busiest device's bound, which is cheap
        waiting: list[tuple[float, int, int, Choice | None]] = [
            (self.bounds.computing(assignment) if self.bounded else 0.0, number, -1, None)
            for number, assignment in enumerate(candidates)
        ]
        heapify(waiting)
        while waiting and waiting[0][0] <= self.value * (1 + ROUNDING):
            _, number, _, choice = heappop(waiting)
            if choice is not None:
                self.value = min(self.value, self.price(choice))
                continue
            for place, step in enumerate(self.ladder(candidates[number])):
                choice = Choice(candidates[number], *step)
                if places.setdefault(choice, (number, place)) == (number, place):
                    heappush(waiting, (self.bound(choice), number, place, choice))
        self.value = math.inf
        for choice in sorted(self.prices, key=places.__getitem__):
            self.take(choice, self.prices[choice])

    def promising(self, candidates: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
        """The candidates whose busiest device has least to do."""
        return sorted(candidates, key=self.bounds.computing)[:MOST_STARTS]

    def bound(self, choice: Choice) -> float:
        """What a choice costs at least; 0 where nothing is known."""
        if not self.bounded:
            return 0.0
        return self.bounds.at_least(*choice)

    def price(self, choice: Choice) -> float:
        """What a choice costs; each is priced once."""
        if choice not in self.prices:
            self.prices[choice] = (
                self.costs.period(choice.assignment)
                if self.throughput
                else self.task.price(self.plan(choice))
            )
        return self.prices[choice]

    def take(self, choice: Choice, value: float) -> bool:
        """Keep a choice if it is the best so far; True if it is."""
        # A gain in the last digits is rounding. Without this limit the simplest plan could lose by it.
        if value < self.value * (1 - ROUNDING) or (self.best is None and value < math.inf):
            self.best, self.value = choice, value
            return True
        return False

    def consider(self, choice: Choice) -> bool:
        """Price a choice, unless it cannot be better; True if it is the best so far."""
        if choice in self.prices or self.bound(choice) > self.value:
            return False
        return self.take(choice, self.price(choice))

    def change_rows(self, rows: RowSearch) -> None:
        """Change one device of the row as long as that helps."""
        for _ in range(ROUNDS):
            if self.best is None:
                return
            order = tuple(dict.fromkeys(self.best.assignment))
            moved = [
                Choice(near, *step)
                for near in rows.around(order, self.value)
                for step in self.ladder(near)
            ]
            moved.sort(key=self.bound)
            if not any([self.consider(choice) for choice in moved[:MOST_MOVES]]):
                return

    def move_cuts(self) -> None:
        """Move one cut to a place nearby, or change the micro-batches, as long as that helps."""
        for _ in range(ROUNDS):
            if self.best is None:
                return
            assignment, pieces, flying = self.best
            moved = [Choice(near, pieces, flying) for near in self.near(assignment)]
            moved = [choice for choice in moved if self.fits(choice.assignment)]
            moved += [Choice(assignment, *step) for step in self.ladder(assignment)]
            if not any([self.consider(choice) for choice in moved]):  # a list: all are considered
                return

    def near(self, assignment: tuple[str, ...]) -> list[tuple[str, ...]]:
        """All assignments with one cut moved by one layer or to the next place."""
        places = [int(m) for m in self.costs.places]
        return list(dict.fromkeys([*neighbours(assignment), *neighbours(assignment, places)]))

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
            "considered": len(self.prices),
        }
        if self.task.mode == "infer":
            numbers["objective"] = objective
        return plan.deciding(**numbers)


def neighbours(
    assignment: tuple[str, ...], places: Sequence[int] | None = None
) -> list[tuple[str, ...]]:
    """All assignments with the same devices in the same order and one cut moved to the next place before or
    after it: by one layer, if no places are given."""
    places = range(len(assignment) + 1) if places is None else places
    stages = runs(assignment)
    moved = []
    for (before, begin, _), (after, m, last) in itertools.pairwise(stages):
        place = bisect.bisect_left(places, m)
        later = places[bisect.bisect_right(places, m)]
        if later <= last:
            moved.append((*assignment[:m], *[before] * (later - m), *assignment[later:]))
        earlier = places[place - 1]
        if earlier > begin:
            moved.append((*assignment[:earlier], *[after] * (m - earlier), *assignment[m:]))
    return moved
