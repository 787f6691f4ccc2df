"""Sliced inference on real processes through a gateway: the whole network's answer, the plan's bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import nn

import weft
from weft.fleet.fleet import Device, Fleet, Link, Medium
from weft.graph.capture.module import capture
from weft.graph.sequence import in_sequence
from weft.plans.derive import derive_profile
from weft.plans.plan import Plan
from weft.simulate.price import priced
from weft.strategies.coopai.slicing import Block, rounds_of, shards_of


class Small(nn.Module):
    """Convolutions with a skip, pooling, an odd height, fully connected layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.third = nn.Conv2d(8, 6, 5, padding=2)
        self.norm = nn.BatchNorm2d(8)
        self.large = nn.Linear(6 * 8 * 8, 40)
        self.small = nn.Linear(40, 12)
        self.last = nn.Linear(12, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = torch.relu(self.first(x))
        b = torch.relu(self.norm(self.second(a)) + a)
        c = nn.functional.max_pool2d(torch.relu(self.third(b)), 2)
        d = torch.relu(self.small(torch.relu(self.large(c.flatten(1)))))
        y: torch.Tensor = self.last(d)
        return y


def fleet_of(count: int) -> Fleet:
    names = [f"r{n}" for n in range(1, count + 1)]
    return Fleet(
        tuple(Device(n, gflops=0.5) for n in ("gw", *names)),
        medium=(Medium("wifi", "gw", tuple(names), 40.0),),
    )


@pytest.fixture(scope="module")
def make() -> Callable[..., tuple[Plan, nn.Module]]:
    def build(blocks: list[Block], count: int, **fields: object) -> tuple[Plan, nn.Module]:
        torch.manual_seed(0)
        model = Small().eval()
        graph = in_sequence(capture(model, torch.zeros(2, 3, 17, 16), name="small"))
        fleet = fleet_of(count)
        devices = [f"r{n}" for n in range(1, count + 1)]
        if fields.pop("gateway_computes", False):
            devices.insert(1, "gw")
        overlap = bool(fields.pop("overlap", False))
        rounds = rounds_of(graph, blocks, devices, "gw", overlap=overlap)
        values: dict[str, object] = {"batch": 1, **fields}
        plan = Plan(
            strategy="by hand", model="small", mode="infer", source="gw", rounds=rounds,
            shards=shards_of(rounds), fleet=fleet, profile=derive_profile(graph, fleet),
            layering="sequence", **values,
        )  # type: ignore[arg-type]  # fmt: skip
        return priced(plan), model

    return build


EVERY_MODE = [
    Block((0, 1), "rows"), Block((2, 2), "rows"), Block((3, 3), "data"), Block((4, 5), "hybrid"),
]  # fmt: skip
JOINED = [Block((0, 0), "rows"), Block((1, 3), "rows+data"), Block((4, 4), "model"),
          Block((5, 5), "model")]  # fmt: skip


@pytest.mark.parametrize(
    ("blocks", "count", "fields"),
    [
        (JOINED, 2, {"batch": 3, "micro_batches": 3, "in_flight": 2}),
        (EVERY_MODE, 3, {"overlap": True, "batch": 2, "codec": "fp16"}),
        (
            EVERY_MODE,
            2,
            {
                "gateway_computes": True,
                "overlap": True,
                "batch": 2,
                "micro_batches": 2,
                "in_flight": 2,
            },
        ),
    ],
)
def test_sliced_inference_answers_like_the_whole_network_with_the_plans_bytes(
    make: Callable[..., tuple[Plan, nn.Module]],
    blocks: list[Block],
    count: int,
    fields: dict[str, object],
) -> None:
    plan, model = make(blocks, count, **fields)
    x = torch.rand(plan.batch, 3, 17, 16)
    with weft.serve(model, x, plan.fleet, plan=plan, local=True) as net:
        answers = net.stream([x, x + 1])
        timeline, _ = net.timeline()
    half = {"rtol": 0.01, "atol": 0.005}
    close = half if plan.codec == "fp16" else {"rtol": 1e-4, "atol": 1e-5}
    with torch.no_grad():
        torch.testing.assert_close(answers[0], model(x), **close)
        torch.testing.assert_close(answers[1], model(x + 1), **close)
    sent: Counter[int] = Counter()
    for span in timeline.spans:
        if span.what == "transfer":
            sent[span.step] += span.bytes
    assert plan.predicted is not None
    planned = sum(plan.predicted.transfer_bytes.values())
    assert dict(sent) == {0: planned, 1: planned}


def test_whole_frames_in_turn_come_back_in_order_with_the_plans_bytes() -> None:
    """Two devices, one twice as fast; three frames at a time."""
    torch.manual_seed(0)
    model = Small().eval()
    fleet = Fleet(
        (Device("gw", gflops=0.5), Device("r1", gflops=0.5), Device("r2", gflops=0.25)),
        medium=(Medium("wifi", "gw", ("r1", "r2"), 40.0),),
    )
    x = torch.rand(6, 3, 17, 16)
    options = {"objective": "throughput", "frames": "whole", "gateway": "off", "in_flight": 3}
    plan = weft.plan(
        model, x[:1], fleet, strategy="coopai+", mode="infer", batch=6, options=options
    )
    assert sorted(set(plan.rounds[0].in_turn)) == [0, 1]
    with weft.serve(model, x, fleet, plan=plan, local=True) as net:
        answer = net(x)
        timeline, _ = net.timeline()
    with torch.no_grad():
        torch.testing.assert_close(answer, model(x), rtol=1e-4, atol=1e-5)
    sent = sum(span.bytes for span in timeline.spans if span.what == "transfer")
    assert plan.predicted is not None
    assert sent == sum(plan.predicted.transfer_bytes.values())
    assert "coopai+" in str(plan)


class VisionTransformer(nn.Module):
    """Patches of an image as tokens, PyTorch's own encoder."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        layer = nn.TransformerEncoderLayer(width, 4, 64, 0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.encoder(self.patches(x).flatten(2).transpose(1, 2))
        y: torch.Tensor = self.head(tokens.mean(1))
        return y


def test_a_vision_transformer_on_four_devices_with_links_of_their_own_answers_as_one() -> None:
    torch.manual_seed(0)
    model = VisionTransformer().eval()
    names = [f"r{n}" for n in range(1, 5)]
    fleet = Fleet(
        (Device("gw", "edge", 0.05, data=True), *(Device(name, gflops=0.05) for name in names)),
        link=tuple(Link(("gw", name), 100.0, 100.0) for name in names),
    )
    x = torch.rand(2, 3, 32, 32)
    options = {"gateway": "off", "devices": 4, "polish": 5}
    plan = weft.plan(
        model, x[:1], fleet, strategy="coopai+", mode="infer", batch=2, options=options
    )
    shared = [r for r in plan.rounds if r.mode == "rows" and len({t.device for t in r.turns}) == 4]
    assert sum(r.layers[1] - r.layers[0] + 1 for r in shared) >= 7  # patches, encoders
    with weft.serve(model, x, fleet, plan=plan, local=True) as net:
        answer = net(x)
        timeline, _ = net.timeline()
    with torch.no_grad():
        torch.testing.assert_close(answer, model(x), rtol=1e-5, atol=1e-5)
    assert plan.predicted is not None
    sent = sum(span.bytes for span in timeline.spans if span.what == "transfer")
    assert sent == sum(plan.predicted.transfer_bytes.values())
    alone = sum(plan.profile.devices["r1"].forward_s) * 2
    assert plan.predicted.seconds < 0.6 * alone
