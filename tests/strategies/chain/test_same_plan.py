"""The same task gets the same plan in every process."""

from __future__ import annotations

import os
import subprocess
import sys

PLAN = """
import random
from weft.fleet.fleet import Device, Fleet, Link
from weft.planning.task import make_task
from weft.plans.profile import DeviceTimes, LayerCost, Profile
from weft.plans.registry import make_plan

rng = random.Random(5)
names = [f"d{n}" for n in range(9)]
times = {}
for name in names:
    forward = tuple(0.01 * rng.choice((1, 2, 4)) for _ in range(8))
    times[name] = DeviceTimes(forward, forward, (0.0,) * 8)
layers = tuple(LayerCost(f"l{n}", 1000, 40_000) for n in range(8))
links = tuple(Link((a, b), 50, 50) for n, a in enumerate(names) for b in names[n + 1 :])
fleet = Fleet(tuple(Device(name, data=name == "d0") for name in names), links)
plan = make_plan("chain", make_task(Profile("net", 40_000, layers, times), fleet, batch=16))
print(plan.decisions["considered"], *plan.decisions["devices"], *plan.decisions["cuts"])
"""


def test_the_order_of_sets_does_not_change_the_plan() -> None:
    """Seen: of equally good rows of devices another one was taken in each process."""
    plans = {
        subprocess.run(
            [sys.executable, "-c", PLAN],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3", "4")
    }
    assert len(plans) == 1, plans
