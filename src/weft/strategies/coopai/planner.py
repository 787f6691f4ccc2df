"""The candidates of coopai+ for a task, and their prices.

planner = Planner(task)
planner.plan(planner.polished([planner.best()]))
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from weft.codecs.registry import coded_bytes
from weft.errors import InputError
from weft.plans import options
from weft.plans.plan import Plan
from weft.plans.task import Task
from weft.strategies.coopai.block_turns import even
from weft.strategies.coopai.book import DEEP, Book, Weights
from weft.strategies.coopai.clock import Candidate, RoundClock
from weft.strategies.coopai.crew import Crew
from weft.strategies.coopai.events import Clock, Latency, Load, MediumCost, OwnLinks
from weft.strategies.coopai.frames import frames_of, whole_frames
from weft.strategies.coopai.geometry import VALUE_BYTES, Geometry, check_rows, geometry_of
from weft.strategies.coopai.passthrough import as_printed
from weft.strategies.coopai.plus_search import Way, best_ways
from weft.strategies.coopai.polish import ROW_MODES, SEEDS, Change, changes, joined, move, polish
from weft.strategies.coopai.rows import Floats
from weft.strategies.coopai.search import Split, best_splits
from weft.strategies.coopai.sequence import task_in_sequence
from weft.strategies.coopai.slicing import Block
from weft.strategies.coopai.strategy import cell_of, enough_rows, places, rounds_plan

TILTS = (0.0, 0.1, 0.25, 0.5)  # the first devices get more rows than the last, by this share
ENDS = 0.12  # the devices at both ends get more rows, by this share
NUMBERS = 2  # numbers of devices that are searched closely
WAYS = 3  # candidates of each number that are priced
POLISH = 400  # small changes that are tried
FEWEST = 60  # small changes for a deep network
BOOK = 60_000  # the search's limit for states x states x devices x layers
SLOW_POLISH = 100  # small changes if only the simulator itself can give the price
LARGE = 1 << 20
MB = 1e6


class Planner:
    """The task with its layers in sequence, and the price of a candidate."""

    def __init__(self, task: Task) -> None:
        self.cell = cell_of(task, "coopai+", links=True)
        self.task = task_in_sequence(task, "coopai+")
        assert self.task.graph is not None
        self.geometry = geometry_of(self.task.graph, gathers=True)
        check_rows(self.geometry)
        self.paper = geometry_of(self.task.graph)
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
        self.frames = options.choice(task, "frames", ("either", "cut", "whole"), "either")
        if "frames" in task.options and not self.streams:
            raise InputError(
                f"--set frames={self.frames} is only for a stream of frames; "
                "add --set objective=throughput, or leave it out"
            )
        self.in_flight = options.integer(task, "in_flight", 8) if self.streams else 1
        self.fixed = options.integer(task, "devices", 0, high=len(self.cell.devices))
        self.helps = options.choice(task, "gateway", ("on", "off"), "on") == "on"
        # Samples that are computed at once.
        self.samples = samples = 1 if self.streams else task.batch
        profile = self.task.profile
        layers = range(len(profile.layers))
        everyone = (*self.cell.devices, self.cell.gateway)
        self.seconds = np.array(
            [[profile.devices[d].forward(n, n, samples) for d in everyone] for n in layers]
        )
        hops = [task.fleet.route(self.cell.gateway, device)[0] for device in self.cell.devices]
        hop = max(hops, key=lambda hop: hop.bytes_per_s)
        self.air = [hop.bytes_per_s / other.bytes_per_s for other in hops]
        coded = coded_bytes(LARGE, options.codec(task)) / LARGE
        image = coded_bytes(LARGE, options.input_codec(task)) / LARGE
        self.channel = MediumCost(samples * coded / hop.bytes_per_s, hop.latency_s, image / coded)
        self.clocked = self._clocked()
        self.clocks: dict[Crew, RoundClock] = {}

    def best(self) -> Candidate:
        """The fastest of the known candidates and those of the search."""
        candidates = list(self.known())
        seconds = math.inf
        if candidates:
            seconds, known = self.fastest(candidates)
            candidates = [known]
        for crew in self.crews(seconds):
            for way in self.ways(crew, self._states(crew))[:WAYS]:
                made = Candidate(crew.devices, way.blocks, way.overlap, self.in_flight)
                made = made._replace(gateway=crew.gateway)
                candidates += [joined(made), made]
        return self.fastest(candidates)[1]

    def fastest(self, candidates: list[Candidate]) -> tuple[float, Candidate]:
        """The candidate with the least price, and that price in seconds."""
        prices = [self.price(candidate) for candidate in candidates]
        least = prices.index(min(prices))
        return prices[least], candidates[least]

    def polished(self, choices: list[Candidate]) -> Candidate:
        """The fastest of them, after small changes."""
        best = self.fastest(choices)[1]
        tries = options.integer(self.task, "polish", self.tries)
        seeds = SEEDS if self.streams or not self.overlap else SEEDS[:1]
        ends = [polish(best, self.price, tries, self.changes(), seed) for seed in seeds]
        best = min(ends, key=lambda end: end[0])[1]
        return self.fastest([joined(best), best])[1]

    def whole_frames(self) -> Iterator[Plan]:
        """Plans in which devices get whole frames, one after the other.

        Only devices that finish some frame early enough take part, or as many as the user set.
        """
        for gateway in ((), (self.cell.gateway,)) if self.helps else ((),):
            everyone = (*self.cell.devices[: self.fixed or None], *gateway)
            busy = set(frames_of(self.task, everyone))
            workers = [name for place, name in enumerate(everyone) if place in busy]
            if self.fixed and len(workers) < len(everyone):
                continue
            count = len(workers)
            numbers = {min(n, self.task.batch) for n in (count, 2 * count, self.task.batch)}
            if "in_flight" in self.task.options:
                numbers = {self.in_flight}
            yield from whole_frames(self.task, "coopai+", workers, sorted(numbers))

    def known(self) -> Iterator[Candidate]:
        """Known candidates: the gateway alone, the fastest device alone, and the choices of coopai and sls.

        Those of coopai and sls come with and without overlap.
        """
        whole = Block((0, len(self.geometry.layers) - 1), "whole", (1,))
        if self.helps and not self.fixed:
            yield Candidate(0, (whole,), (False,), self.in_flight, gateway=True)
        if self.fixed < 2:
            yield Candidate(1, (whole,), (False,), self.in_flight)
        printed = as_printed(self.paper)
        for single in (False, True):
            splits = best_splits(printed, self.cell.speeds, len(self.cell.devices), single=single)
            possible = [
                split
                for split in splits
                if split.devices == self.fixed or (not self.fixed and enough_rows(printed, split))
            ]
            for split in sorted(possible, key=lambda split: split.seconds)[:1]:
                blocks = _even_blocks(self.geometry, split)
                for overlap in (False, True) if self.overlap else (False,):
                    each = (overlap,) * len(blocks)
                    yield Candidate(split.devices, blocks, each, self.in_flight)

    def crews(self, seconds: float) -> list[Crew]:
        """Who may take part: as many as the user set, else the most promising ones.

        Crews are left out whose computing alone takes longer than `seconds`.
        """
        promising: dict[Crew, float] = {}
        for gateway in (False, True) if self.helps else (False,):
            numbers = [self.fixed] if self.fixed else list(range(1, len(self.cell.devices) + 1))
            hopeful = [
                crew
                for k in numbers
                if (crew := Crew(k, gateway)).size > 1
                and 1 / (1 / self.spent(crew).sum(axis=0)).sum() < seconds
            ]
            deep = len(self.geometry.layers) > DEEP and len(hopeful) > 6
            # Every second or fourth number first, then those beside the best.
            step = 4 if deep else 2
            first = {crew: self.even_seconds(crew) for crew in hopeful[::step]}
            best = min(first, key=lambda crew: first[crew], default=Crew(0, gateway))
            beside = (Crew(best.devices - 1, gateway), Crew(best.devices + 1, gateway))
            promising |= first | {
                crew: self.even_seconds(crew) for crew in beside if crew in hopeful
            }
        close = NUMBERS if self.overlap and not self.streams else NUMBERS + 1
        order = sorted(promising, key=lambda crew: promising[crew])
        # The best crew without the gateway is kept too: the event model may overrate one with it.
        relaying = [crew for crew in order if not crew.gateway]
        return list(dict.fromkeys([*order[:close], *relaying[:1]]))

    def even_seconds(self, crew: Crew) -> float:
        """Seconds of the best way with one cut state."""
        return self.ways(crew, (self._even(crew),))[0].seconds

    def spent(self, crew: Crew) -> Floats:
        """Seconds of every layer on every device of a crew."""
        last = len(self.cell.devices)
        columns: Floats = self.seconds[:, [last if d < 0 else d for d in crew.places]]
        return columns

    def ways(self, crew: Crew, states: tuple[Weights, ...]) -> list[Way]:
        """The best ways of the search for a crew with these cut states."""
        air = [1.0 if d < 0 else self.air[d] for d in crew.places]
        book = Book(self.geometry, states, self.spent(crew), crew.seat, air)
        return best_ways(book, self.clock(crew), overlap=self.overlap)

    def clock(self, crew: Crew) -> Clock:
        """The event model of this crew."""
        shared = self.cell.medium is not None
        if not self.streams:
            return (Latency if shared else OwnLinks)(self.channel, crew.seat)
        each = 1 if shared else crew.devices  # links that work at the same time
        return Load(self.channel._replace(byte_s=self.channel.byte_s / each), crew.seat)

    @property
    def tries(self) -> int:
        """How many small changes to try. With more frames a price takes longer, so fewer are tried."""
        most = POLISH if self.clocked else SLOW_POLISH
        layers = len(self.geometry.layers)
        if layers > DEEP:
            most = max(most * DEEP // layers, min(FEWEST, most))
        return max(3 * most // self.task.batch, 1) if self.streams else most

    def changes(self) -> list[Change]:
        """The kinds of small changes that may be tried."""
        kinds = changes(self.geometry, self.overlap)
        return kinds if self.free else [change for change in kinds if change is not move]

    def _even(self, crew: Crew) -> Weights:
        """Rows in proportion to speed; all equal if the user wants even shares."""
        if not self.free:
            return (1.0,) * crew.size
        total = self.spent(crew).sum(axis=0)
        return tuple(float(total.min() / s) for s in total)

    def _states(self, crew: Crew) -> tuple[Weights, ...]:
        """The cut states: ways to share out rows among the devices of a crew."""
        even, k = self._even(crew), crew.size
        if not self.free:
            return (even,)
        middle = (k - 1) / 2
        weights = [
            tuple(w * (1 + tilt * (middle - d) / middle) for d, w in enumerate(even))
            for tilt in TILTS
        ]
        weights.append(tuple(w * (1 + ENDS * (d in (0, k - 1))) for d, w in enumerate(even)))
        for few in range(1, min(k, 7)):  # only some devices, evenly spread
            chosen = {round((n + 0.5) * k / few - 0.5) for n in range(few)}
            weights.append(tuple(w * (d in chosen) for d, w in enumerate(even)))
        if crew.seat is not None:
            weights.append(tuple(float(d == crew.seat) for d in range(k)))
        states = tuple(dict.fromkeys(weights))
        few = int(math.sqrt(BOOK / (k * len(self.geometry.layers))))
        return states if len(states) <= few else self._spread(states, max(few, 2))

    def _spread(self, states: tuple[Weights, ...], few: int) -> tuple[Weights, ...]:
        """So many of the states, evenly from the first to the last, so that each kind is there."""
        last = len(states) - 1
        return tuple(states[round(n * last / (few - 1))] for n in range(few))

    def price(self, candidate: Candidate) -> float:
        """Seconds of a candidate: by the clock if it can tell, else by the simulator."""
        if not self.clocked:
            return self.task.price(self.plan(candidate))
        crew = Crew(candidate.devices, candidate.gateway)
        if crew not in self.clocks:
            frames = self.task.batch if self.streams else 1
            self.clocks[crew] = RoundClock(self.task, self.workers(crew), self.samples, frames)
        return self.clocks[crew].seconds(candidate)

    def workers(self, crew: Crew) -> tuple[str, ...]:
        """The devices of a crew by name, in the order of their rows."""
        return tuple(self.cell.gateway if d < 0 else self.cell.devices[d] for d in crew.places)

    def _clocked(self) -> bool:
        """Whether the clock gives the price: everything is on one medium, and memory is enough for all."""
        task, profile, sizes = self.task, self.task.profile, self.geometry.sizes.values()
        # A device may also have a link of its own that is faster, perhaps in one direction only.
        pairs = [(self.cell.gateway, device) for device in self.cell.devices]
        routes = [task.fleet.route(*way) for a, b in pairs for way in ((a, b), (b, a))]
        cuts = max(profile.cut_bytes(m) for m in range(len(profile.layers) + 1))
        most = sum(layer.param_bytes for layer in profile.layers)
        most += 4 * (cuts + max(sizes) * VALUE_BYTES) * task.batch  # a device has up to three turns
        memory = [task.fleet.device(d).memory_mb for d in (self.cell.gateway, *self.cell.devices)]
        return (
            self.cell.medium is not None
            and all([hop.channel for hop in hops] == [self.cell.medium.name] for hops in routes)
            and all(room is None or room * MB >= most for room in memory)
        )

    def alone(self) -> Iterator[Plan]:
        """One device with everything: each device with a link of its own, and each that is further away.

        `known` already offers the fastest device, but that one may have the slowest link.
        """
        if self.fixed >= 2:
            return
        fleet, near = self.task.fleet, (self.cell.gateway, *self.cell.devices)
        far = [d for d in fleet.names if d not in near and fleet.connected(self.cell.gateway, d)]
        whole = Block((0, len(self.geometry.layers) - 1), "whole", (1,))
        for device in (*(() if self.clocked else self.cell.devices[1:]), *far):
            yield self.plan(Candidate(1, (whole,), (False,), self.in_flight), (device,))

    def plan(self, chosen: Candidate, workers: tuple[str, ...] = ()) -> Plan:
        """The plan of a candidate, on these workers or on those of its crew."""
        workers = workers or self.workers(Crew(chosen.devices, chosen.gateway))
        made = rounds_plan(
            self.task,
            "coopai+",
            workers,
            chosen.blocks,
            overlap=chosen.overlap,
            halves=chosen.halves,
            micro_batches=self.task.batch if self.streams else 1,
            in_flight=chosen.in_flight,
            decisions={
                "order": list(workers),  # the order of `shares`
                "objective": "throughput" if self.streams else "latency",
                "shares": [list(block.shares) for block in chosen.blocks],
                "overlap": list(chosen.overlap),
                **({"in_flight": chosen.in_flight} if self.streams else {}),
            },
        )
        computes = any(t.device == self.cell.gateway for r in made.rounds for t in r.turns)
        return made.deciding(
            devices=len(made.devices) - 1, gateway="computes" if computes else "relays"
        )


def _even_blocks(geometry: Geometry, split: Split) -> tuple[Block, ...]:
    """The blocks of a plan by the paper. Even shares are written as numbers, so that they can be changed."""
    return tuple(
        Block(b.layers, b.mode, tuple(y - x for x, y in even(places(geometry, b), split.devices)))
        if b.mode in ROW_MODES
        else b
        for b in split.blocks
    )
