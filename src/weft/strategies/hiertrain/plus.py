"""HierTrain planned against physical links: no barriers, pieces, streamed gradients, codecs.

The paper's model sets barriers between its stages and gives flows that share a link its full rate each.
Here every candidate is lowered and played through the simulator (`task.price`): links carry one
message at a time, samples travel in about eight pieces, a device computes whatever is ready, and
gradients leave layer by layer. The search climbs from the paper's own optimum (with the codecs'
sizes) over roles, cuts, shares and pieces. Every other strategy's plan, with the same codecs, is a
candidate too, so `hiertrain+` is never slower than the best of them.

Where several devices have data of their own, each has a row of shares. All samples are in one program, so
the edge server's time and the links are shared.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import msgspec

from weft.codecs.registry import CodecName, coded_bytes
from weft.errors import WeftError
from weft.plans import options
from weft.plans.plan import Plan
from weft.plans.profile import Profile
from weft.plans.registry import get
from weft.plans.strategy import strategy
from weft.plans.task import Task
from weft.strategies.common.costs import Costs
from weft.strategies.hiertrain.coding import IN_8_BITS, Codecs, chosen_codecs, without_own
from weft.strategies.hiertrain.splits import Split, neighbours, paper_split, simple_splits
from weft.strategies.hiertrain.strategy import lane_shards, tier_workers
from weft.strategies.hiertrain.synced import OPTION, with_synced_norms

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
WORTH_IT = 0.95  # a split must gain this much over a simpler plan: runs differ from prices by less
MOST_WORKERS = 6
CLIMBS = 4  # from as many seeds
BUDGET = 160  # prices asked for in each climb with three workers; more with more


@strategy(
    "hiertrain+",
    "hiertrain on physical links: pieces, no barriers, codecs; never worse than the others",
    modes=("train",),
    options={
        "codecs": "none | activations | weights | all: what may cross links in 8 bits; "
        "activations: and their gradients; weights: these and weight gradients; all: samples too; "
        "a codec or input_codec that is given is taken in any case",
        **OPTION,
    },
    several_sources=True,
)
def hiertrain_plus(task: Task) -> Plan:
    workers, codecs = all_workers(task), chosen_codecs(task)
    search = _Search(task, workers, codecs)
    search.climb()
    split, seconds = search.best, search.seconds
    search.best, search.seconds = None, seconds / WORTH_IT
    for other in search.others():
        search.offer(other)
    plain = without_own(task, codecs)
    if plain != codecs:  # of tiny messages a codec makes larger ones
        for other in _Search(task, workers, plain).others():
            search.offer(other)
    found = search.best or split
    if found is None:
        raise WeftError("hiertrain+: no split of this network fits into the memory of this fleet")
    return found


def all_workers(task: Task) -> tuple[str, ...]:
    """HierTrain's two or three, then the fastest of what else the fleet has within reach."""
    paper = tier_workers(task, "hiertrain+")
    costs = Costs(task)
    more = [
        device.name
        for device in task.fleet.devices
        if device.name not in paper and task.fleet.connected(task.source, device.name)
    ]
    # A device with data first: its samples need no link.
    more.sort(key=lambda name: (name not in task.sources, costs.total(name)))
    return (*paper, *more)[:MOST_WORKERS]


class _Search:
    def __init__(self, task: Task, workers: tuple[str, ...], codecs: Codecs) -> None:
        own = ("codecs", "codec", "sync_bn")
        plain = {k: v for k, v in task.options.items() if k not in own}
        finer, self.norms = with_synced_norms(task, "hiertrain+")
        self.task = dataclasses.replace(finer, options=plain)
        self.workers = workers
        self.paper = tier_workers(task, "hiertrain+")  # what the paper's model knows
        self.layers = len(self.task.profile.layers)
        # Samples of each device with data, and its name: none where one device has all of them.
        self.batches = {owner.device: owner.samples for owner in task.owners} or {"": task.batch}
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
        if self.norms:  # all pieces meet at every norm: one order, and no gradient leaves earlier
            split = split._replace(eager=False, stream=False)
        if split not in self.asked:
            self.asked[split] = self.offer(self.plan(split))
        return self.asked[split]

    def climb(self) -> None:
        """From the best seeds, as long as a neighbour is better."""
        seeds = sorted(dict.fromkeys(self.seeds()), key=self.try_split)
        for seed in seeds[:CLIMBS]:
            here, value, found = seed, self.try_split(seed), True
            last = len(self.asked) + BUDGET * max(1, len(self.workers) - 2)
            while found and len(self.asked) < last:
                found = False
                for neighbour in neighbours(here, self.layers, self.task.batch):
                    if len(self.asked) >= last:
                        break
                    price = self.try_split(neighbour)
                    if price < value * 0.9999:
                        here, value, found = neighbour, price, True
                        break

    def seeds(self) -> Iterator[Split]:
        """The paper's optimum with and without codecs, and simple splits for every choice of roles."""
        if not self.task.owners:  # the paper's model knows one device with data
            for profile in (self.task.profile, self.coded_profile()):
                coded = dataclasses.replace(self.task, profile=profile)
                yield paper_split(coded, self.paper, self.workers)
        yield from simple_splits(self.workers, self.batches, self.layers)

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

    def plan(self, split: Split) -> Plan:
        lanes = split.lanes(self.layers, tuple(self.batches))
        return Plan(
            strategy="hiertrain+",
            model=self.task.profile.model,
            batch=self.task.batch,
            mode=self.task.mode,
            shards=lane_shards(self.layers, split.o, [lane[:3] for lane in lanes]),
            source=self.task.source,
            owners=self.task.owners,
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
            layering="norms" if self.norms else "depth",
            norms=self.norms,
            decisions={
                "o": split.o, "b_o": sum(row[0] for row in split.shares),
                "lanes": [
                    {"device": d, "layers": m, "samples": b, **({"of": owner} if owner else {})}
                    for d, m, b, owner in lanes if b and d != split.o
                ],
                "pieces": split.pieces,
                "codecs": {"activations": self.codec, "weight_gradients": self.gradient_codec,
                           "samples": self.input_codec},
            },
        )  # fmt: skip

    def able(self) -> list[str]:
        """The strategies whose plans are candidates; those of several owners cut the batch into pieces."""
        if not self.task.owners:
            return list(OTHERS)
        return [] if self.norms else [name for name in OTHERS if get(name).several_sources]

    def others(self) -> Iterator[Plan]:
        """Every other strategy's plan, pipelined where it can be, with the codecs that are allowed."""
        for name in self.able():
            for pieces in ("1", "4", "8", "16"):
                chosen = {**self.task.options, "input_codec": self.input_codec}
                if self.norms:
                    if pieces != "1":
                        continue  # each piece would have its own statistics
                    key = "micro_batches" if "micro_batches" in get(name).options else "sync_bn"
                    chosen[key] = "1" if key == "micro_batches" else "yes"
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
                    # One layering for all candidates: a live run may go from one to another.
                    layering="norms" if self.norms else found.layering,
                )
