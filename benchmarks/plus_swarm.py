"""stitchnet+ against the spreads of StitchNet's paper, which do different work. `plus.py` prints the tables.

A spread's minibatch has a time and takes packets, and a share of the weight arrives: with all devices, in the
mean with one worker silent, and with the worst one silent. A loss: the rival is no worse in any of these, and
more than 1% better in one. A win is the reverse. Otherwise it is a tie: each side is better in one way.
"""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Iterator

from plus import LOSS, Row, Tally, drawn, planned

from weft.errors import WeftError
from weft.loom.draw import Draw, as_text
from weft.loom.planned import task_of
from weft.plans.delivery import known_links, routes_of
from weft.plans.plan import Plan
from weft.strategies.stitchnet import mapped
from weft.strategies.stitchnet.mapping import MAPPERS
from weft.strategies.stitchnet.paths import packets, plan_routes
from weft.strategies.stitchnet.search import PricedSpread, best_spread, valued
from weft.strategies.stitchnet.swarm import spread_of

MAPPER = {
    "stitchnet": "mix-mapped",
    "vertical": "vertical",
    "horizontal": "horizontal",
    "random-units": "random-units",
    "average-layers": "average-layers",
}
Figures = tuple[float, ...]  # more is better


def at_defaults(row: Row, draws: int, seed: int) -> tuple[str, Tally]:
    """Each strategy as it is: time, packets and delivered weight together."""
    tally = Tally({name: Counter() for name in MAPPER})
    for draw in _draws(row, draws, seed):
        plus = planned(draw, row.plus, row.options)
        if plus is None:
            continue
        tally.planned += 1
        for name in MAPPER:
            rival = planned(draw, name, {})
            if rival is not None:
                _count(tally, name, draw, _work(plus), _work(rival))
                tally.quicker[name] += _seconds(plus) > LOSS * _seconds(rival)
        if tally.planned == draws:
            break
    return "by time, packets and delivered weight together; quicker: by time alone", tally


def with_packets(row: Row, draws: int, seed: int) -> tuple[str, Tally]:
    """stitchnet+ with prefer=accuracy and the packets of each rival, by delivered weight."""
    tally = Tally({name: Counter() for name in MAPPER})
    for draw in _draws(row, draws, seed):
        try:
            task = task_of(draw)
            widths, prr = mapped.hidden_widths(task), mapped.measured(task)
        except WeftError:
            continue
        tally.planned += 1
        for name, mapper in MAPPER.items():
            spread = MAPPERS[mapper](prr, widths, None, mapped.seed_of(task))
            routes = plan_routes("subpath", prr, spread)
            capacity = mapped.capacities(task.fleet)
            best = best_spread(prr, widths, packets(routes), capacity=capacity)
            assert packets(best.routes) <= packets(routes)
            _count(tally, name, draw, _delivers(best), _delivers(valued(spread, routes, prr)))
        if tally.planned == draws:
            break
    return "prefer=accuracy: by delivered weight, with the rival's packets", tally


def _draws(row: Row, draws: int, seed: int) -> Iterator[Draw]:
    for number in range(1, 20 * draws + 1):
        yield drawn(random.Random(f"{seed}/{row.plus}/{number}"), seed, row)


def _seconds(plan: Plan) -> float:
    assert plan.predicted is not None
    return plan.predicted.seconds


def _work(plan: Plan) -> Figures:
    routes, prr = routes_of(plan), known_links(plan)
    spread = valued(spread_of(plan), routes, prr)
    return (1 / max(_seconds(plan), 1e-12), 1 / max(packets(routes), 1), *_delivers(spread))


def _delivers(spread: PricedSpread) -> Figures:
    return spread.value, statistics.mean(spread.silent), spread.least


def _count(tally: Tally, rival: str, draw: Draw, ours: Figures, theirs: Figures) -> None:
    lost = _dominates(theirs, ours)
    outcome = "loss" if lost else "win" if _dominates(ours, theirs) else "tie"
    tally.counts[rival][outcome] += 1
    ratio = max(b / a if a else float(b > 0) for a, b in zip(ours, theirs, strict=True))
    if lost and ratio > tally.worst.get(rival, (0.0, ""))[0]:
        tally.worst[rival] = ratio, as_text(draw)


def _dominates(one: Figures, other: Figures) -> bool:
    pairs = list(zip(one, other, strict=True))
    return all(a >= b * (1 - 1e-9) - 1e-9 for a, b in pairs) and any(
        a > LOSS * b + 1e-9 for a, b in pairs
    )
