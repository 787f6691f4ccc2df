"""Small modules by recipe: dense, convolutional, residual and branching networks of odd sizes.

build("residual", layers=3, shape=(2, 9, 11), classes=4, seed=7)
"""

from __future__ import annotations

import random
from math import prod

import torch
from torch import Tensor, nn

ACTIVATIONS = (nn.ReLU, nn.Tanh, nn.GELU, nn.Sigmoid)


def build(kind: str, layers: int, shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """The network of a recipe. Layer n depends only on the seed and on n."""
    if kind == "dense":
        return _dense(layers, shape, classes, seed)
    channels = shape[0]
    parts: list[nn.Module] = []
    height, width = shape[1:]
    for n in range(layers):
        rng = random.Random(f"{seed}/{n}")
        made = rng.randint(1, 7)
        parts.append(_block(kind, rng, channels, made))
        channels = made
        if min(height, width) >= 6 and rng.random() < 0.5:
            parts.append(nn.MaxPool2d(2) if rng.random() < 0.5 else nn.AvgPool2d(2))
            height, width = height // 2, width // 2
    parts += [nn.Flatten(), nn.Linear(channels * height * width, classes)]
    return nn.Sequential(*parts)


def _dense(layers: int, shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    parts: list[nn.Module] = [nn.Flatten()] if len(shape) > 1 else []
    features = prod(shape)
    for n in range(layers - 1):
        rng = random.Random(f"{seed}/{n}")
        made = rng.randint(1, 30)
        parts += [nn.Linear(features, made, bias=rng.random() < 0.8), rng.choice(ACTIVATIONS)()]
        features = made
    return nn.Sequential(*parts, nn.Linear(features, classes))


def _block(kind: str, rng: random.Random, channels: int, made: int) -> nn.Module:
    kernel = rng.choice((1, 3, 3, 5))
    conv = nn.Conv2d(channels, made, kernel, padding=kernel // 2, bias=rng.random() < 0.8)
    activation = rng.choice(ACTIVATIONS)()
    if kind == "residual":
        return _Residual(conv, activation, channels, made)
    if kind == "branch":
        return _Branch(conv, activation, nn.Conv2d(channels, made, 1))
    if kind == "norm":
        return nn.Sequential(conv, nn.BatchNorm2d(made), activation)
    if kind == "dropout":
        return nn.Sequential(conv, activation, nn.Dropout(0.2))
    return nn.Sequential(conv, activation)


class _Residual(nn.Module):
    """A convolution with a skip connection."""

    def __init__(self, conv: nn.Module, activation: nn.Module, channels: int, made: int) -> None:
        super().__init__()
        self.conv, self.activation = conv, activation
        self.around = nn.Identity() if channels == made else nn.Conv2d(channels, made, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.activation(self.conv(x) + self.around(x))
        return out


class _Branch(nn.Module):
    """Two branches. One is scaled by the other's mean, then both are added."""

    def __init__(self, conv: nn.Module, activation: nn.Module, other: nn.Module) -> None:
        super().__init__()
        self.conv, self.activation, self.other = conv, activation, other

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.activation(self.conv(x)), self.other(x)
        gate = torch.sigmoid(right.mean((2, 3), keepdim=True))
        out: Tensor = left * gate + right
        return out
