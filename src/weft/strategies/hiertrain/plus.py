"""hiertrain+: HierTrain planned for real links, with codecs and without barriers.

    weft plan vgg16 --fleet home.toml --strategy hiertrain+

The paper's model has barriers between its stages, and flows that share a link each get its full rate.
Here the simulator prices every candidate (`task.price`). Links carry one message at a time, samples
are sent in about eight pieces, a device computes any piece that is ready, and gradients are sent layer
by layer. The search starts at the paper's optimum (with the codecs' sizes) and at simple splits. It
changes roles, cuts, shares and pieces as long as that helps. The plans of all other strategies with the
same codecs are candidates too, so `hiertrain+` is never slower than the best of them.

If several devices have data, each of them has its own row of shares. One program holds all samples, so
the price counts that they share the edge server and the links.
"""

from __future__ import annotations

import dataclasses
import math
from bisect import insort
from collections.abc import Iterator

import msgspec

from weft.codecs.registry import CodecName, coded_bytes
from weft.errors import WeftError
from weft.plans import options
from weft.plans.places import cut_places
from weft.plans.plan import Plan
from weft.plans.profile import Profile
from weft.plans.registry import get
from weft.plans.strategy import strategy
from weft.plans.task import Task
from weft.strategies.common.costs import Costs
from weft.strategies.hiertrain.bounds import SplitBounds
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
WORTH_IT = 0.95  # a split must be this much faster than a simpler plan: real runs differ from prices by less
MOST_WORKERS = 6
CLIMBS = 4  # the search starts at so many of the best seeds
BUDGET = 160  # prices per start with three workers; each further worker adds as many
FIRST = 80  # after so many prices a climb ends if its step is still
HOPELESS = 2.0  # more than so many times that of the best other strategy


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
    """The best plan of the search; WeftError if none fits into the devices' memory."""
    workers, codecs = all_workers(task), chosen_codecs(task)
    search = _Search(task, workers, codecs)
    rivals = list(search.others())
    plain = without_own(task, codecs)
    if plain != codecs:  # a codec makes very small messages larger
        rivals += _Search(task, workers, plain).others()
    prices = [search.task.price(rival) for rival in rivals]
    search.climb(min(prices, default=math.inf))
    plan, seconds = search.best, search.seconds / WORTH_IT
    for rival, price in zip(rivals, prices, strict=True):
        if price < seconds:
            plan, seconds = rival, price
    if plan is None:
        raise WeftError("hiertrain+: no split of this network fits into the memory of this fleet")
    return plan


def all_workers(task: Task) -> tuple[str, ...]:
    """HierTrain's two or three workers, then the fastest other devices that the source can reach."""
    paper = tier_workers(task, "hiertrain+")
    costs = Costs(task)
    others = [
        device.name
        for device in task.fleet.devices
        if device.name not in paper and task.fleet.connected(task.source, device.name)
    ]
    # A device with data comes first: its samples need no link.
    others.sort(key=lambda name: (name not in task.sources, costs.total(name)))
    return (*paper, *others)[:MOST_WORKERS]


