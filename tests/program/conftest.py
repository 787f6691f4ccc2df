"""Plans of small pipelines whose numbers are easy to reckon with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from weft.fleet.fleet import Device, Fleet, Link
from weft.plans.plan import Plan, Shard
from weft.plans.profile import DeviceTimes, LayerCost, Profile


@pytest.fixture(scope="session")
def make_plan() -> Callable[..., Plan]:
    def make(*owners: str, memory_mb: dict[str, float] | None = None, **fields: Any) -> Plan:
        """One owner per layer; neighbouring layers of the same owner become one shard.

        Layer n has 1000 * (n + 1) bytes of weights, 10 * (n + 1) of output, keeps 100 per sample.
        """
        shards: list[Shard] = []
        for n, owner in enumerate(owners):
            if shards and shards[-1].device == owner:
                shards[-1] = Shard(owner, (shards[-1].layers[0], n))
            else:
                shards.append(Shard(owner, (n, n)))
        names = sorted({*owners, fields.get("source", owners[0])})
        times = DeviceTimes(*((1.0,) * len(owners),) * 3)
        settings: dict[str, Any] = {
            "strategy": "by hand", "model": "toy", "batch": 4, "mode": "train",
            "source": owners[0], "shards": tuple(shards),
        }  # fmt: skip
        return Plan(
            **{**settings, **fields},
            fleet=Fleet(
                tuple(Device(name, memory_mb=(memory_mb or {}).get(name)) for name in names),
                tuple(Link((a, b), 8.0, 8.0) for a in names for b in names if a < b),
            ),
            profile=Profile(
                model="toy",
                input_bytes=60,
                layers=tuple(
                    LayerCost(f"l{n}", 1000 * (n + 1), 10 * (n + 1), saved_bytes=100)
                    for n in range(len(owners))
                ),
                devices=dict.fromkeys(names, times),
            ),
        )

    return make
