"""What coopai+ cuts answers as the whole network: every kind of network, by the nodes' own interpreter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from weft.fleet.fleet import Device, Fleet, Medium
from weft.graph.capture.module import capture, state_of
from weft.graph.optimizers.optimizer import Optimizer
from weft.graph.sequence import in_sequence
from weft.loom.woven import execute
from weft.planning.decide import decide
from weft.planning.task import make_task
from weft.plans.derive import derive_profile
from weft.plans.plan import Plan
from weft.program.lower.lower import lower


class Fused(nn.Module):
    """Attention whose queries, keys and values come from one layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        count, tokens, width = x.shape
        made = self.qkv(x).reshape(count, tokens, 3, self.heads, width // self.heads)
        query, key, value = made.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        y: Tensor = self.out(mixed.transpose(1, 2).reshape(count, tokens, width))
        return y


class Apart(nn.Module):
    """Attention with a layer each, written out as two products and a softmax."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        count, tokens, width = x.shape
        query, key, value = (
            layer(x).view(count, tokens, self.heads, width // self.heads).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        weights = torch.softmax(query @ key.transpose(-1, -2) / 4.0, -1)
        mixed = (weights @ value).transpose(1, 2).contiguous()
        y: Tensor = self.out(mixed.view(count, tokens, width))
        return y


class Module(nn.Module):
    """PyTorch's own attention, which has tokens before samples inside."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return y


class Encoder(nn.Module):
    def __init__(self, attention: nn.Module, width: int) -> None:
        super().__init__()
        self.attention = attention
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before(x))
        y: Tensor = x + self.narrow(functional.gelu(self.wide(self.between(x))))
        return y


class VisionTransformer(nn.Module):
    """Patches of an image as tokens, a class token, positions, encoders."""

    def __init__(self, attention: Callable[[int, int], nn.Module], width: int = 32) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, stride=8)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 17, width))
        self.encoders = nn.Sequential(*(Encoder(attention(width, 4), width) for _ in range(2)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        y: Tensor = self.head(self.norm(self.encoders(x))[:, 0])
        return y


class Signal(nn.Module):
    """Convolutions over one dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(3, 12, 5, stride=2, padding=2)
        self.norm = nn.BatchNorm1d(12)
        self.second = nn.Conv1d(12, 12, 3, padding=2, dilation=2)
        self.third = nn.Conv1d(12, 8, 3)
        self.last = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool1d(torch.relu(self.norm(self.first(x))), 3, 2, 1)
        x = torch.relu(self.second(x) + x)
        x = functional.avg_pool1d(torch.relu(self.third(x)), 2)
        y: Tensor = self.last(x.mean(2))
        return y


class UpAndDown(nn.Module):
    """A U-Net whose maps grow by transposed convolutions, with squeeze-and-excite in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3, padding=1)
        self.middle = nn.Conv2d(8, 16, 3, padding=1)
        self.squeeze, self.excite = nn.Conv2d(16, 4, 1), nn.Conv2d(4, 16, 1)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.join = nn.Conv2d(16, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        skip = torch.relu(self.down(x))
        x = torch.relu(self.middle(functional.max_pool2d(skip, 2)))
        weights = torch.relu(self.squeeze(functional.adaptive_avg_pool2d(x, 1)))
        x = self.up(x * torch.sigmoid(self.excite(weights)))
        y: Tensor = self.join(torch.cat([skip, x], 1))
        return y


class ChannelsLast(nn.Module):
    """A norm and dense layers over the channels of a map, which are last for them; shuffled channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.deep = nn.Conv2d(8, 8, 5, padding=2, groups=8)
        self.norm = nn.LayerNorm(8)
        self.wide, self.narrow = nn.Linear(8, 24), nn.Linear(24, 8)
        self.last = nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        y = self.norm(self.deep(x).permute(0, 2, 3, 1))
        y = self.narrow(functional.gelu(self.wide(y))).permute(0, 3, 1, 2)
        count, channels, height, width = x.shape
        x = (x + y).view(count, 2, channels // 2, height, width).transpose(1, 2)
        z: Tensor = self.last(x.reshape(count, channels, height, width))
        return z


IMAGE, LONG = (3, 32, 32), (3, 150)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "fused attention": (lambda: VisionTransformer(Fused), IMAGE),
    "attention apart": (lambda: VisionTransformer(Apart), IMAGE),
    "torch's attention": (lambda: VisionTransformer(Module), IMAGE),
    "signal": (Signal, LONG),
    "up and down": (UpAndDown, (3, 22, 18)),
    "channels last": (ChannelsLast, (3, 13, 11)),
}


def cell(count: int) -> Fleet:
    names = tuple(f"r{n}" for n in range(1, count + 1))
    devices = (Device("gw", "edge", 1.0, data=True), *(Device(name, gflops=1.0) for name in names))
    return Fleet(devices, medium=(Medium("wifi", "gw", names, 1e5),))


def cut(model: nn.Module, shape: tuple[int, ...], **options: object) -> tuple[Plan, float]:
    """The plan for three devices and two samples, and how far its answer is from the network's."""
    graph = capture(model, torch.zeros(2, *shape), name="small")
    fleet = cell(3)
    given = {"devices": "3", "polish": "10", **{k: str(v) for k, v in options.items()}}
    profile = derive_profile(graph, fleet)
    task = make_task(profile, fleet, mode="infer", batch=2, graph=graph, options=given)
    plan = decide("coopai+", task)
    x = torch.rand(2, *shape)
    made = execute(
        lower(plan), in_sequence(graph), state_of(model), lambda step: (x, torch.zeros(2)), 1,
        Optimizer(),
    )  # fmt: skip
    assert made.odd_bytes == []
    with torch.no_grad():
        whole = model(x)
    answer = made.answers[0, 0][graph.output]
    return plan, float((answer - whole).abs().max() / whole.abs().max())


@pytest.mark.parametrize("gateway", ["off", "on"])
@pytest.mark.parametrize("name", NETWORKS)
def test_cut_into_rows_it_answers_as_the_whole_network(name: str, gateway: str) -> None:
    torch.manual_seed(0)
    make, shape = NETWORKS[name]
    plan, far = cut(make().eval(), shape, gateway=gateway)
    assert far < 1e-5
    rows = [r for r in plan.rounds if r.mode == "rows" and len(r.turns) > 1]
    assert sum(r.layers[1] - r.layers[0] + 1 for r in rows) >= len(plan.profile.layers) - 2
