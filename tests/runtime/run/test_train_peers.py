"""`weft.train` with a strategy of peers: from a network to the network that two processes made of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
from weft import zoo
from weft.errors import InputError
from weft.fleet.fleet import Device, Fleet, Link
from weft.graph.split.classes.network import DecoupledNet
from weft.report.results import train_document
from weft.runtime.node.groups import MEAN
from weft.runtime.run.results import Step, TrainResult
from weft.runtime.run.workload.peers import PeerNetworks

FLEET = Fleet(
    (Device("a", gflops=50.0, data=True), Device("b", gflops=50.0)),
    (Link(("a", "b"), 500.0, 500.0, 0.1),),
)
OPTIONS = {
    "classes": "0,1,2,3,4,5/5,6,7,8,9,0", "steps": 10, "last": 2, "filters": 20, "pretrain": 40,
    "public": 200,
}  # fmt: skip


def test_two_processes_train_different_classes_and_the_whole_network_knows_all(
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    result = weft.train(
        zoo.build("cnn5", (1, 8, 8), 10), "digits", nn.CrossEntropyLoss(), fleet=FLEET,
        strategy="decoupled", steps=40, batch=16, optimizer="momentum", lr=0.03, local=True,
        options=OPTIONS, out=tmp_path, deadline=60.0,
    )  # fmt: skip
    assert isinstance(result.model, DecoupledNet)
    assert result.model.classes == tuple(range(10))
    assert result.test_accuracy is not None
    assert result.test_accuracy > 0.6
    assert len(result.losses) == 40
    assert result.losses[-1] < result.losses[0]
    assert result.step_s > 0
    assert result.predicted_step_s > 0
    document = train_document(result)
    json.dumps(document)
    assert "structures of 10 classes in conv4, conv5, fc" in document["network"]
    assert document["events"] == []
    assert {p.name for p in tmp_path.iterdir()} >= {
        "plan.json", "weights.safetensors", "metrics.jsonl", "timeline.json", "run.json",
    }  # fmt: skip


def test_decoupled_plus_exchanges_in_8_bits_and_learns() -> None:
    torch.manual_seed(0)
    result = weft.train(
        zoo.build("cnn5", (1, 8, 8), 10), "digits", nn.CrossEntropyLoss(), fleet=FLEET,
        strategy="decoupled+", steps=40, batch=8, optimizer="momentum", lr=0.03, local=True,
        options={**OPTIONS, "filters": "20,40"}, deadline=60.0,
    )  # fmt: skip
    assert result.plan.codec == "int8"
    assert result.plan.decisions["filters_percent"] == [20, 40]
    assert isinstance(result.model, DecoupledNet)
    first, later = (
        result.model.structure(3)[name].shape[0] for name in ("conv4.weight", "conv5.weight")
    )
    assert later == pytest.approx(2 * first, abs=1)
    assert result.test_accuracy is not None
    assert result.test_accuracy > 0.6


def test_decoupled_plus_trains_the_network_whole_where_taken_apart_it_would_compute_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody waits then either, and the network at the end is the mean over the last rounds."""
    reported: list[dict[str, dict[str, Tensor]]] = []
    put_together = PeerNetworks.put_together

    def noted(work: PeerNetworks, net: nn.Module, own: Any, states: Any) -> nn.Module:
        reported.append(states)
        return put_together(work, net, own, states)

    monkeypatch.setattr(PeerNetworks, "put_together", noted)
    torch.manual_seed(0)
    narrow = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(),
        nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10),
    )  # fmt: skip
    result = weft.train(
        narrow, "digits", nn.CrossEntropyLoss(), fleet=FLEET, strategy="decoupled+", steps=80,
        batch=16, optimizer="momentum", lr=0.03, local=True, options={"steps": 10}, deadline=60.0,
    )  # fmt: skip
    assert result.plan.peers is not None
    assert not result.plan.peers.structured
    assert result.plan.peers.late == "newest"
    assert result.plan.codec == "int8"
    assert "every peer has" in str(result.plan)
    assert result.test_accuracy is not None
    assert result.test_accuracy > 0.6
    samples = {peer.device: peer.held[0].weight for peer in result.plan.peers.peers}
    for name, tensor in result.model.state_dict().items():
        means = [states[MEAN + name] * samples[d] for d, states in reported[-1].items()]
        torch.testing.assert_close(tensor, torch.stack(means).sum(0) / sum(samples.values()))


class Residual(nn.Module):
    """Two blocks with skip connections, the second one with a convolution on its shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.inner, self.outer = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.wide, self.shortcut = nn.Conv2d(8, 16, 3, 2, padding=1), nn.Conv2d(8, 16, 1, 2)
        self.last, self.end = nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x)))
        x = torch.relu(x + self.outer(torch.relu(self.inner(x))))
        x = torch.relu(self.end(self.shortcut(x) + self.last(torch.relu(self.wide(x)))))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


def smooth(output: Tensor, target: Tensor) -> Tensor:
    """A loss of one's own."""
    return nn.functional.cross_entropy(output, target, label_smoothing=0.05)


