"""Networks without branches: a multi-layer perceptron, LeNet-5, AlexNet, the VGG family, and five
convolutions for small images.

alexnet((3, 64, 64), 200)      # the first fully connected layer follows the input's size
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torch import nn

from weft.errors import InputError
from weft.zoo.parts import Shape, average_head, conv_norm, he, image_shape, named


class _Chain:
    """Builds a network layer by layer and tracks the shape of its output."""

    def __init__(self, model: str, input_shape: Shape) -> None:
        self.model = model
        self.input_shape = input_shape
        self.channels, self.height, self.width = image_shape(model, input_shape)
        self.children: list[tuple[str, nn.Module]] = []

    def conv(self, name: str, channels: int, kernel: int, stride: int = 1, pad: int = 0) -> None:
        height = (self.height + 2 * pad - kernel) // stride + 1
        width = (self.width + 2 * pad - kernel) // stride + 1
        if min(height, width) < 1:
            raise InputError(
                f"model {self.model!r}: input_shape {self.input_shape} is too small: at conv{name} "
                f"a {kernel}x{kernel} kernel meets a {self.height}x{self.width} map"
            )
        layer = nn.Conv2d(self.channels, channels, kernel, stride, pad)
        self.children += [(f"conv{name}", layer), (f"relu{name}", nn.ReLU())]
        self.channels, self.height, self.width = channels, height, width

    def pool(self, name: str, kernel: int, stride: int = 2) -> None:
        """Max pooling. It is left out if the map is already smaller, so that small images work."""
        if kernel > min(self.height, self.width):
            return
        self.children.append((f"pool{name}", nn.MaxPool2d(kernel, stride)))
        self.height = (self.height - kernel) // stride + 1
        self.width = (self.width - kernel) // stride + 1

    def classify(self, sizes: Sequence[int], first: int, dropout: float = 0.0) -> nn.Sequential:
        """Ends the chain with fully connected layers, numbered from `first`."""
        self.children.append(("flatten", nn.Flatten()))
        features = self.channels * self.height * self.width
        for number, size in enumerate(sizes, start=first):
            self.children.append((f"fc{number}", nn.Linear(features, size)))
            if number < first + len(sizes) - 1:
                self.children.append((f"relu{number}", nn.ReLU()))
                if dropout:
                    self.children.append((f"dropout{number}", nn.Dropout(dropout)))
            features = size
        return named(*self.children).apply(he)


def mlp(input_shape: Shape, classes: int, *, width: int = 64, depth: int = 4) -> nn.Sequential:
    """StitchNet's perceptron: `depth` hidden layers of `width`, Xavier uniform, zero bias."""
    children: list[tuple[str, nn.Module]] = [("flatten", nn.Flatten())]
    features = prod(input_shape)
    for number in range(1, depth + 1):
        children += [(f"fc{number}", nn.Linear(features, width)), (f"relu{number}", nn.ReLU())]
        features = width
    children.append((f"fc{depth + 1}", nn.Linear(features, classes)))
    for _, module in children:
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
    return named(*children)


def lenet5(input_shape: Shape, classes: int) -> nn.Sequential:
    """LeNet-5 with ReLU and max pooling; smaller images than 32x32 are padded, as MNIST was."""
    chain = _Chain("lenet5", input_shape)
    chain.conv("1", 6, 5, pad=2 if min(chain.height, chain.width) < 32 else 0)
    chain.pool("1", 2)
    chain.conv("2", 16, 5)
    chain.pool("2", 2)
    return chain.classify([120, 84, classes], first=3)


def alexnet(input_shape: Shape, classes: int, *, dropout: float = 0.5) -> nn.Sequential:
    """AlexNet as CoopAI counts it: one group, padding 2 on the first layer, no response norm."""
    chain = _Chain("alexnet", input_shape)
    chain.conv("1", 96, 11, stride=4, pad=2)
    chain.pool("1", 3)
    chain.conv("2", 256, 5, pad=2)
    chain.pool("2", 3)
    chain.conv("3", 384, 3, pad=1)
    chain.conv("4", 384, 3, pad=1)
    chain.conv("5", 256, 3, pad=1)
    chain.pool("5", 3)
    return chain.classify([4096, 4096, classes], first=6, dropout=dropout)


def _vgg(
    model: str,
    input_shape: Shape,
    stages: Sequence[tuple[int, int]],  # (convolutions, channels), a pool after each stage
    sizes: Sequence[int],
    dropout: float,
) -> nn.Sequential:
    chain = _Chain(model, input_shape)
    for stage, (convolutions, channels) in enumerate(stages, start=1):
        for number in range(1, convolutions + 1):
            chain.conv(f"{stage}_{number}", channels, 3, pad=1)
        chain.pool(f"{stage}", 2)
    return chain.classify(sizes, first=len(stages) + 1, dropout=dropout)


def vgg16(input_shape: Shape, classes: int, *, dropout: float = 0.5) -> nn.Sequential:
    """VGG16 as in its paper."""
    stages = [(2, 64), (2, 128), (3, 256), (3, 512), (3, 512)]
    return _vgg("vgg16", input_shape, stages, [4096, 4096, classes], dropout)


def vgg19(input_shape: Shape, classes: int, *, dropout: float = 0.5) -> nn.Sequential:
    """VGG19 as in its paper."""
    stages = [(2, 64), (2, 128), (4, 256), (4, 512), (4, 512)]
    return _vgg("vgg19", input_shape, stages, [4096, 4096, classes], dropout)


def vgg_small(input_shape: Shape, classes: int) -> nn.Sequential:
    """Two VGG stages for small images. It learns in seconds and can be sliced like the large ones."""
    return _vgg("vgg-small", input_shape, [(2, 32), (2, 64)], [128, classes], dropout=0.0)


def cnn5(input_shape: Shape, classes: int, *, width: int = 16) -> nn.Sequential:
    """Five convolutions with batch norm for small images; decoupled training's small network."""
    channels, height, side = image_shape("cnn5", input_shape)
    children: list[tuple[str, nn.Module]] = []
    for number, outputs in enumerate((width, 2 * width, *[4 * width] * 3), start=1):
        parts = dict(conv_norm(channels, outputs, 3))
        children.append((f"conv{number}", parts["conv"]))
        if number <= 3 and min(height, side) >= 2:
            # The pool comes before the batch norm, which then reads only a quarter of the numbers.
            children.append((f"pool{number}", nn.MaxPool2d(2)))
            height, side = height // 2, side // 2
        children += [(f"norm{number}", parts["norm"]), (f"relu{number}", nn.ReLU())]
        channels = outputs
    return named(*children, *average_head(channels, classes)).apply(he)
