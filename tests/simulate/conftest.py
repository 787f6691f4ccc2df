"""A pipeline whose seconds add up in one's head: 8 Mbit/s carry a million bytes a second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from weft.fleet.fleet import Device, Fleet, Link
from weft.plans.plan import Plan, Shard
from weft.plans.profile import DeviceTimes, LayerCost, Profile

MB = 1_000_000


@pytest.fixture(scope="session")
def phone_and_edge() -> Callable[..., Plan]:
    def make(
        *,
        phone: tuple[float, float] = (1.0, 2.0),
        edge: tuple[float, float] = (0.5, 1.0),
        up: float = 2.0,
        down: float = 2.0,
        latency_ms: float = 0.0,
        update: float = 0.0,
        **fields: Any,
    ) -> Plan:
        """Two layers, one each. Forward and backward seconds and the link's seconds per sample."""
        settings: dict[str, Any] = {
            "strategy": "by hand", "model": "toy", "batch": 1, "mode": "train", "source": "phone",
            "shards": (Shard("phone", (0, 0)), Shard("edge", (1, 1))),
        }  # fmt: skip
        return Plan(
            **{**settings, **fields},
            fleet=Fleet(
                (Device("phone"), Device("edge")),
                (Link(("phone", "edge"), 8.0, 8.0 * up / down, latency_ms),),
            ),
            profile=Profile(
                model="toy",
                input_bytes=10 * MB,
                target_bytes=0,
                layers=(LayerCost("a", 100, int(up * MB)), LayerCost("b", 100, int(up * MB))),
                devices={
                    name: DeviceTimes((there,) * 2, (back,) * 2, (update,) * 2)
                    for name, (there, back) in (("phone", phone), ("edge", edge))
                },
            ),
        )

    return make