class _Search:
    """The best plan so far, and the prices of all splits that were tried."""

    def __init__(self, task: Task, workers: tuple[str, ...], codecs: Codecs) -> None:
        read_here = ("codecs", "codec", "sync_bn")
        plain = {k: v for k, v in task.options.items() if k not in read_here}
        finer, self.norms = with_synced_norms(task, "hiertrain+")
        self.task = dataclasses.replace(finer, options=plain)
        self.workers = workers
        self.paper = tier_workers(task, "hiertrain+")  # the workers in the paper's model
        self.layers = len(self.task.profile.layers)
        self.places = cut_places(self.task.profile.layers)
        # Samples by device with data. The name is empty if one device has all samples.
        self.batches = {owner.device: owner.samples for owner in task.owners} or {"": task.batch}
        self.codec, self.gradient_codec, self.input_codec = codecs
        self.bounds = SplitBounds(self.task, codecs, None if self.norms else self.plan)
        self.best: Plan | None = None
        self.seconds = math.inf
        self.asked: dict[Split, float] = {}
        self.latest: tuple[Split, Plan] | None = None

    def offer(self, plan: Plan) -> float:
        """The price of a plan in seconds. The plan is kept if it is the best so far."""
        seconds = self.task.price(plan)
        if seconds < self.seconds:
            self.best, self.seconds = plan, seconds
        return seconds

    def try_split(self, split: Split) -> float:
        """The price of a split in seconds; each split is priced once."""
        if self.norms:  # all pieces wait for each other at every norm, so they have one fixed order
            split = split._replace(eager=False, stream=False)
        if split not in self.asked:
            self.asked[split] = self.offer(self.plan(split))
        return self.asked[split]

    def climb(self, rival: float = math.inf) -> None:
        """Search from the best seeds, as long as a neighbour is better. A split whose bound is not below the
        price to beat cannot be better, so it is not priced. `rival` is the price of the best other plan: a
        climb that stays far above it ends early."""
        hopeless = HOPELESS * rival if self.bounds.counted else math.inf
        for seed in self.best_seeds():
            split, value, moved = seed, self.try_split(seed), True
            begun = len(self.asked)
            most = begun + BUDGET * max(1, len(self.workers) - 2)
            last = begun + FIRST if value > hopeless else most
            while moved and len(self.asked) < last:
                moved = False
                for neighbour in neighbours(split, self.places, self.task.batch):
                    if len(self.asked) >= last:
                        break
                    better = value * 0.9999
                    if self.bounds.at_least(neighbour, better) >= better:
                        continue
                    price = self.try_split(neighbour)
                    if price < better:
                        split, value, moved = neighbour, price, True
                        last = begun + FIRST if value > hopeless else most
                        break

    def best_seeds(self) -> list[Split]:
        """The seeds with the least prices, the least first."""
        seeds = {seed: number for number, seed in enumerate(dict.fromkeys(self.seeds()))}
        priced: list[tuple[float, int, Split]] = []
        for seed in sorted(seeds, key=self.bounds.quick):
            if len(priced) >= CLIMBS:
                worse = priced[CLIMBS - 1][0] * 1.0001
                if self.bounds.quick(seed) >= worse:
                    break  # neither this one nor any after it
                if self.bounds.at_least(seed, worse) >= worse:
                    continue
            insort(priced, (self.try_split(seed), seeds[seed], seed))
        return [seed for _, _, seed in priced[:CLIMBS]]

    def seeds(self) -> Iterator[Split]:
        """The paper's optimum with and without codecs, then simple splits for every choice of roles."""
        if not self.task.owners:  # in the paper's model one device has all data
            for profile in (self.task.profile, self.coded_profile()):
                coded = dataclasses.replace(self.task, profile=profile)
                yield paper_split(coded, self.paper, self.workers)
        yield from simple_splits(self.workers, self.batches, self.layers)

    def coded_profile(self) -> Profile:
        """The profile with coded sizes, for the paper's model."""
        batch, profile = self.task.batch, self.task.profile

        def small(size: int, codec: CodecName) -> int:
            return coded_bytes(batch * size, codec) // batch

        layers = tuple(
            msgspec.structs.replace(
                layer,
                output_bytes=small(layer.output_bytes, self.codec),
                param_bytes=coded_bytes(layer.param_bytes, self.gradient_codec),
            )
            for layer in profile.layers
        )
        inputs = small(profile.input_bytes, self.input_codec)
        return msgspec.structs.replace(profile, layers=layers, input_bytes=inputs)

    def plan(self, split: Split) -> Plan:
        """The plan of a split. A bound and a price that follow each other get the same one."""
        if not self.latest or self.latest[0] != split:
            self.latest = split, self._plan(split)
        return self.latest[1]

    def _plan(self, split: Split) -> Plan:
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
        """The strategies whose plans are candidates. With several owners of data only some can plan."""
        if not self.task.owners:
            return list(OTHERS)
        return [] if self.norms else [name for name in OTHERS if get(name).several_sources]

    def others(self) -> Iterator[Plan]:
        """The plans of all other strategies with the allowed codecs; in several pieces if possible."""
        for name in self.able():
            for pieces in ("1", "4", "8", "16"):
                chosen = {**self.task.options, "input_codec": self.input_codec}
                if self.norms:
                    if pieces != "1":
                        continue  # each piece would have statistics of its own
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
                    plan = get(name).decide(dataclasses.replace(self.task, options=chosen))
                except WeftError:
                    continue  # the fleet has no such tier, or the path visits a device twice
                if name == "jalad" and self.codec != IN_8_BITS:
                    continue  # JALAD is 8 bits by definition
                yield msgspec.structs.replace(
                    plan.deciding(**{"as": name}),
                    strategy="hiertrain+",
                    gradient_codec=self.gradient_codec,
                    # All candidates have the same layers, so that a live run can change between them.
                    layering="norms" if self.norms else plan.layering,
                )
