"""The networks of the study: a small one with five convolutions, and the paper's AlexNet and VGG-16.

    network("vgg16", (3, 32, 32), 10)

The paper does not print how its AlexNet and VGG-16 end for 32x32 images. Here an average and one linear layer
replace their dense layers, and a batch norm follows each convolution. Without the batch norms VGG-16 does not
learn from a few thousand samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


def network(name: str, shape: Sequence[int], classes: int, width: int = 16) -> nn.Module:
    """A new network for images of a shape; `width` is for cnn5."""
    from weft import zoo
    from weft.graph.split.classes.averaged import averaged
    from weft.zoo.chains import cnn5

    sizes = tuple(shape)
    if name == "cnn5":
        return cnn5(sizes, classes, width=width)
    return normalised(averaged(zoo.build(name, sizes, classes), classes))


def normalised(net: nn.Sequential) -> nn.Sequential:
    """The same layers with a batch norm after each convolution."""
    from torch import nn

    built = nn.Sequential()
    for name, layer in net.named_children():
        built.add_module(name, layer)
        if isinstance(layer, nn.Conv2d):
            built.add_module(f"{name}_norm", nn.BatchNorm2d(layer.out_channels))
    return built
