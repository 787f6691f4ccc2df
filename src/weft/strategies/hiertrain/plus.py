"""HierTrain planned against physical links: no barriers, pieces, streamed gradients, codecs.

The paper's model sets barriers between its stages and gives flows that share a link its full rate each.
Here every candidate is lowered and played through the simulator (`task.price`): links carry one
message at a time, samples travel in about eight pieces, a device computes whatever is ready, and
gradients leave layer by layer. The search climbs from the paper's own optimum (with the codecs'
sizes) over roles, cuts, shares and pieces. Every other strategy's plan, with the same codecs, is a
candidate too, so `hiertrain+` is never slower than the best of them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from itertools import permutations
from typing import NamedTuple

import msgspec

from weft.codecs.registry import CodecName, coded_bytes
from weft.errors import InputError, WeftError
from weft.plans import options
from weft.plans.plan import Plan
from weft.plans.profile import Profile
from weft.plans.registry import get
from weft.plans.strategy import strategy
from weft.plans.task import Task
from weft.strategies.common.costs import Costs
from weft.strategies.hiertrain.model import HierCosts, all_cells
from weft.strategies.hiertrain.search import fastest_split
from weft.strategies.hiertrain.strategy import lane_shards, tier_workers

WHAT_IS_CODED = ("none", "activations", "weights", "all")  # each includes those before it
IN_8_BITS: CodecName = "int8"
OTHERS = (
    "all-device",
    "all-edge",
    "all-cloud",
    "jointdnn",
    "jointdnn+",
    "jalad",
    "chain",
    "hiertrain",
)
PIECES = (4, 8, 16)
WORTH_IT = 0.95  # a split must gain this much over a simpler plan: runs differ from prices by less
MOST_WORKERS = 6
CLIMBS = 4  # from as many seeds
BUDGET = 160  # prices asked for in each climb with three workers; more with more


class Split(NamedTuple):
    """A point of the search. `o` trains all layers; each of the others trains its first `cuts[i]`
    layers on its share and o finishes them. `shares` has o's samples first."""

    o: str
    others: tuple[str, ...]
    cuts: tuple[int, ...]
    shares: tuple[int, ...]
    pieces: int = 8
    eager: bool = True
    stream: bool = True


@strategy(
    "hiertrain+",
    "hiertrain on physical links: pieces, no barriers, codecs; never worse than the others",
    modes=("train",),
    options={
        "codecs": "none | activations | weights | all: what may cross links in 8 bits; "
        "activations: and their gradients; weights: these and weight gradients; all: samples too; "
        "a codec or input_codec that is given is taken in any case",
    },
)
def hiertrain_plus(task: Task) -> Plan:
    search = _Search(task, all_workers(task), chosen_codecs(task))
    search.climb()
    split, seconds = search.best, search.seconds
    search.best, search.seconds = None, seconds / WORTH_IT
    for other in search.others():
        search.offer(other)
    found = search.best or split
    if found is None:
        raise WeftError("hiertrain+: no split of this network fits into the memory of this fleet")
    return found


class Codecs(NamedTuple):
    """How each kind of message is coded."""

    activations: CodecName
    weight_gradients: CodecName
    samples: CodecName


def chosen_codecs(task: Task) -> Codecs:
    """What `codecs` allows; a codec that the user names is taken. InputError where the two contradict."""
    level = WHAT_IS_CODED.index(options.choice(task, "codecs", WHAT_IS_CODED, "all"))
    chosen: dict[str, CodecName] = {}
    for key, named, needed in (
        ("codec", options.codec(task), 1),
        ("input_codec", options.input_codec(task), 3),
    ):
        chosen[key] = named if key in task.options else IN_8_BITS if level >= needed else "none"
        both = "codecs" in task.options and key in task.options
        if both and in_8_bits(named) != (level >= needed):
            what = "samples" if needed == 3 else "activations"
            raise InputError(
                f"--set codecs={task.options['codecs']} "
                f"{'sends' if level >= needed else 'does not send'} {what} in 8 bits, "
                f"--set {key}={named} says otherwise: leave one of them out"
            )
    weight_gradients: CodecName = IN_8_BITS if level >= 2 else "none"
    return Codecs(chosen["codec"], weight_gradients, chosen["input_codec"])


