"""Planning for peers takes less than a second of CPU time, whatever the network."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from tests.strategies.unet import UNet
from weft.errors import WeftError
from weft.fleet.parse import load_fleet
from weft.graph.capture.module import capture
from weft.graph.network import Graph
from weft.planning.decide import decide
from weft.planning.task import ask, make_task
from weft.plans.derive import derive_profile

FLEET = load_fleet(Path(__file__).parents[3] / "examples" / "fleets" / "peers.toml")
LONGEST_S = 1.0

pytestmark = [pytest.mark.proof, pytest.mark.usefixtures("one_thread")]  # they measure CPU time


def unet() -> Graph:
    with torch.device("meta"):
        return capture(UNet(), torch.empty(2, 3, 64, 64))


@pytest.mark.parametrize("strategy", ["decoupled", "decoupled+"])
@pytest.mark.parametrize("name", ["alexnet", "vgg16", "resnet18"])
def test_the_paper_s_networks_are_planned_in_less_than_a_second(name: str, strategy: str) -> None:
    """AlexNet took 17 s: networks were drawn and decoupled for every number that a plan needs."""
    task = ask(name, FLEET, input_shape=(3, 64, 64), classes=10, batch=16)
    begin = time.process_time()
    decide(strategy, task)
    assert time.process_time() - begin < LONGEST_S


@pytest.mark.parametrize("strategy", ["decoupled", "decoupled+"])
def test_a_network_without_logits_is_refused_in_less_than_a_second(strategy: str) -> None:
    """A U-Net took more than 25 s."""
    graph = unet()
    task = make_task(derive_profile(graph, FLEET), FLEET, batch=8, graph=graph)
    begin = time.process_time()
    with pytest.raises(WeftError):
        decide(strategy, task)
    assert time.process_time() - begin < LONGEST_S
