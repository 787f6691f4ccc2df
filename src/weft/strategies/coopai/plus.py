"""coopai+: the same kind of plan as coopai's, made for physical links and unequal devices.

- It minimises the simulator's time, in which a receiver waits for the sender and messages share a medium.
- Rows are shared out in proportion to speed, with more for devices that have one neighbour or get the
  image first, and for fewer devices where maps are small (cut states).
- Inner rows are computed while rows from others are on their way.
- With objective=throughput many frames are under way at once; what counts is how many come through.

First a dynamic program over layers and cut states on a small event model (`coopai_plus_search`): with one
state for every number of devices, with all for the best of these. What it finds is judged beside coopai's
and sls's own blocks by the simulator's seconds (`round_clock`); then small changes to the winner are tried
(`coopai_polish`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from weft.codecs.registry import coded_bytes
from weft.errors import InputError
from weft.plans import options
from weft.plans.plan import Plan
from weft.plans.strategy import ONLY_INFERS, strategy
from weft.plans.task import Task
from weft.strategies.coopai.block_turns import even
from weft.strategies.coopai.book import Book, Weights
from weft.strategies.coopai.clock import Candidate, RoundClock
from weft.strategies.coopai.events import Channel, Latency, Load
from weft.strategies.coopai.geometry import VALUE_BYTES, Geometry, check_rows, geometry_of
from weft.strategies.coopai.passthrough import as_printed
from weft.strategies.coopai.plus_search import Way, best_ways
from weft.strategies.coopai.polish import ROW_MODES, SEEDS, Change, changes, move, polish
from weft.strategies.coopai.search import Split, best_splits
from weft.strategies.coopai.sequence import task_in_sequence
from weft.strategies.coopai.slicing import Block
from weft.strategies.coopai.strategy import OPTIONS, cell_of, enough_rows, places, rounds_plan

TILTS = (0.0, 0.1, 0.25, 0.5)  # more rows at the front than at the back, by this part
ENDS = 0.12  # more rows at both ends
NUMBERS = 2  # of devices that are looked at closely
WAYS = 3  # of each that are priced
IN_FLIGHT = (1, 2, 4, 8, 12)  # frames
POLISH = 400  # changes
SLOW_POLISH = 100  # where only the simulator itself tells the price
LARGE = 1 << 20
MB = 1e6


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
    needs=frozenset({"graph"}),
    refuses=ONLY_INFERS,
)
def coopai_plus(task: Task) -> Plan:
    planner = _Planner(task)
    choices = [planner.best()]
    if planner.streams:  # what is best for one frame may be best for many, perhaps one by one
        other = {k: v for k, v in task.options.items() if k not in ("objective", "in_flight")}
        choices.append(_Planner(dataclasses.replace(task, batch=1, options=other)).best())
        numbers = [n for n in IN_FLIGHT if n <= task.batch]
        if "in_flight" in task.options:  # a limit: the batch may have fewer frames
            numbers = [planner.in_flight]
        choices = [choice._replace(in_flight=n) for choice in choices for n in numbers]
    best = planner.fastest(choices)[1]
    tries = options.integer(task, "polish", planner.tries)
    seeds = SEEDS if planner.streams or not planner.overlap else SEEDS[:1]
    ends = [polish(best, planner.price, tries, planner.changes(), seed) for seed in seeds]
    return planner.plan(min(ends, key=lambda end: end[0])[1])


class _Planner:
    """The task with its layers in sequence, and what a candidate costs."""

    def __init__(self, task: Task) -> None:
        self.cell = cell_of(task, "coopai+")
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
        if "in_flight" in task.options and not self.streams:
            raise InputError(
                f"--set in_flight={task.options['in_flight']} is only for a stream of frames; "
                "add --set objective=throughput, or leave it out"
            )
        self.in_flight = options.integer(task, "in_flight", 8) if self.streams else 1
        self.fixed = options.integer(task, "devices", 0, high=len(self.cell.devices))
        self.samples = samples = 1 if self.streams else task.batch  # that are computed at once
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
        self.clocked = self._clocked()
        self.clocks: dict[int, RoundClock] = {}

    def best(self) -> Candidate:
        found = list(self.known())
        seconds = math.inf
        if found:
            seconds, known = self.fastest(found)
            found = [known]
        for k in self.numbers(seconds):
            for way in self.ways(k, self._states(k))[:WAYS]:
                found.append(Candidate(k, way.blocks, way.overlap, self.in_flight))
        return self.fastest(found)[1]

    def fastest(self, candidates: list[Candidate]) -> tuple[float, Candidate]:
        prices = [self.price(candidate) for candidate in candidates]
        least = prices.index(min(prices))
        return prices[least], candidates[least]

    def known(self) -> Iterator[Candidate]:
        """coopai's and sls's own choice, with and without overlap."""
        printed = as_printed(self.geometry)
        for single in (False, True):
            splits = best_splits(printed, self.cell.speeds, len(self.cell.devices), single=single)
            possible = [
                split
                for split in splits
                if self.fixed in (0, split.devices) and enough_rows(printed, split)
            ]
            for split in sorted(possible, key=lambda split: split.seconds)[:1]:
                blocks = _even_blocks(self.geometry, split)
                for overlap in (False, True) if self.overlap else (False,):
                    each = (overlap,) * len(blocks)
                    yield Candidate(split.devices, blocks, each, self.in_flight)

    def numbers(self, seconds: float) -> list[int]:
        """How many devices to look at: as the user said, else those that look best at first. Left out
        are so few that their computing alone takes longer than `seconds`."""
        if self.fixed:
            return [self.fixed] if self.fixed > 1 else []
        speeds = 1 / self.seconds.sum(axis=0)
        hopeful = [k for k in range(2, len(speeds) + 1) if 1 / speeds[:k].sum() < seconds]
        first = {k: self.even_seconds(k) for k in hopeful[::2]}  # every other, then beside the best
        best = min(first, key=lambda k: first[k], default=0)
        first |= {k: self.even_seconds(k) for k in (best - 1, best + 1) if k in hopeful}
        close = NUMBERS if self.overlap and not self.streams else NUMBERS + 1
        return sorted(first, key=lambda k: first[k])[:close]

    def even_seconds(self, k: int) -> float:
        """Of the best way with one state."""
        return self.ways(k, (self._even(k),))[0].seconds

    def ways(self, k: int, states: tuple[Weights, ...]) -> list[Way]:
        book = Book(self.geometry, states, self.seconds[:, :k])
        return best_ways(book, self.clock, overlap=self.overlap)

    @property
    def tries(self) -> int:
        """Changes to try; a price takes as many times as long as there are frames."""
        most = POLISH if self.clocked else SLOW_POLISH
        return max(3 * most // self.task.batch, 1) if self.streams else most

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
        if not self.clocked:
            return self.task.price(self.plan(candidate))
        k = candidate.devices
        if k not in self.clocks:
            frames = self.task.batch if self.streams else 1
            self.clocks[k] = RoundClock(self.task, self.cell.devices[:k], self.samples, frames)
        return self.clocks[k].seconds(candidate)

    def _clocked(self) -> bool:
        """Whether the clock tells the price: all is on one medium, and nobody lacks memory."""
        task, profile, sizes = self.task, self.task.profile, self.geometry.sizes.values()
        routes = [task.fleet.route(self.cell.gateway, device) for device in self.cell.devices]
        cuts = max(profile.cut_bytes(m) for m in range(len(profile.layers) + 1))
        most = sum(layer.param_bytes for layer in profile.layers)
        most += 4 * (cuts + max(sizes) * VALUE_BYTES) * task.batch  # a device has up to three turns
        memory = [task.fleet.device(d).memory_mb for d in (self.cell.gateway, *self.cell.devices)]
        return {hops[0].channel for hops in routes if len(hops) == 1} == {
            self.cell.medium.name
        } and all(room is None or room * MB >= most for room in memory)

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


def _even_blocks(geometry: Geometry, split: Split) -> tuple[Block, ...]:
    """The blocks of a faithful plan; even shares of rows as numbers, so that they can be changed."""
    return tuple(
        Block(b.layers, b.mode, tuple(y - x for x, y in even(places(geometry, b), split.devices)))
        if b.mode in ROW_MODES
        else b
        for b in split.blocks
    )
