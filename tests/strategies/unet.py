"""A network whose skip connections go from one end to the other, for planners."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class UNet(nn.Module):
    """Down to small maps and up again, each size joined with that of the way down."""

    def __init__(self, channels: int = 32, depth: int = 4) -> None:
        super().__init__()
        sizes = [channels * 2**level for level in range(depth + 1)]
        self.down = nn.ModuleList(
            nn.Conv2d(a, b, 3, padding=1) for a, b in zip([3, *sizes], sizes, strict=False)
        )
        self.up = nn.ModuleList(
            nn.Conv2d(a + b, b, 3, padding=1)
            for a, b in reversed(list(zip(sizes[1:], sizes, strict=False)))
        )
        self.last = nn.Conv2d(channels, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for layer in self.down:
            x = torch.relu(layer(x))
            skips.append(x)
            x = functional.max_pool2d(x, 2)
        x = skips.pop()
        for layer in self.up:
            x = torch.relu(
                layer(torch.cat([functional.interpolate(x, scale_factor=2), skips.pop()], 1))
            )
        y: Tensor = self.last(x)
        return y
