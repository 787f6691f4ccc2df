"""A convolutional network with an average and one linear layer at its end, in place of its dense layers.

    averaged(zoo.build("vgg16", (3, 32, 32), 10), 10)      # as decoupled training's paper has it

Dense layers can be decoupled as well (`reader.py`). This is for those who want the paper's networks: it makes
another network, with fewer weights, and nothing but the user's own call asks for it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

from torch import nn

from weft.errors import InputError

_HEADS = (nn.AdaptiveAvgPool2d, nn.Flatten, nn.Linear)
_BETWEEN = (nn.ReLU, nn.Dropout)  # of the dense layers that give way


def leaves(net: nn.Module) -> list[tuple[str, nn.Module]]:
    """The layers of nested sequences in their order, dots in their names replaced.

    A class derived from nn.Sequential or from a layer may compute something else: it is refused.
    """
    if type(net) is not nn.Sequential:
        raise InputError(
            f"a {type(net).__name__} cannot be decoupled into classes: it must be an nn.Sequential (not a "
            "class derived from it, whose forward may do anything) of convolutions, batch norms, "
            "activations and pooling, then an average and a linear layer"
        )
    layers = list(_in_order(net, ""))
    weighted = [layer for _, layer in layers if list(layer.parameters())]
    for name, layer in layers:
        if sum(layer is other for other in weighted) > 1:
            raise InputError(
                f"layer {name} ({layer}) stands in several places of the network; a network whose "
                "layers share weights cannot be decoupled into classes"
            )
    return layers


def _in_order(net: nn.Sequential, path: str) -> Iterator[tuple[str, nn.Module]]:
    """A layer that stands in several places (one ReLU for all) comes in each of them."""
    for name, layer in net._modules.items():
        assert layer is not None
        if type(layer) is nn.Sequential:
            yield from _in_order(layer, f"{path}{name}_")
        else:
            yield f"{path}{name}", layer


def averaged(net: nn.Module, classes: int) -> nn.Sequential:
    """The same convolutions with an average and one fresh linear layer in place of the dense ones."""
    body: list[tuple[str, nn.Module]] = []
    width = 0
    layers = leaves(net)
    for name, layer in layers:
        if isinstance(layer, _HEADS):
            break
        body.append((name, copy.deepcopy(layer)))
        width = layer.out_channels if isinstance(layer, nn.Conv2d) else width
    if not width:
        raise InputError("a network without convolutions cannot be decoupled into classes")
    _check_dense([layer for _, layer in layers[len(body) :]])
    built = nn.Sequential()
    for name, layer in body:
        built.add_module(name, layer)
    built.add_module("average", nn.AdaptiveAvgPool2d(1))
    built.add_module("flatten", nn.Flatten())
    built.add_module("fc", nn.Linear(width, classes))
    return built


def _check_dense(end: list[nn.Module]) -> None:
    """InputError unless the end is what an average and a linear layer may stand in for."""
    kinds = [type(layer) for layer in end if type(layer) is not nn.Dropout]
    if kinds[:1] == [nn.AdaptiveAvgPool2d]:
        kinds = kinds[1:]
    dense = kinds[1:]
    right = kinds[:1] == [nn.Flatten] and dense[-1:] == [nn.Linear]
    if not right or not all(kind in (nn.Linear, *_BETWEEN) for kind in dense):
        words = ", ".join(type(layer).__name__ for layer in end) or "nothing"
        raise InputError(
            f"the network ends in {words}; only an end of an average (or none), a flatten and linear "
            "layers, with ReLU and Dropout between them, can give way to an average and one linear layer"
        )
