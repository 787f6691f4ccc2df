"""The zoo's register: every network by name, with the input it was published for.

models.build("alexnet", (3, 64, 64), 200)
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from weft.errors import InputError
from weft.zoo.chains import alexnet, cnn5, lenet5, mlp, vgg16, vgg19, vgg_small
from weft.zoo.googlenet import googlenet
from weft.zoo.mobilenet import mobilenet
from weft.zoo.parts import Shape
from weft.zoo.resnet import resnet8, resnet18, resnet34, resnet50
from weft.zoo.transformer import transformer
from weft.zoo.yolov2 import yolov2


@dataclass(frozen=True)
class Model:
    """A network that can be built: `build(input_shape, classes)`, shapes per sample."""

    name: str
    summary: str
    build: Callable[..., nn.Module]
    input_shape: Shape
    classes: int


_GREY = (1, 28, 28)
_SMALL = (3, 32, 32)
_LARGE = (3, 224, 224)

_MODELS = {
    model.name: model
    for model in (
        Model("mlp", "perceptron with four hidden layers of 64 (StitchNet)", mlp, _GREY, 10),
        Model("lenet5", "LeNet-5: two convolutions, three dense layers", lenet5, _GREY, 10),
        Model("vgg-small", "two VGG stages for small images", vgg_small, _GREY, 10),
        Model("cnn5", "five convolutions with batch norm (decoupled training)", cnn5, _SMALL, 10),
        Model("resnet8", "small residual network with batch norm", resnet8, _GREY, 10),
        Model("transformer", "tiny encoder over image rows or tokens", transformer, _GREY, 10),
        Model("alexnet", "AlexNet, ungrouped: 62 M parameters", alexnet, _LARGE, 1000),
        Model("vgg16", "VGG-16: 138 M parameters", vgg16, _LARGE, 1000),
        Model("vgg19", "VGG-19: 144 M parameters", vgg19, _LARGE, 1000),
        Model("googlenet", "GoogLeNet: nine inception modules", googlenet, _LARGE, 1000),
        Model("mobilenet", "MobileNet: depthwise convolutions", mobilenet, _LARGE, 1000),
        Model("resnet18", "ResNet-18: basic blocks", resnet18, _LARGE, 1000),
        Model("resnet34", "ResNet-34: basic blocks", resnet34, _LARGE, 1000),
        Model("resnet50", "ResNet-50: bottleneck blocks", resnet50, _LARGE, 1000),
        Model("yolov2", "YOLOv2: object detection with a passthrough", yolov2, (3, 608, 608), 80),
    )
}


def names() -> list[str]:
    """The networks of the zoo."""
    return list(_MODELS)


def get(name: str) -> Model:
    """The entry of that name. Raises InputError, with similar names, for an unknown name."""
    if name not in _MODELS:
        near = difflib.get_close_matches(name.lower(), _MODELS, n=3)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise InputError(f"model {name!r} is unknown; {hint}allowed: {', '.join(_MODELS)}")
    return _MODELS[name]


def build(name: str, input_shape: Shape | None = None, classes: int | None = None) -> nn.Module:
    """The network with new weights, for the given input shape and number of classes, if they are given."""
    model = get(name)
    shape = model.input_shape if input_shape is None else tuple(input_shape)
    count = model.classes if classes is None else classes
    if not shape or min(shape) < 1:
        raise InputError(f"model {name!r}: input_shape {shape}: every dimension must be at least 1")
    if count < 1:
        raise InputError(f"model {name!r}: classes {count}: must be at least 1")
    return model.build(shape, count)
