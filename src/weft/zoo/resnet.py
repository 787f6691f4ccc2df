"""Residual networks: 18, 34 and 50 layers for large images, 8 layers for small ones.

A block whose shape changes has a projection (1x1 convolution and batch norm) in its shortcut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from weft.zoo.parts import (
    Shape,
    average_head,
    conv_norm,
    conv_norm_relu,
    he,
    image_shape,
    named,
)

Body = Callable[[int, int, int], nn.Sequential]  # (inputs, width, stride)


class Residual(nn.Module):
    """relu(body(x) + shortcut(x))."""

    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.body(x) + self.shortcut(x)
        return torch.relu(total)


def _basic(inputs: int, width: int, stride: int) -> nn.Sequential:
    """Two 3x3 convolutions."""
    return named(
        ("first", conv_norm_relu(inputs, width, 3, stride)),
        ("second", named(*conv_norm(width, width, 3))),
    )


def _bottleneck(inputs: int, width: int, stride: int) -> nn.Sequential:
    """1x1, 3x3, 1x1. The 3x3 convolution has the stride, because it then skips no input."""
    return named(
        ("reduce", conv_norm_relu(inputs, width, 1)),
        ("middle", conv_norm_relu(width, width, 3, stride)),
        ("expand", named(*conv_norm(width, 4 * width, 1))),
    )


def _stages(
    body: Body, expansion: int, inputs: int, stages: Sequence[tuple[int, int]]
) -> list[tuple[str, nn.Module]]:
    """Stages of (blocks, width); every stage but the first halves the image."""
    children: list[tuple[str, nn.Module]] = []
    for stage, (blocks, width) in enumerate(stages, start=1):
        outputs = width * expansion
        for block in range(1, blocks + 1):
            stride = 2 if stage > 1 and block == 1 else 1
            same = stride == 1 and inputs == outputs
            shortcut = nn.Identity() if same else named(*conv_norm(inputs, outputs, 1, stride))
            children.append(
                (f"block{stage}_{block}", Residual(body(inputs, width, stride), shortcut))
            )
            inputs = outputs
    return children


def _large(
    model: str, input_shape: Shape, classes: int, body: Body, expansion: int, blocks: Sequence[int]
) -> nn.Sequential:
    """The form for large images: a 7x7 stem that divides the size by four, then four stages."""
    channels, _, _ = image_shape(model, input_shape)
    stages = list(zip(blocks, (64, 128, 256, 512), strict=True))
    return named(
        ("stem", conv_norm_relu(channels, 64, 7, 2)),
        ("pool", nn.MaxPool2d(3, 2, padding=1)),
        *_stages(body, expansion, 64, stages),
        *average_head(512 * expansion, classes),
    ).apply(he)


def resnet8(input_shape: Shape, classes: int) -> nn.Sequential:
    """The CIFAR form with one block a stage: 16, 32 and 64 channels."""
    channels, _, _ = image_shape("resnet8", input_shape)
    return named(
        ("stem", conv_norm_relu(channels, 16, 3)),
        *_stages(_basic, 1, 16, [(1, 16), (1, 32), (1, 64)]),
        *average_head(64, classes),
    ).apply(he)


def resnet18(input_shape: Shape, classes: int) -> nn.Sequential:
    """ResNet-18."""
    return _large("resnet18", input_shape, classes, _basic, 1, (2, 2, 2, 2))


def resnet34(input_shape: Shape, classes: int) -> nn.Sequential:
    """ResNet-34."""
    return _large("resnet34", input_shape, classes, _basic, 1, (3, 4, 6, 3))


def resnet50(input_shape: Shape, classes: int) -> nn.Sequential:
    """ResNet-50."""
    return _large("resnet50", input_shape, classes, _bottleneck, 4, (3, 4, 6, 3))
