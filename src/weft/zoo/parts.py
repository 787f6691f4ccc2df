"""Parts that several networks of the zoo use."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from weft.errors import InputError

Shape = tuple[int, ...]


def image_shape(model: str, shape: Shape) -> tuple[int, int, int]:
    """The shape as (channels, height, width). Raises an error if it is not the shape of an image."""
    if len(shape) != 3:
        raise InputError(
            f"model {model!r}: input_shape {shape} has {len(shape)} dimensions; "
            "it takes images, so 3 are needed (channels, height, width)"
        )
    return shape[0], shape[1], shape[2]


def named(*children: tuple[str, nn.Module]) -> nn.Sequential:
    """A sequence whose children have names, so that weights are called `conv1.weight`."""
    return nn.Sequential(OrderedDict(children))


def conv_norm(
    inputs: int, outputs: int, kernel: int, stride: int = 1, *, groups: int = 1
) -> list[tuple[str, nn.Module]]:
    """A convolution that keeps the size (up to its stride) and its batch norm, no bias."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [("conv", conv), ("norm", nn.BatchNorm2d(outputs))]


def conv_norm_relu(
    inputs: int, outputs: int, kernel: int, stride: int = 1, *, groups: int = 1
) -> nn.Sequential:
    """A convolution, its batch norm, and ReLU."""
    return named(*conv_norm(inputs, outputs, kernel, stride, groups=groups), ("relu", nn.ReLU()))


def average_head(features: int, classes: int, dropout: float = 0.0) -> list[tuple[str, nn.Module]]:
    """Averages every feature map and classifies, so the network takes images of any size."""
    children: list[tuple[str, nn.Module]] = [
        ("average", nn.AdaptiveAvgPool2d(1)),
        ("flatten", nn.Flatten()),
    ]
    if dropout:
        children.append(("dropout", nn.Dropout(dropout)))
    return [*children, ("fc", nn.Linear(features, classes))]


def he(module: nn.Module) -> None:
    """He's initialisation. Without it, deep chains without batch norm do not learn.

    Applied to one module after another by `nn.Module.apply`.
    """
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    elif isinstance(module, nn.Linear):
        nn.init.kaiming_normal_(module.weight, nonlinearity="linear")
    else:
        return
    if module.bias is not None:
        nn.init.zeros_(module.bias)