def in_8_bits(codec: CodecName) -> bool:
    """Whether a codec sends a number of four bytes as about one."""
    return coded_bytes(4000, codec) < 1500


def all_workers(task: Task) -> tuple[str, ...]:
    """HierTrain's two or three, then the fastest of what else the fleet has within reach."""
    paper = tier_workers(task, "hiertrain+")
    costs = Costs(task)
    more = [
        device.name
        for device in task.fleet.devices
        if device.name not in paper and task.fleet.connected(task.source, device.name)
    ]
    return (*paper, *sorted(more, key=costs.total))[:MOST_WORKERS]


class _Search:
    def __init__(self, task: Task, workers: tuple[str, ...], codecs: Codecs) -> None:
        plain = {k: v for k, v in task.options.items() if k not in ("codecs", "codec")}
        self.task = dataclasses.replace(task, options=plain)
        self.workers = workers
        self.paper = tier_workers(task, "hiertrain+")  # what the paper's model knows
        self.layers = len(task.profile.layers)
        self.codec, self.gradient_codec, self.input_codec = codecs
        self.best: Plan | None = None
        self.seconds = math.inf
        self.asked: dict[Split, float] = {}

    def offer(self, plan: Plan) -> float:
        """A candidate's price; it becomes the answer where it is the best so far."""
        seconds = self.task.price(plan)
        if seconds < self.seconds:
            self.best, self.seconds = plan, seconds
        return seconds

    def try_split(self, split: Split) -> float:
        if split not in self.asked:
            self.asked[split] = self.offer(self.plan(split))
        return self.asked[split]

    def climb(self) -> None:
        """From the best seeds, as long as a neighbour is better."""
        seeds = sorted(set(self.seeds()), key=self.try_split)
        for seed in seeds[:CLIMBS]:
            here, value, found = seed, self.try_split(seed), True
            last = len(self.asked) + BUDGET * max(1, len(self.workers) - 2)
            while found and len(self.asked) < last:
                found = False
                for neighbour in self.neighbours(here):
                    if len(self.asked) >= last:
                        break
                    price = self.try_split(neighbour)
                    if price < value * 0.9999:
                        here, value, found = neighbour, price, True
                        break

    def seeds(self) -> Iterator[Split]:
        """The paper's optimum with and without codecs, and simple splits for every choice of roles."""
        for profile in (self.task.profile, self.coded_profile()):
            cells = all_cells(
                HierCosts.of(dataclasses.replace(self.task, profile=profile), self.paper)
            )
            found = fastest_split(cells)
            o, *role = cells.roles[:, found.cell]
            lanes = [
                (self.paper[index], int(m), share)
                for index, m, share in zip(
                    role,
                    (cells.m_s[found.cell], cells.m_l[found.cell]),
                    (found.b_s, found.b_l),
                    strict=True,
                )
                if index < len(self.paper)
            ]
            known = (self.paper[o], *(device for device, _, _ in lanes))
            lanes += [(device, 1, 0) for device in self.workers if device not in known]
            others, cuts, shares = zip(*lanes, strict=True)
            yield Split(self.paper[o], others, tuple(max(1, m) for m in cuts), (found.b_o, *shares))
        batch, middle = self.task.batch, max(1, self.layers // 2)
        for o in self.workers:
            others = tuple(device for device in self.workers if device != o)
            even = batch // (2 * len(others))
            shares = (batch - even * len(others), *[even] * len(others))
            yield Split(o, others, (middle,) * len(others), shares)
            for i in range(len(others)):
                half = [batch // 2 if j == i else 0 for j in range(len(others))]
                yield Split(o, others, (1,) * len(others), (batch - batch // 2, *half))

    def coded_profile(self) -> Profile:
        """What the paper's model should count where codecs shrink what crosses."""
        batch, given = self.task.batch, self.task.profile

        def small(size: int, codec: CodecName) -> int:
            return coded_bytes(batch * size, codec) // batch

        layers = tuple(
            msgspec.structs.replace(
                layer,
                output_bytes=small(layer.output_bytes, self.codec),
                param_bytes=coded_bytes(layer.param_bytes, self.gradient_codec),
            )
            for layer in given.layers
        )
        inputs = small(given.input_bytes, self.input_codec)
        return msgspec.structs.replace(given, layers=layers, input_bytes=inputs)

    def neighbours(self, split: Split) -> Iterator[Split]:
        batch = self.task.batch
        for step in dict.fromkeys(max(1, batch // n) for n in (4, 8, 16, 32, batch)):
            for give, take in permutations(range(len(split.shares)), 2):
                if split.shares[give] >= step:
                    shares = list(split.shares)
                    shares[give] -= step
                    shares[take] += step
                    yield split._replace(shares=tuple(shares))
        for i, m in enumerate(split.cuts):
            for cut in (m - 1, m + 1):
                if 1 <= cut <= self.layers:
                    yield split._replace(cuts=(*split.cuts[:i], cut, *split.cuts[i + 1 :]))
        yield split._replace(eager=not split.eager)
        yield split._replace(stream=not split.stream)
        for pieces in PIECES:
            if pieces != split.pieces and pieces <= batch:
                yield split._replace(pieces=pieces)
        for i, other in enumerate(split.others):
            others = (*split.others[:i], split.o, *split.others[i + 1 :])
            yield split._replace(o=other, others=others)

    def plan(self, split: Split) -> Plan:
        lanes = list(zip(split.others, split.cuts, split.shares[1:], strict=True))
        return Plan(
            strategy="hiertrain+",
            model=self.task.profile.model,
            batch=self.task.batch,
            mode=self.task.mode,
            shards=lane_shards(
                self.layers, split.o, [*lanes, (split.o, self.layers, split.shares[0])]
            ),
            source=self.task.source,
            fleet=self.task.fleet,
            profile=self.task.profile,
            micro_batches=min(split.pieces, self.task.batch),
            codec=self.codec,
            gradient_codec=self.gradient_codec,
            input_codec=self.input_codec,
            schedule="eager" if split.eager else "staged",
            stream=split.stream,
            ahead=2,
            route=options.route(self.task),
            optimizer=self.task.optimizer,
            decisions={
                "o": split.o, "b_o": split.shares[0],
                "lanes": [{"device": d, "layers": m, "samples": b} for d, m, b in lanes if b],
                "pieces": split.pieces,
                "codecs": {"activations": self.codec, "weight_gradients": self.gradient_codec,
                           "samples": self.input_codec},
            },
        )  # fmt: skip

    def others(self) -> Iterator[Plan]:
        """Every other strategy's plan, pipelined where it can be, with the codecs that are allowed."""
        for name in OTHERS:
            for pieces in ("1", "4", "8", "16"):
                chosen = {**self.task.options, "input_codec": self.input_codec}
                if name != "jalad":
                    chosen["codec"] = self.codec
                if "micro_batches" in get(name).options and name != "chain":
                    if int(pieces) > self.task.batch:
                        continue
                    chosen["micro_batches"] = pieces
                elif pieces != "1":
                    continue
                try:
                    found = get(name).decide(dataclasses.replace(self.task, options=chosen))
                except WeftError:
                    continue  # this fleet has no such tier, or the way visits a device twice
                if name == "jalad" and self.codec != IN_8_BITS:
                    continue  # 8 bits by definition
                yield msgspec.structs.replace(
                    found.deciding(**{"as": name}),
                    strategy="hiertrain+",
                    gradient_codec=self.gradient_codec,
                )
