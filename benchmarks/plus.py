"""Every strategy with a plus against the one by its paper and all baselines, on random fleets and networks.

    python benchmarks/plus.py --draws 200 --seed 1

Each draw has a network and a fleet, drawn as the loom draws them. All strategies of a row plan for it and are
priced by the simulator, on the same links and with the same codecs: none, unless the row says otherwise. A
stream has six frames, all in flight. A win or a loss is more than 1% of time. A rival that cannot plan for
the fleet is left out, and so is one that sends away what must stay at home: with EdgeMove the samples never
leave the client, and with labels=home the labels neither ("left out" says how often). A draw that the
strategy with the plus cannot plan for does not count; "refused" says how often a rival could. (jointdnn+ is
the name of a baseline in HierTrain's paper.)

StitchNet's baselines do different work: their minibatch may be shorter because less of the weight arrives.
They are compared in `plus_swarm.py`: by time, packets and delivered weight together, and by the weight that
stitchnet+ delivers with as many packets as the rival takes. decoupled+ is compared once more with the classes
and filters of decoupled. There `fedavg`, which has no filters, may train another network that computes less:
then its shorter minibatch is counted as "quicker" and not as a loss. As decoupled+ chooses itself, it is one.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import statistics
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from weft.errors import WeftError
from weft.loom.draw import Draw, as_text
from weft.loom.fleets import draw_fleet
from weft.loom.networks import LOSSES, draw_net
from weft.loom.planned import task_of
from weft.loom.settings import fitting, searches_long
from weft.planning.decide import decide
from weft.plans import registry
from weft.plans.plan import Mode, Plan, Predicted

LOSS = 1.01  # times as long: that is a loss
ONE_PLACE = ("all-device", "all-edge", "all-cloud")
Options = Mapping[str, str]


FRAMES = 6
STREAM = {"micro_batches": str(FRAMES), "in_flight": str(FRAMES)}


@dataclass(frozen=True)
class Rival:
    strategy: str
    options: Options = field(default_factory=dict)
    title: str = ""

    def __str__(self) -> str:
        return self.title or self.strategy


@dataclass(frozen=True)
class Row:
    plus: str
    rivals: tuple[Rival, ...]
    options: Options = field(default_factory=dict)  # of the strategy with the plus
    says: str = "no codecs"
    batch: int | None = None  # as drawn
    at_home: tuple[str, ...] = ()  # samples, labels: rivals that send them away are left out
    like: str = ""  # a strategy whose classes and filters it gets


def rivals(*names: str, **options: str) -> tuple[Rival, ...]:
    """The strategies of these names, each with the options that it knows."""
    known = {name: registry.get(name).options for name in names}
    return tuple(
        Rival(name, {key: value for key, value in options.items() if key in known[name]})
        for name in names
    )


def coopai_rivals(**options: str) -> tuple[Rival, ...]:
    """CoopAI and SLS as in the paper and overlapping, and one device alone."""
    overlapping = {**options, "overlap": "on"}
    return (
        *rivals("coopai", "sls", **options),
        Rival("coopai", overlapping, "coopai, overlap"),
        Rival("sls", overlapping, "sls, overlap"),
        Rival("coopai", {**options, "devices": "1"}, "one device"),
    )


EDGE = (Rival("all-edge", title="edge alone"),)
HIERTRAIN = ("hiertrain", "jointdnn", "jointdnn+", *ONE_PLACE)
EDGEMOVE = ("edgemove", "device-cloud", "pipedream-e", "all-device")
SOURCE = "SOURCE"  # stands for the device with the data, whatever it is called
ALONE = (Rival("chain", {"devices": SOURCE}, "client alone"),)
ROWS = (
    Row("hiertrain+", rivals(*HIERTRAIN, "chain"), {"codecs": "none"}),
    Row("hiertrain+", rivals(*HIERTRAIN, "jalad"), {},
        "codecs as it chooses; rivals have none, jalad 8 bits"),
    Row("edgemove+", rivals(*EDGEMOVE) + ALONE, {"codecs": "none"}, at_home=("samples",)),
    Row("edgemove+", rivals(*EDGEMOVE) + ALONE, {"in_flight": "2"}, "two in flight, as its rivals",
        at_home=("samples",)),
    Row("edgemove+", rivals(*EDGEMOVE, labels="home") + ALONE, {"labels": "home"},
        "labels at home", at_home=("samples", "labels")),
    Row("coopai+", coopai_rivals() + EDGE),
    Row("coopai+", coopai_rivals(), {"gateway": "off"}, "the gateway only relays"),
    Row("coopai+", coopai_rivals(**STREAM), {"objective": "throughput"}, "a stream", FRAMES),
    Row("stitchnet+", rivals("stitchnet"), {}, "8 bits, rivals have none; other rivals below"),
    Row("stitchnet+", rivals("stitchnet"), {"codec": "none", "input_codec": "none"}),
    Row("decoupled+", rivals("decoupled", "fedavg"), {}, "8 bits"),
    Row("decoupled+", rivals("decoupled", "fedavg"), {}, "8 bits; classes and filters of decoupled",
        like="decoupled"),
)  # fmt: skip


@dataclass
class Tally:
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    planned: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    away: Counter[str] = field(
        default_factory=Counter
    )  # rivals left out: they send away what stays
    # How often a rival's minibatch is shorter by more than 1%, where a loss is something else.
    quicker: Counter[str] = field(default_factory=Counter)
    worst: dict[str, tuple[float, str]] = field(default_factory=dict)  # the largest ratio, the draw


def planned(draw: Draw, name: str, options: Options) -> Plan | None:
    """The strategy's plan; None where it has none."""
    try:
        task = task_of(Draw(**{**_fields(draw), "strategy": name, "options": options}))
        given = {k: task.source if v == SOURCE else v for k, v in options.items()}
        return decide(name, dataclasses.replace(task, options=given))
    except WeftError:
        return None


