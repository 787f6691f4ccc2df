"""Every strategy with a plus against the one by its paper and all baselines, on random fleets and networks.

    python benchmarks/plus.py --draws 200 --seed 1

Each draw has a network and a fleet, drawn as the loom draws them. All strategies of a row plan for it and are
priced by the simulator, on the same links and with the same codecs: none, unless the row says otherwise. A
win or a loss is more than 1% of time. A rival that cannot plan for the fleet is left out. A draw that the
strategy with the plus cannot plan for does not count; "refused" says how often a rival could. (jointdnn+ is
the name of a baseline in HierTrain's paper. stitchnet+ and decoupled+ trade time for what is learned: their
own benchmarks compare that.)
"""

from __future__ import annotations

import argparse
import random
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
from weft.plans.plan import Mode

LOSS = 1.01  # times as long: that is a loss
ONE_PLACE = ("all-device", "all-edge", "all-cloud")
Options = Mapping[str, str]


@dataclass(frozen=True)
class Row:
    plus: str
    rivals: tuple[str, ...]
    options: Options = field(default_factory=dict)  # of the strategy with the plus
    rival_options: Options = field(default_factory=dict)  # where a rival knows them
    says: str = "no codecs"


ROWS = (
    Row("hiertrain+", ("hiertrain", "jointdnn", "jointdnn+", *ONE_PLACE), {"codecs": "none"}),
    Row("hiertrain+", ("hiertrain", "jointdnn", "jointdnn+", "jalad", *ONE_PLACE), {},
        says="codecs as it chooses; rivals have none, jalad 8 bits"),
    Row("edgemove+", ("edgemove", "device-cloud", "pipedream-e", "all-device"), {"codecs": "none"}),
    Row("coopai+", ("coopai", "sls")),
    Row("coopai+", ("sls", "coopai"), {}, {"overlap": "on"}, says="no codecs; rivals overlap too"),
)  # fmt: skip


@dataclass
class Tally:
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    planned: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    worst: dict[str, tuple[float, str]] = field(default_factory=dict)  # the largest ratio, the draw


def seconds(draw: Draw, name: str, options: Options) -> float | None:
    """The predicted time; None where the strategy has no plan."""
    known = registry.get(name).options
    given = {key: value for key, value in options.items() if key in known}
    try:
        plan = decide(name, task_of(Draw(**{**_fields(draw), "strategy": name, "options": given})))
    except WeftError:
        return None
    assert plan.predicted is not None
    return plan.predicted.seconds


def _fields(draw: Draw) -> dict[str, object]:
    return {key: getattr(draw, key) for key in draw.__struct_fields__}


def drawn(rng: random.Random, seed: int, name: str) -> Draw:
    strategy = registry.get(name)
    kind, small = fitting(strategy), searches_long(strategy)
    mode: Mode = "train" if "train" in strategy.modes else "infer"
    return Draw(
        net=draw_net(rng, seed, kind, small),
        fleet=draw_fleet(rng, kind, small),
        strategy=name,
        mode=mode,
        batch=rng.choice((1, 2, 4, 8, 16, 32)),
        loss=LOSSES[0],
        seed=seed,
    )


def compare(row: Row, draws: int, seed: int) -> Tally:
    tally = Tally({rival: Counter() for rival in row.rivals})
    number = 0
    while tally.planned < draws and number < 20 * draws:
        number += 1
        draw = drawn(random.Random(f"{seed}/{row.plus}/{number}"), seed, row.plus)
        ours = seconds(draw, row.plus, row.options)
        theirs = {rival: seconds(draw, rival, row.rival_options) for rival in row.rivals}
        if ours is None:
            tally.refused.update(rival for rival, value in theirs.items() if value is not None)
            continue
        tally.planned += 1
        for rival, value in theirs.items():
            if value is None:
                continue
            ratio = ours / value if value else float(ours > 0) + 1.0
            outcome = "loss" if ratio > LOSS else "win" if ratio < 1 / LOSS else "tie"
            tally.counts[rival][outcome] += 1
            if ratio > tally.worst.get(rival, (0.0, ""))[0]:
                tally.worst[rival] = ratio, as_text(draw)
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
        if row.plus not in wanted:
            continue
        tally = compare(row, given.draws, given.seed)
        print(f"\n{row.plus}, {tally.planned} draws ({row.says})")
        print(f"{'rival':14}{'wins':>7}{'ties':>7}{'losses':>8}{'worst ratio':>13}{'refused':>9}")
        for rival, counts in tally.counts.items():
            worst, draw = tally.worst.get(rival, (0.0, ""))
            print(f"{rival:14}{counts['win']:7}{counts['tie']:7}{counts['loss']:8}{worst:13.3f}"
                  f"{tally.refused[rival]:9}", flush=True)  # fmt: skip
            if counts["loss"]:
                print(f"  {draw}")
            lost += counts["loss"]
    print(f"\nlosses beyond {LOSS - 1:.0%}: {lost}")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
