"""GoogLeNet, first version, without its auxiliary heads and response norms."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from weft.zoo.parts import Shape, average_head, he, image_shape, named


class Widths(NamedTuple):
    """Channels inside one inception module, in the columns of the paper's table."""

    one: int
    reduce_three: int
    three: int
    reduce_five: int
    five: int
    pool: int

    @property
    def outputs(self) -> int:
        return self.one + self.three + self.five + self.pool


# Modules between two poolings, by the paper's names.
_STAGES: list[dict[str, Widths]] = [
    {
        "3a": Widths(64, 96, 128, 16, 32, 32),
        "3b": Widths(128, 128, 192, 32, 96, 64),
    },
    {
        "4a": Widths(192, 96, 208, 16, 48, 64),
        "4b": Widths(160, 112, 224, 24, 64, 64),
        "4c": Widths(128, 128, 256, 24, 64, 64),
        "4d": Widths(112, 144, 288, 32, 64, 64),
        "4e": Widths(256, 160, 320, 32, 128, 128),
    },
    {
        "5a": Widths(256, 160, 320, 32, 128, 128),
        "5b": Widths(384, 192, 384, 48, 128, 128),
    },
]


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2)
    return named(("conv", conv), ("relu", nn.ReLU()))


class Inception(nn.Module):
    """Four branches over the same input, joined along the channels."""

    def __init__(self, inputs: int, widths: Widths) -> None:
        super().__init__()
        self.one = _conv(inputs, widths.one, 1)
        self.three = named(
            ("reduce", _conv(inputs, widths.reduce_three, 1)),
            ("wide", _conv(widths.reduce_three, widths.three, 3)),
        )
        self.five = named(
            ("reduce", _conv(inputs, widths.reduce_five, 1)),
            ("wide", _conv(widths.reduce_five, widths.five, 5)),
        )
        self.pool = named(
            ("pool", nn.MaxPool2d(3, 1, padding=1)),
            ("project", _conv(inputs, widths.pool, 1)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pool(x)], 1)


def googlenet(input_shape: Shape, classes: int, *, dropout: float = 0.4) -> nn.Sequential:
    """GoogLeNet, first version, without its auxiliary heads."""
    channels, _, _ = image_shape("googlenet", input_shape)
    children: list[tuple[str, nn.Module]] = [
        ("conv1", _conv(channels, 64, 7, 2)),
        ("pool1", nn.MaxPool2d(3, 2, padding=1)),
        ("reduce2", _conv(64, 64, 1)),
        ("conv2", _conv(64, 192, 3)),
    ]
    features = 192
    for number, stage in enumerate(_STAGES, start=2):
        children.append((f"pool{number}", nn.MaxPool2d(3, 2, padding=1)))
        for name, widths in stage.items():
            children.append((f"inception{name}", Inception(features, widths)))
            features = widths.outputs
    return named(*children, *average_head(features, classes, dropout)).apply(he)
