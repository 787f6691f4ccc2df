"""YOLOv2: 23 convolutions in the order of the Darknet configuration, with its passthrough.

The passthrough leads the finer map of convolution 13 past the last pooling. Convolution 21 reduces its
channels, every 2x2 patch becomes channels, and the result joins the coarse map before convolution 22.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from weft.errors import InputError
from weft.zoo.parts import Shape, conv_norm, he, image_shape, named

ANCHORS = 5  # boxes predicted per cell, each with 4 coordinates, 1 confidence and the classes

# (output channels, kernel) of convolutions 1 to 20; None is a 2x2 pooling.
_FINE = [
    (32, 3), None, (64, 3), None, (128, 3), (64, 1), (128, 3), None,
    (256, 3), (128, 1), (256, 3), None, (512, 3), (256, 1), (512, 3), (256, 1), (512, 3),
]  # fmt: skip
_COARSE = [
    None, (1024, 3), (512, 1), (1024, 3), (512, 1), (1024, 3), (1024, 3), (1024, 3),
]  # fmt: skip


def _conv(inputs: int, outputs: int, kernel: int) -> nn.Sequential:
    return named(*conv_norm(inputs, outputs, kernel), ("leaky", nn.LeakyReLU(0.1)))


def _body(
    inputs: int, layers: list[tuple[int, int] | None], first: int
) -> tuple[nn.Sequential, int]:
    """The layers as a module, and the number of output channels. Convolutions are numbered from `first`."""
    children: list[tuple[str, nn.Module]] = []
    number = first
    for layer in layers:
        if layer is None:
            children.append((f"pool{number - 1}", nn.MaxPool2d(2, 2)))
            continue
        outputs, kernel = layer
        children.append((f"conv{number}", _conv(inputs, outputs, kernel)))
        inputs, number = outputs, number + 1
    return named(*children), inputs


class YoloV2(nn.Module):
    """Maps (N, channels, H, W) to (N, ANCHORS * (5 + classes), H/32, W/32)."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.fine, fine = _body(channels, _FINE, first=1)
        self.coarse, coarse = _body(fine, _COARSE, first=14)
        self.conv21 = _conv(fine, 64, 1)
        self.conv22 = _conv(4 * 64 + coarse, 1024, 3)
        self.conv23 = nn.Conv2d(1024, ANCHORS * (5 + classes), 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.fine(x)
        coarse = self.coarse(fine)
        passed = functional.pixel_unshuffle(self.conv21(fine), 2)
        boxes: Tensor = self.conv23(self.conv22(torch.cat([passed, coarse], 1)))
        return boxes


def yolov2(input_shape: Shape, classes: int) -> YoloV2:
    """YOLOv2, whose output is a map of boxes."""
    channels, height, width = image_shape("yolov2", input_shape)
    if height % 32 or width % 32:
        raise InputError(
            f"model 'yolov2': input_shape {input_shape}: height {height} and width {width} "
            "must be multiples of 32, so that the passthrough meets the coarse map"
        )
    return YoloV2(channels, classes).apply(he)
