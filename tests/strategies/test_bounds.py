"""Searches that leave out candidates by their bounds find no worse plan than searches that price them all."""

from __future__ import annotations

import random

import pytest

from weft.errors import WeftError
from weft.loom.draw import Draw
from weft.loom.fleets import draw_fleet, draw_limits
from weft.loom.networks import LOSSES, draw_net, rough_bytes
from weft.loom.planned import task_of
from weft.planning.decide import decide
from weft.strategies.chain.bounds import Bounds
from weft.strategies.hiertrain.bounds import SplitBounds

CODECS = {
    "hiertrain+": [{}, *({"codecs": kind} for kind in ("none", "activations", "weights", "all"))],
    "chain": [{}, {}, {"codec": "int8"}, {"codec": "fp16"}],
}
DRAWS = 30


def drawn(strategy: str, number: int) -> Draw:
    """A small network and a small fleet: links that differ by direction, media, little memory, several
    devices with data, codecs."""
    rng = random.Random(f"bounds/{strategy}/{number}")
    net = draw_net(rng, 1, "tiers", True)
    fleet = draw_fleet(rng, rng.choice(("tiers", "tiers", "any", "cell")), True)
    batch = rng.choice((1, 2, 3, 5, 8))
    return Draw(
        net=net,
        fleet=draw_limits(rng, fleet, rough_bytes(net, batch)),
        strategy=strategy,
        mode="train",
        batch=batch,
        loss=LOSSES[0],
        seed=1,
        options=rng.choice(CODECS[strategy]),
    )


def seconds(draw: Draw) -> float | None:
    """The predicted time; None where the strategy has no plan."""
    try:
        predicted = decide(draw.strategy, task_of(draw)).predicted
    except WeftError:
        return None
    assert predicted is not None
    return predicted.seconds


@pytest.mark.proof
@pytest.mark.parametrize("strategy", sorted(CODECS))
def test_bounds_leave_out_no_better_plan(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    draws = [drawn(strategy, number) for number in range(DRAWS)]
    bounded = [seconds(draw) for draw in draws]
    monkeypatch.setattr(SplitBounds, "at_least", lambda *_: 0.0)
    monkeypatch.setattr(SplitBounds, "quick", lambda *_: 0.0)
    monkeypatch.setattr(Bounds, "at_least", lambda *_: 0.0)
    monkeypatch.setattr(Bounds, "computing", lambda *_: 0.0)
    planned = 0
    for draw, found in zip(draws, bounded, strict=True):
        whole = seconds(draw)
        assert (found is None) == (whole is None)
        if found is not None and whole is not None:
            assert found <= whole * 1.0001, draw
            planned += 1
    assert planned > DRAWS / 3