@pytest.mark.proof
def test_a_residual_network_is_trained_over_two_processes_with_a_loss_of_one_s_own() -> None:
    torch.manual_seed(0)
    result = weft.train(
        Residual(), "digits", smooth, fleet=FLEET, strategy="decoupled", steps=80, batch=16,
        optimizer="momentum", lr=0.03, local=True, deadline=60.0,
        options={**OPTIONS, "last": 3, "filters": 30, "pretrain": 100},
    )  # fmt: skip
    assert isinstance(result.model, DecoupledNet)
    # the block's two ways are added: their channels are the same ones
    layers = set(result.model.blueprint.reading.layers)
    assert layers == {"shortcut", "wide", "last", "fc"}
    state = result.model.structure(3)
    assert state["shortcut.weight"].shape[0] == state["last.weight"].shape[0]
    assert result.test_accuracy is not None
    assert result.test_accuracy > 0.6
    assert result.losses[-1] < result.losses[0]
    assert "shortcut" in result.network
    # the plan's numbers are those of what was handed out
    assert result.plan.peers is not None
    planned = weft.plan(
        Residual(), torch.zeros(2, 1, 8, 8), FLEET, strategy="decoupled", batch=16,
        options={**OPTIONS, "last": 3, "filters": 30},
    )  # fmt: skip
    assert planned.peers is not None
    assert "another network than residual: a structure for each class in" in str(planned)
    for before, after in zip(planned.peers.peers, result.plan.peers.peers, strict=True):
        sizes = {held.group: held.numbers for held in after.held}
        assert {held.group: held.numbers for held in before.held} == sizes
        assert before.weights_bytes == after.weights_bytes
        assert before.saved_bytes == after.saved_bytes


@pytest.mark.parametrize("strategy", ["decoupled", "decoupled+"])
def test_plan_and_train_refuse_the_same_networks_in_the_same_words(strategy: str) -> None:
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10),
    )  # fmt: skip
    said = []
    with pytest.raises(InputError, match=r"layer 3 \(group_norm\)") as raised:
        weft.plan(net, torch.zeros(2, 1, 8, 8), FLEET, strategy=strategy)
    said.append(str(raised.value))
    with pytest.raises(InputError) as raised:
        weft.train(
            net,
            "digits",
            nn.CrossEntropyLoss(),
            fleet=FLEET,
            strategy=strategy,
            steps=2,
            local=True,
        )
    said.append(str(raised.value))
    assert said[0] == said[1]


def test_what_peers_cannot_do_is_refused_before_anything_starts() -> None:
    model, loss = zoo.build("cnn5", (1, 8, 8), 10), nn.CrossEntropyLoss()
    pair = torch.zeros(4, 1, 8, 8), torch.zeros(4, dtype=torch.long)
    with pytest.raises(InputError, match="name of a data set"):
        weft.train(model, pair, loss, fleet=FLEET, strategy="decoupled", local=True)
    with pytest.raises(InputError, match="adapt"):
        weft.train(model, "digits", loss, fleet=FLEET, strategy="fedavg", local=True, adapt=True)


class Died(Exception):
    """Ends the process that coordinates a run, in the middle."""


@pytest.mark.proof
@pytest.mark.parametrize("strategy", ["fedavg", "decoupled", "decoupled+"])
def test_peers_go_on_from_a_save_after_their_coordinator_died(
    strategy: str, tmp_path: Path
) -> None:
    def train(out: Path, **given: Any) -> TrainResult:
        torch.manual_seed(0)
        options = {"classes": OPTIONS["classes"], "steps": 5}
        return weft.train(
            zoo.build("cnn5", (1, 8, 8), 10), "digits", nn.CrossEntropyLoss(), fleet=FLEET,
            strategy=strategy, steps=160, batch=8, optimizer="momentum", lr=0.03, local=True,
            options={**OPTIONS, "steps": 5} if strategy != "fedavg" else options, out=out,
            save_every=20, deadline=60.0, **given,
        )  # fmt: skip

    def die(step: Step) -> None:
        if any((tmp_path / "died" / "saves").glob("*")):
            raise Died

    with pytest.raises(Died):
        train(tmp_path / "died", on_progress=die)
    resumed = train(tmp_path / "died", resume=True)
    assert resumed.first in range(20, 160, 20)
    assert len(resumed.losses) == 160 - resumed.first
    assert resumed.test_accuracy is not None
    assert resumed.test_accuracy > 0.5
    if strategy == "fedavg":  # all that it knows is in a save, and everybody waits for everybody
        whole = train(tmp_path / "whole")
        for name, tensor in whole.model.state_dict().items():
            assert torch.equal(resumed.model.state_dict()[name], tensor), name
