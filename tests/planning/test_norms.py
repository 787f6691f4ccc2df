"""A batch norm of one value per channel cannot be trained: such plans are not made."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from weft.errors import InputError
from weft.fleet.fleet import Device, Fleet, Link
from weft.graph.capture.module import capture
from weft.planning.decide import decide
from weft.planning.task import make_task
from weft.plans.derive import derive_profile
from weft.plans.task import Task

FLEET = Fleet(
    (Device("pi", gflops=0.001, data=True), Device("nuc", "edge", gflops=0.001)),
    (Link(("pi", "nuc"), 1000.0, 1000.0),),
)


@pytest.fixture(scope="module")
def narrow() -> Any:
    """A norm over maps of one pixel."""
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4, 2)
    )
    return capture(module, torch.zeros(2, 1, 3, 3), name="narrow")


def task(graph: Any, batch: int, mode: Any = "train", **options: object) -> Task:
    profile = derive_profile(graph, FLEET)
    return make_task(profile, FLEET, batch=batch, mode=mode, options=options, graph=graph)


@pytest.mark.parametrize(("batch", "options"), [(1, {}), (4, {"micro_batches": 4})])
def test_single_samples_are_refused_by_the_layer_s_name(
    narrow: Any, batch: int, options: dict[str, object]
) -> None:
    with pytest.raises(InputError, match="one value has no variance"):
        decide("all-edge", task(narrow, batch, **options))


def test_two_samples_and_answers_are_allowed(narrow: Any) -> None:
    assert decide("all-edge", task(narrow, 4, micro_batches=2)).micro_batches == 2
    assert decide("all-edge", task(narrow, 4, "infer", micro_batches=4)).micro_batches == 4


def test_a_strategy_that_chooses_its_pieces_takes_none_of_single_samples(narrow: Any) -> None:
    plan = decide("chain", task(narrow, 4, devices="pi,nuc"))
    assert 4 // plan.micro_batches >= 2
    with pytest.raises(InputError, match="micro_batches"):
        decide("chain", task(narrow, 4, devices="pi,nuc", micro_batches=4))
