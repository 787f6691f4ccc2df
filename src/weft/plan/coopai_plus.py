"""coopai+: the same kind of plan as coopai's, made for physical links and unequal devices.

- It minimises the simulator's time, in which a receiver waits for the sender and messages share a medium.
- Rows are shared out in proportion to speed, with more for devices that have one neighbour or get the
  image first, and for fewer devices where maps are small (cut states).
- Inner rows are computed while rows from others are on their way.
- With objective=throughput many frames are under way at once; what counts is how many come through.

First a dynamic program over layers and cut states on a small event model (`coopai_plus_search`), for
every number of devices; then the simulator judges the best of them beside coopai's and sls's own plans;
then small changes to the winner (`coopai_polish`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from weft.errors import InputError
from weft.plan import options
from weft.plan.coopai import OPTIONS, cell_of, coopai, places, rounds_plan, sls
from weft.plan.coopai_book import Book, Weights
from weft.plan.coopai_events import Channel, Latency, Load
from weft.plan.coopai_geometry import Geometry, check_rows, geometry_of
from weft.plan.coopai_plus_search import Way, best_ways
from weft.plan.coopai_polish import ROW_MODES, Candidate, Change, changes, move, polish
from weft.plan.plan import Plan
from weft.plan.registry import strategy
from weft.plan.sequence import task_in_sequence
from weft.plan.slicing import Block
from weft.plan.task import Task
from weft.plan.turns import even
from weft.plan.wire import coded_bytes

TILTS = (0.0, 0.1, 0.25, 0.5)  # more rows at the front than at the back, by this part
ENDS = 0.12  # more rows at both ends
NUMBERS = 3  # of devices that are looked at closely
WAYS = 3  # of each that the simulator judges
IN_FLIGHT = (1, 2, 4, 8, 12)  # frames
POLISH = 150  # changes; a stream's price takes as many times as long as it has frames
LARGE = 1 << 20


@strategy(
    "coopai+",
    "coopai for physical links: unequal shares, overlap, fewer devices where maps are small",
    modes=("infer",),
    options={
        "devices": OPTIONS["devices"],
        "overlap": "on | off: inner rows are computed while rows from others are on their way",
        "shares": "free | even: of rows, in proportion to speed and place, or all the same",
        "objective": "latency | throughput: of one answer, or of a batch of frames one by one",
        "in_flight": "with objective=throughput: how many frames may be under way at once",
        "polish": f"how many small changes are tried in the end; {POLISH} where it is not given",
    },
)
def coopai_plus(task: Task) -> Plan:
    planner = _Planner(task)
    choices = [planner.best()]
    if planner.streams:  # what is best for one frame may be best for many, perhaps one by one
        other = {k: v for k, v in task.options.items() if k not in ("objective", "in_flight")}
        choices.append(_Planner(dataclasses.replace(task, batch=1, options=other)).best())
        numbers = [planner.in_flight] if "in_flight" in task.options else IN_FLIGHT
        choices = [
            dataclasses.replace(choice, in_flight=n)
            for choice in choices
            for n in numbers
            if n <= task.batch
        ]
    seconds, best = planner.fastest(choices)
    tries = options.integer(task, "polish", max(POLISH // task.batch, 1))
    return planner.plan(polish(best, seconds, planner.price, tries, planner.changes()))


class _Planner:
    """The task with its layers in sequence, and what a candidate costs."""

    def __init__(self, task: Task) -> None:
        self.cell = cell_of(task, "coopai+")
        self.asked = task
        self.task = task_in_sequence(task, "coopai+")
        assert self.task.graph is not None
        self.geometry = geometry_of(self.task.graph)
        check_rows(self.geometry)
        self.overlap = options.choice(task, "overlap", ("on", "off"), "on") == "on"
        self.free = options.choice(task, "shares", ("free", "even"), "free") == "free"
        objective = options.choice(task, "objective", ("latency", "throughput"), "latency")
        self.streams = objective == "throughput"
        if self.streams and task.batch < 2:
            raise InputError(
                f"--set objective=throughput with batch = {task.batch}: a stream has several frames; "
                "say how many with --batch, such as --batch 8"
            )
        self.in_flight = options.integer(task, "in_flight", 8) if self.streams else 1
        samples = 1 if self.streams else task.batch  # that are computed at once
        profile = self.task.profile
        layers = range(len(profile.layers))
        self.seconds = np.array(
            [[profile.devices[d].forward(n, n, samples) for d in self.cell.devices] for n in layers]
        )
        hop = task.fleet.route(self.cell.gateway, self.cell.devices[0])[0]
        coded = coded_bytes(LARGE, options.codec(task)) / LARGE
        image = coded_bytes(LARGE, options.input_codec(task)) / LARGE
        channel = Channel(samples * coded / hop.bytes_per_s, hop.latency_s, image / coded)
        self.clock = Load(channel) if self.streams else Latency(channel)

    def best(self) -> Candidate:
        return self.fastest(list(self.candidates(self.numbers())))[1]

    def fastest(self, candidates: list[Candidate]) -> tuple[float, Candidate]:
        prices = [self.price(candidate) for candidate in candidates]
        least = prices.index(min(prices))
        return prices[least], candidates[least]

    def numbers(self) -> list[int]:
        """How many devices to look at: as the user said, else those that look best at first."""
        most = len(self.cell.devices)
        fixed = options.integer(self.task, "devices", 0, high=most)
        if fixed or most == 1:
            return [fixed or 1]
        first = {k: self.ways(k, (self._even(k),))[0].seconds for k in range(2, most + 1)}
        return sorted(first, key=lambda k: first[k])[:NUMBERS]

    def candidates(self, numbers: list[int]) -> Iterator[Candidate]:
        """coopai's and sls's plans, with and without overlap; the best ways of the search."""
        for make in (coopai, sls):
            for k in dict.fromkeys([*([None] if len(numbers) > 1 else []), *numbers]):
                given = {} if k is None else {"devices": str(k)}
                try:
                    plan = make(dataclasses.replace(self.asked, options=given))
                except InputError:
                    continue  # more devices than rows
                blocks = _even_blocks(self.geometry, plan)
                for overlap in (False, True) if self.overlap else (False,):
                    yield Candidate(
                        plan.decisions["devices"], blocks, (overlap,) * len(blocks), self.in_flight
                    )
        for k in numbers:
            for way in self.ways(k, self._states(k))[:WAYS] if k > 1 else ():
                yield Candidate(k, way.blocks, way.overlap, self.in_flight)

    def ways(self, k: int, states: tuple[Weights, ...]) -> list[Way]:
        book = Book(self.geometry, states, self.seconds[:, :k])
        return best_ways(book, self.clock, overlap=self.overlap)

    def changes(self) -> list[Change]:
        """What may be tried in the end."""
        found = changes(self.geometry, self.overlap)
        return found if self.free else [change for change in found if change is not move]

    def _even(self, k: int) -> Weights:
        """In proportion to speed."""
        if not self.free:
            return (1.0,) * k
        total = self.seconds.sum(axis=0)[:k]
        return tuple(float(total.min() / s) for s in total)

    def _states(self, k: int) -> tuple[Weights, ...]:
        """The cut states: ways to share out rows among k devices."""
        even = self._even(k)
        if not self.free:
            return (even,)
        middle = (k - 1) / 2
        found = [
            tuple(w * (1 + tilt * (middle - d) / middle) for d, w in enumerate(even))
            for tilt in TILTS
        ]
        found.append(tuple(w * (1 + ENDS * (d in (0, k - 1))) for d, w in enumerate(even)))
        for few in range(1, min(k, 7)):  # some of them, evenly spread
            chosen = {round((n + 0.5) * k / few - 0.5) for n in range(few)}
            found.append(tuple(w * (d in chosen) for d, w in enumerate(even)))
        return tuple(dict.fromkeys(found))

    def price(self, candidate: Candidate) -> float:
        return self.task.price(self.plan(candidate))

    def plan(self, chosen: Candidate) -> Plan:
        return rounds_plan(
            self.task,
            "coopai+",
            self.cell.devices[: chosen.devices],
            chosen.blocks,
            overlap=chosen.overlap,
            halves=chosen.halves,
            micro_batches=self.task.batch if self.streams else 1,
            in_flight=chosen.in_flight,
            decisions={
                "objective": "throughput" if self.streams else "latency",
                "shares": [list(block.shares) for block in chosen.blocks],
                "overlap": list(chosen.overlap),
                **({"in_flight": chosen.in_flight} if self.streams else {}),
            },
        )


def _even_blocks(geometry: Geometry, plan: Plan) -> tuple[Block, ...]:
    """The blocks of a faithful plan; even shares of rows as numbers, so that they can be changed."""
    found = []
    k = plan.decisions["devices"]
    for layers, mode in zip(plan.decisions["blocks"], plan.decisions["modes"], strict=True):
        block = Block((layers[0], layers[1]), mode)
        if mode in ROW_MODES:
            shares = tuple(b - a for a, b in even(places(geometry, block), k))
            block = Block(block.layers, mode, shares)
        found.append(block)
    return tuple(found)
