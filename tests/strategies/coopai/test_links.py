"""coopai+ where every device has a link of its own to the one that asks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from weft.api import plan
from weft.errors import InputError
from weft.fleet.fleet import Device, Fleet, Link, Medium
from weft.planning.compare import compare
from weft.planning.task import ask
from weft.plans.registry import make_plan
from weft.report.documents import compare_document
from weft.simulate.price import price
from weft.strategies.coopai.events import MediumCost, OwnLinks, Times


def star(*gflops: float, mbps: float = 100.0, gateway: float = 1.0) -> Fleet:
    names = [f"r{n}" for n in range(1, len(gflops) + 1)]
    return Fleet(
        (Device("gw", "edge", gateway, data=True),
         *(Device(name, gflops=g) for name, g in zip(names, gflops, strict=True))),
        link=tuple(Link(("gw", name), mbps, mbps) for name in names),
    )  # fmt: skip


class Encoders(nn.Module):
    """The first encoders of ViT-B/16, over its 196 patches."""

    def __init__(self, count: int = 2) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 768, 16, stride=16)
        layer = nn.TransformerEncoderLayer(768, 12, 3072, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, count, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.encoder(self.patches(x).flatten(2).transpose(1, 2)).mean(1)
        return y


def test_messages_of_different_links_do_not_wait_for_each_other() -> None:
    """Two devices, one second per byte: both send 2 bytes at 0 and get 2 bytes at 2."""
    clock = OwnLinks(MediumCost(1.0))
    made = clock.exchange(Times((0.0, 0.0)), [2, 2], [2, 2], [1, 0], [0, 0], [5, 5])
    assert made.ready == (4 + 5, 4 + 5)
    assert clock.gather(made, [3, 3]).gateway == 9 + 3


def test_a_vision_transformer_on_four_devices_answers_sooner_than_on_one() -> None:
    """13.6 GFLOP/s each, full-duplex 100 Mbps each; the gateway only relays."""
    made = plan(
        Encoders().eval(), torch.zeros(1, 3, 224, 224), star(*[13.6] * 4), strategy="coopai+",
        mode="infer", options={"gateway": "off"},
    )  # fmt: skip
    assert made.predicted is not None
    assert made.decisions["devices"] == 4
    assert made.predicted.seconds < 0.8 * sum(made.profile.devices["r1"].forward_s)


def test_convolutions_are_cut_over_links_too_and_slower_links_get_fewer_rows() -> None:
    fleet = star(0.5, 0.5, 0.5, mbps=20.0)
    made = make_plan("coopai+", ask("vgg-small", fleet, mode="infer", options={"gateway": "off"}))
    assert price(made).seconds < 0.7 * sum(made.profile.devices["r1"].forward_s)
    assert made.decisions["devices"] > 1


def test_coopai_needs_a_medium_and_coopai_plus_says_what_else_would_do() -> None:
    task = ask("lenet5", star(0.5, 0.5), mode="infer")
    with pytest.raises(InputError, match=r"coopai needs a .*medium"):
        make_plan("coopai", task)
    lonely = ask("lenet5", Fleet((Device("gw", "edge", 1.0, data=True),)), mode="infer")
    with pytest.raises(InputError, match=r"or a ..link.. from it to each device"):
        make_plan("coopai+", lonely)


def test_compare_says_where_sharing_layers_does_not_pay() -> None:
    """A slow medium: whatever is handed out comes back too late."""
    names = ("r1", "r2")
    fleet = Fleet(
        (Device("gw", "edge", 1.0, data=True), *(Device(name, gflops=1.0) for name in names)),
        medium=(Medium("wifi", "gw", names, 0.1),),
    )
    rows = compare(ask("transformer", fleet, mode="infer"), ["coopai+", "chain"])
    document = compare_document("transformer", 1, rows)["rows"]
    notes = {row["strategy"]: row["note"] for row in document}
    assert notes["coopai+"] == "sharing layers does not pay here: gw computes everything"
    assert notes["chain"] is None