def sends_away(plan: Plan, at_home: tuple[str, ...]) -> bool:
    """Whether samples or labels, if they are to stay, leave the device that has the data."""
    ends = {"samples": 0, "labels": len(plan.profile.layers) - 1}
    kept = {ends[what] for what in at_home}
    return any(
        kept.intersection(range(shard.layers[0], shard.layers[1] + 1))
        for shard in plan.shards
        if shard.device != plan.source
    )


def computes_less(one: Predicted, other: Predicted) -> bool:
    """Whether a device, half of them at least, computes less for a minibatch."""
    return statistics.median_low(one.compute_s.values()) < statistics.median_low(
        other.compute_s.values()
    )


def options_of(draw: Draw, row: Row) -> Options:
    """The row's options, with the classes and filters of the strategy that it is to be like."""
    plan = planned(draw, row.like, {}) if row.like else None
    if plan is None or plan.peers is None:
        return row.options
    classes = "/".join(",".join(map(str, peer.classes)) for peer in plan.peers.peers)
    filters = ",".join(map(str, plan.peers.filters_percent))
    return {**row.options, "classes": classes, "filters": filters, "last": str(plan.peers.last)}


def _fields(draw: Draw) -> dict[str, object]:
    return {key: getattr(draw, key) for key in draw.__struct_fields__}


def drawn(rng: random.Random, seed: int, row: Row) -> Draw:
    name = row.plus
    strategy = registry.get(name)
    kind, small = fitting(strategy), searches_long(strategy)
    mode: Mode = "train" if "train" in strategy.modes else "infer"
    return Draw(
        net=draw_net(rng, seed, kind, small),
        fleet=draw_fleet(rng, kind, small),
        strategy=name,
        mode=mode,
        batch=row.batch or rng.choice((1, 2, 4, 8, 16, 32)),
        loss=LOSSES[0],
        seed=seed,
    )


def compare(row: Row, draws: int, seed: int) -> Tally:
    tally = Tally({str(rival): Counter() for rival in row.rivals})
    number = 0
    while tally.planned < draws and number < 20 * draws:
        number += 1
        draw = drawn(random.Random(f"{seed}/{row.plus}/{number}"), seed, row)
        our_plan = planned(draw, row.plus, options_of(draw, row))
        plans = {str(rival): planned(draw, rival.strategy, rival.options) for rival in row.rivals}
        tally.away.update(n for n, plan in plans.items() if plan and sends_away(plan, row.at_home))
        theirs = {
            name: plan.predicted
            for name, plan in plans.items()
            if plan is not None and not sends_away(plan, row.at_home)
        }
        ours = our_plan.predicted if our_plan else None
        if ours is None:
            tally.refused.update(rival for rival, value in theirs.items() if value is not None)
            continue
        tally.planned += 1
        for rival, value in theirs.items():
            if value is None:
                continue
            own, other = ours.seconds, value.seconds
            ratio = own / other if other else float(own > 0) + 1.0
            outcome = "loss" if ratio > LOSS else "win" if ratio < 1 / LOSS else "tie"
            if ratio > tally.worst.get(rival, (0.0, ""))[0]:
                tally.worst[rival] = ratio, as_text(draw)
            if outcome == "loss" and row.like not in ("", rival) and computes_less(value, ours):
                tally.quicker[rival] += 1
            else:
                tally.counts[rival][outcome] += 1
        if tally.planned % 50 == 0:
            print(f"{row.plus}: {tally.planned} of {draws}", file=sys.stderr, flush=True)
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draws", type=int, default=200, help="that the strategy can plan for")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="strategies with a plus, with commas")
    given = parser.parse_args()
    wanted = given.only.split(",") if given.only else {row.plus for row in ROWS}
    lost = 0
    for row in ROWS:
        if row.plus in wanted:
            lost += show(row.plus, row.says, compare(row, given.draws, given.seed))
    if "stitchnet+" in wanted:
        from plus_swarm import at_defaults, with_packets

        row = next(row for row in ROWS if row.plus == "stitchnet+")
        for says, tally in (
            at_defaults(row, given.draws, given.seed),
            with_packets(row, given.draws, given.seed),
        ):
            lost += show("stitchnet+", says, tally)
    print(f"\nlosses beyond {LOSS - 1:.0%}: {lost}")
    return 1 if lost else 0


def show(plus: str, says: str, tally: Tally) -> int:
    """Prints one table; how many losses it has."""
    print(f"\n{plus}, {tally.planned} draws ({says})")
    print(
        f"{'rival':18}{'wins':>7}{'ties':>7}{'losses':>8}{'worst ratio':>13}{'refused':>9}{'quicker':>9}"
        f"{'left out':>10}"
    )
    for rival, counts in tally.counts.items():
        worst, draw = tally.worst.get(rival, (0.0, ""))
        quicker = tally.quicker.get(rival, counts["loss"])
        print(f"{rival:18}{counts['win']:7}{counts['tie']:7}{counts['loss']:8}{worst:13.3f}"
              f"{tally.refused[rival]:9}{quicker:9}{tally.away[rival]:10}", flush=True)  # fmt: skip
        if counts["loss"]:
            print(f"  {draw}")
    return sum(counts["loss"] for counts in tally.counts.values())


if __name__ == "__main__":
    sys.exit(main())
