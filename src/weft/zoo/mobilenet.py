"""MobileNet, first version: depthwise convolutions, each followed by a 1x1 convolution."""

from __future__ import annotations

from torch import nn

from weft.zoo.parts import Shape, average_head, conv_norm_relu, he, image_shape, named

# (output channels, stride) of the thirteen pairs
_PAIRS = [
    (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2),
    (512, 1), (512, 1), (512, 1), (512, 1), (512, 1), (1024, 2), (1024, 1),
]  # fmt: skip


def mobilenet(input_shape: Shape, classes: int) -> nn.Sequential:
    """MobileNet: depthwise and pointwise convolutions."""
    channels, _, _ = image_shape("mobilenet", input_shape)
    children: list[tuple[str, nn.Module]] = [("stem", conv_norm_relu(channels, 32, 3, 2))]
    features = 32
    for number, (outputs, stride) in enumerate(_PAIRS, start=1):
        depthwise = conv_norm_relu(features, features, 3, stride, groups=features)
        pointwise = conv_norm_relu(features, outputs, 1)
        children += [(f"depthwise{number}", depthwise), (f"pointwise{number}", pointwise)]
        features = outputs
    return named(*children, *average_head(features, classes)).apply(he)
