"""A small network on a phone and a server, as a task."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from weft.fleet.fleet import Fleet
from weft.fleet.parse import parse_fleet
from weft.graph.capture.module import capture
from weft.planning.task import make_task
from weft.plans.derive import derive_profile
from weft.plans.task import Task

FLEET = parse_fleet("""
[[device]]
name = "phone"
gflops = 2.0
memory_mb = 100
[[device]]
name = "server"
tier = "edge"
gflops = 50.0
[[link]]
between = ["phone", "server"]
mbps = 20.0
""")


@pytest.fixture(scope="session")
def fleet() -> Fleet:
    return FLEET


@pytest.fixture(scope="session")
def task() -> Task:
    network = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 26 * 26, 32), nn.Linear(32, 10)
    )
    graph = capture(network, torch.zeros(2, 1, 28, 28), name="small")
    return make_task(derive_profile(graph, FLEET), FLEET, batch=16, graph=graph)
