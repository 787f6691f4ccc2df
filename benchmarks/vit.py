"""A vision transformer: as a network for commands, and cut by coopai+ in the simulator.

    weft compare benchmarks/vit.py:base --mode infer --fleet examples/fleets/four-links.toml
    python benchmarks/vit.py

`base` is ViT-B/16 (86.6 million parameters, 35.1 GFLOPs), `small` one for 32x32 images. The table is of four
devices of 13.6 GFLOP/s behind a gateway: each with a full-duplex link of 100 Mbps, or all on one medium.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn
from torch.nn import functional

from weft.fleet.fleet import Device, Fleet, Link, Medium
from weft.graph.capture.module import capture
from weft.planning.decide import decide
from weft.planning.task import make_task
from weft.plans.derive import derive_profile

GFLOPS, MBPS = 13.6, 100.0
NAMES = ("r1", "r2", "r3", "r4")


class Attention(nn.Module):
    """Queries, keys and values from one layer."""

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


class Encoder(nn.Module):
    """Attention, then two layers on every token; both beside what comes in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.before, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.between = nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before(x))
        y: Tensor = x + self.narrow(functional.gelu(self.wide(self.between(x))))
        return y


class VisionTransformer(nn.Module):
    """Patches of an image as tokens, a class token, positions, encoders."""

    def __init__(
        self, size: int, patch: int, width: int, heads: int, depth: int, classes: int
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * 0.02)
        self.encoders = nn.Sequential(*(Encoder(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        y: Tensor = self.head(self.norm(self.encoders(x))[:, 0])
        return y


def base() -> tuple[nn.Module, Tensor]:
    """ViT-B/16."""
    return VisionTransformer(224, 16, 768, 12, 12, 1000), torch.zeros(1, 3, 224, 224)


def small() -> tuple[nn.Module, Tensor]:
    """For images of 32x32."""
    return VisionTransformer(32, 4, 64, 4, 4, 10), torch.zeros(1, 3, 32, 32)


def fleets() -> dict[str, Fleet]:
    """Four devices with links of their own, and on one medium."""
    devices = (
        Device("gw", "edge", GFLOPS, data=True),
        *(Device(name, gflops=GFLOPS) for name in NAMES),
    )
    links = tuple(Link(("gw", name), MBPS, MBPS) for name in NAMES)
    return {
        "own links": Fleet(devices, link=links),
        "one medium": Fleet(devices, medium=(Medium("wifi", "gw", NAMES, MBPS),)),
    }


def main() -> None:
    model, example = base()
    graph = capture(model.eval(), example, name="vit-b16")
    print(f"ViT-B/16 on one device of {GFLOPS} GFLOP/s: {graph.forward_flops / GFLOPS / 1e9:.3f} s")
    print(
        f"{'':14}{'gateway':10}{'devices':>8}{'rounds':>7}{'seconds':>9}{'MB':>7}{'planning':>10}"
    )
    for title, fleet in fleets().items():
        for gateway in ("off", "on"):
            task = make_task(
                derive_profile(graph, fleet), fleet, mode="infer", graph=graph,
                options={"gateway": gateway},
            )  # fmt: skip
            begin = time.process_time()
            plan = decide("coopai+", task)
            spent = time.process_time() - begin
            assert plan.predicted is not None
            sent = sum(plan.predicted.transfer_bytes.values()) / 1e6
            print(f"{title:14}{plan.decisions['gateway']:10}{plan.decisions['devices']:8}"
                  f"{len(plan.rounds):7}{plan.predicted.seconds:9.3f}{sent:7.1f}{spent:8.2f} s")  # fmt: skip


if __name__ == "__main__":
    main()
