"""Plans with lanes, for the tests of whoever lowers, orders or prices them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import pytest
from hypothesis import strategies as st

from weft.fleet.fleet import Device, Fleet, Link
from weft.plan.plan import Part, Plan, Shard
from weft.plan.profile import DeviceTimes, LayerCost, Profile

NAMES = "abcd"


def lane_shards(lanes: Sequence[tuple[int, str]]) -> tuple[Shard, ...]:
    """(samples, owner of each layer) per lane; neighbouring layers of one owner are one shard."""
    shards, offset = [], 0
    for samples, owners in lanes:
        for owner, run in groupby(range(len(owners)), key=owners.__getitem__):
            layers = list(run)
            shards.append(Shard(owner, (layers[0], layers[-1]), Part(samples, offset)))
        offset += samples
    return tuple(shards)


def lane_plan(
    *lanes: tuple[int, str],
    times: Mapping[str, DeviceTimes] | None = None,
    mbps: float | Mapping[tuple[str, str], float] = 8.0,
    layers: tuple[LayerCost, ...] = (),
    **fields: Any,
) -> Plan:
    """`lane_plan((3, "aab"), (1, "bbb"))`: three samples over a and b, one at b; data at a.

    Layer n has 1000 * (n + 1) bytes of weights and 10 * (n + 1) of output, and takes a second
    there and a second back on every device; 8 Mbit/s carry a million bytes a second.
    """
    count = len(lanes[0][1])
    pairs = [(a, b) for a in NAMES for b in NAMES if a < b]
    rates = mbps if isinstance(mbps, Mapping) else dict.fromkeys(pairs, mbps)
    costs = layers or tuple(LayerCost(f"l{n}", 1000 * n, 10 * n) for n in range(1, count + 1))
    second = DeviceTimes((1.0,) * count, (1.0,) * count, (0.0,) * count)
    settings: dict[str, Any] = {
        "strategy": "by hand", "model": "toy", "mode": "train", "source": "a",
        "batch": sum(samples for samples, _ in lanes), "shards": lane_shards(lanes),
    }  # fmt: skip
    return Plan(
        **{**settings, **fields},
        fleet=Fleet(
            tuple(Device(name) for name in NAMES),
            tuple(Link(pair, rates[pair], rates[pair]) for pair in pairs),
        ),
        profile=Profile("toy", 60, costs, dict(times or dict.fromkeys(NAMES, second))),
    )


def _random_costs(draw: st.DrawFn, count: int) -> dict[str, Any]:
    """Layers, devices and links of any proportion to each other."""
    size, seconds = st.integers(0, 100_000), st.floats(0.001, 1.0)
    per_layer = st.lists(seconds, min_size=count, max_size=count).map(tuple)
    pairs = [(a, b) for a in NAMES for b in NAMES if a < b]
    return {
        "layers": tuple(LayerCost(f"l{n}", draw(size), draw(size)) for n in range(count)),
        "times": {d: DeviceTimes(draw(per_layer), draw(per_layer), draw(per_layer)) for d in NAMES},
        "mbps": {pair: draw(st.floats(0.5, 50.0)) for pair in pairs},
    }


@st.composite
def random_lanes(draw: st.DrawFn, /, **fields: Any) -> Plan:
    """Any lanes over three devices, whichever way they go; the data may be on a fourth."""
    count = draw(st.integers(1, 5))
    owners = st.text("abc", min_size=count, max_size=count)
    lanes = draw(st.lists(st.tuples(st.integers(1, 5), owners), min_size=1, max_size=4))
    batch = sum(samples for samples, _ in lanes)
    drawn = {
        "micro_batches": draw(st.integers(1, batch)),
        "schedule": draw(st.sampled_from(["staged", "eager"])),
        "stream": draw(st.booleans()),
        "source": draw(st.sampled_from(NAMES)),
        "ahead": draw(st.integers(1, 2)),
        "route": draw(st.sampled_from(["min", "store_and_forward"])),
    }
    return lane_plan(*lanes, **{**drawn, **_random_costs(draw, count), **fields})


@st.composite
def random_hiertrain(draw: st.DrawFn, /, **fields: Any) -> Plan:
    """Lanes as HierTrain makes them: b over s and o, o alone, b over l and o; the data at a."""
    count = draw(st.integers(2, 6))
    o, s, l = draw(st.permutations("abc"))  # noqa: E741
    first, second = sorted((draw(st.integers(1, count)), draw(st.integers(1, count))))
    shares = [draw(st.integers(1, 12)) for _ in range(3)]
    ways = [s * first + o * (count - first), o * count, l * second + o * (count - second)]
    kept = [draw(st.integers(0, 9)) > 0 for _ in ways]
    lanes = [lane for lane, keep in zip(zip(shares, ways, strict=True), kept, strict=True) if keep]
    return lane_plan(*(lanes or [(shares[1], ways[1])]), **{**_random_costs(draw, count), **fields})


@pytest.fixture(scope="session")
def make_lanes() -> Callable[..., Plan]:
    return lane_plan


@pytest.fixture(scope="session")
def any_lanes() -> Callable[..., st.SearchStrategy[Plan]]:
    return random_lanes


@pytest.fixture(scope="session")
def any_hiertrain() -> Callable[..., st.SearchStrategy[Plan]]:
    return random_hiertrain
