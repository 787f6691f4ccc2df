"""Segmentation with a small U-Net on three emulated devices: every pixel has a class, or none.

    python examples/segmentation.py

The skip connections cross the cuts. Pixels of class 255 are not labelled and do not count in the loss.
"""

from pathlib import Path

import torch
from torch import Tensor, nn

import weft

FLEET = Path(__file__).parent / "fleets" / "demo.toml"
SIZE, UNKNOWN = 32, 255


def pictures(number: int) -> tuple[Tensor, Tensor]:
    """Minibatch n: noisy discs (class 1) on a ground (class 0); their rim is not labelled."""
    draw = torch.Generator().manual_seed(number)
    middle = torch.randint(10, 22, (16, 2, 1, 1), generator=draw)
    radius = torch.randint(4, 9, (16, 1, 1), generator=draw)
    rows, columns = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    away = ((rows - middle[:, 0]) ** 2 + (columns - middle[:, 1]) ** 2).float().sqrt() - radius
    labels = (away < 0).long().masked_fill(away.abs() < 0.5, UNKNOWN)
    noise = 0.5 * torch.randn(16, 1, SIZE, SIZE, generator=draw)
    return (away < 0).float().unsqueeze(1) + noise, labels


def double(inside: int, outside: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, padding=1), nn.GroupNorm(4, outside), nn.ReLU(),
        nn.Conv2d(outside, outside, 3, padding=1), nn.ReLU(),
    )  # fmt: skip


class UNet(nn.Module):
    """Two steps down, two steps up. Each step up also reads the map of the same size on the way down."""

    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        self.down1, self.down2, self.bottom = double(1, 8), double(8, 16), double(16, 32)
        self.pool = nn.MaxPool2d(2)
        self.grow2, self.up2 = nn.ConvTranspose2d(32, 16, 2, stride=2), double(32, 16)
        self.grow1, self.up1 = nn.ConvTranspose2d(16, 8, 2, stride=2), double(16, 8)
        self.head = nn.Conv2d(8, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.down1(x)
        two = self.down2(self.pool(one))
        up = self.up2(torch.cat([self.grow2(self.bottom(self.pool(two))), two], 1))
        return self.head(self.up1(torch.cat([self.grow1(up), one], 1)))


def main(steps: int = 30) -> list[float]:
    """Trains the network; returns the losses."""
    torch.manual_seed(0)
    result = weft.train(
        UNet(), pictures, nn.CrossEntropyLoss(ignore_index=UNKNOWN), fleet=weft.Fleet.load(FLEET),
        strategy="chain", steps=steps, batch=16, local=True, optimizer="adam", lr=0.005,
    )  # fmt: skip
    print(f"loss {result.losses[0]:.3f} -> {result.losses[-1]:.3f}")
    return result.losses


if __name__ == "__main__":
    main()
