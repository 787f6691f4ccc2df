"""A change of plan during which a device dies."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from weft.chaos.fleets import TIERS
from weft.errors import LostDevice
from weft.graph.capture.module import capture, capture_loss
from weft.planning.decide import decide
from weft.planning.task import make_task
from weft.plans.derive import derive_profile
from weft.plans.plan import Shard
from weft.program.lower.lower import lower
from weft.runtime.run.migrate import migrate


def test_the_only_holder_of_weights_that_dies_in_a_change_of_plan_is_a_lost_device() -> None:
    """The run ended with `nobody holds ... any more` once, and did not recover."""
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    graph = capture_loss(
        capture(net, torch.zeros(2, 4)), nn.CrossEntropyLoss(), torch.zeros(2).long()
    )
    task = make_task(derive_profile(graph, TIERS), TIERS, batch=4, mode="train", graph=graph)
    plan = decide("chain", task)
    last = len(plan.profile.layers) - 1
    here = msgspec.structs.replace(plan, shards=(Shard("pi", (0, 0)), Shard("nuc", (1, last))))
    there = msgspec.structs.replace(plan, shards=(Shard("pi", (0, 0)), Shard("cloud", (1, last))))

    def states(devices: list[str], names: Any) -> Any:
        raise LostDevice(devices[0], f"{devices[0]} is gone")

    run: Any = SimpleNamespace(plan=here, program=lower(here), graph=graph, states=states)
    with pytest.raises(LostDevice, match="nuc is gone"):
        migrate(run, there)
