"""`weft.train` with a strategy of peers: from a network to the network that two processes made of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import weft
from weft import zoo
from weft.errors import InputError
from weft.fleet.fleet import Device, Fleet, Link
from weft.graph.split.classes.network import DecoupledNet
from weft.report.results import train_document

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


def test_what_peers_cannot_do_is_refused_before_anything_starts() -> None:
    model, loss = zoo.build("cnn5", (1, 8, 8), 10), nn.CrossEntropyLoss()
    pair = torch.zeros(4, 1, 8, 8), torch.zeros(4, dtype=torch.long)
    with pytest.raises(InputError, match="name of a data set"):
        weft.train(model, pair, loss, fleet=FLEET, strategy="decoupled", local=True)
    with pytest.raises(InputError, match="save and resume"):
        weft.train(model, "digits", loss, fleet=FLEET, strategy="fedavg", local=True, resume=True)
