"""From a trained network to shared layers and one structure per class.

    chain = read_chain(dense)                                # convolutions, average, one linear layer
    scores = score_filters(dense, x, y, last=3, how="activation")
    net = decouple(dense, scores, last=3, keep=0.1)
    reestimate_norms(net, x)                                 # weft.graph.split.classes.calibrate

A filter may be copied into several classes. Keeping all filters reproduces the dense logits.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from weft.errors import InputError
from weft.graph.split.classes.network import HEAD, Blueprint, DecoupledNet, Stage, State, compose

Score = Literal["activation", "taylor", "random"]
Keep = float | Sequence[Sequence[int]]  # a share of every layer's filters, or numbers[class][layer]

_PLAIN = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh,
    nn.MaxPool2d, nn.AvgPool2d, nn.Dropout, nn.Dropout2d, nn.Identity,
)  # fmt: skip
_HEADS = (nn.AdaptiveAvgPool2d, nn.Flatten, nn.Linear)
_BETWEEN = (nn.ReLU, nn.Dropout)  # layers that `averaged` may replace, besides linear ones


@dataclass(frozen=True)
class Chain:
    """A network without branches: its layers up to the head, and the linear layer that ends it."""

    body: tuple[tuple[str, nn.Module], ...]
    head: nn.Linear

    @property
    def convolutions(self) -> list[int]:
        return [i for i, (_, layer) in enumerate(self.body) if isinstance(layer, nn.Conv2d)]


def leaves(net: nn.Module) -> list[tuple[str, nn.Module]]:
    """The layers of nested sequences in their order, dots in their names replaced.

    A class derived from nn.Sequential or from a layer is refused, because it may compute something else.
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
                f"layer {name} ({layer}) is used in several places of the network; a network whose "
                "layers share weights cannot be decoupled into classes"
            )
    return layers


def _in_order(net: nn.Sequential, path: str) -> Iterator[tuple[str, nn.Module]]:
    """The layers in their order. A layer that is used in several places (one ReLU for all) comes several
    times."""
    for name, layer in net._modules.items():
        assert layer is not None
        if type(layer) is nn.Sequential:
            yield from _in_order(layer, f"{path}{name}_")
        else:
            yield f"{path}{name}", layer


@torch.no_grad()
def check_chain(net: nn.Module, x: Tensor) -> None:
    """InputError unless the network computes on `x` what its layers compute one after the other."""
    modes = [(part, part.training) for part in net.modules()]
    net.eval()
    try:
        expected, result = net(x), x
        for _, layer in leaves(net):
            result = layer(result)
    finally:
        for part, training in modes:
            part.training = training
    same = result.shape == expected.shape
    if not (same and torch.allclose(result, expected, rtol=1e-4, atol=1e-5, equal_nan=True)):
        raise InputError(
            f"the {type(net).__name__} does not compute what its layers compute one after the other (does "
            "it have hooks?); it cannot be decoupled into classes"
        )


def averaged(net: nn.Module, classes: int) -> nn.Sequential:
    """The same convolutions with an average and one fresh linear layer in place of the dense ones.

    AlexNet and VGG-16 end in layers that mix all features, so these layers cannot be divided into classes.
    """
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
    """Raises InputError unless an average and a linear layer may replace the end of the network."""
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


def read_chain(net: nn.Module) -> Chain:
    """The network's parts. Raises an error that names the first layer that cannot be decoupled."""
    layers = leaves(net)
    body: list[tuple[str, nn.Module]] = []
    for name, layer in layers:
        if isinstance(layer, _HEADS):
            break
        simple = type(layer) is nn.Conv2d and layer.groups == 1
        if not (simple or type(layer) in (*_PLAIN, nn.BatchNorm2d)):
            raise InputError(f"layer {name} ({layer}) cannot be decoupled into classes")
        body.append((name, layer))
    tail = [layer for _, layer in layers[len(body) :] if not isinstance(layer, nn.Dropout)]
    kinds = [type(layer) for layer in tail]
    if kinds != [nn.AdaptiveAvgPool2d, nn.Flatten, nn.Linear] or tail[0].output_size not in (
        1,
        (1, 1),
    ):
        words = ", ".join(kind.__name__ for kind in kinds) or "nothing"
        raise InputError(
            f"the network ends in {words}; to be decoupled it must end in an average over its last "
            "feature maps and one linear layer (averaged(net, classes) makes it so)"
        )
    flatten, head = tail[1:]
    assert isinstance(flatten, nn.Flatten)
    assert isinstance(head, nn.Linear)
    if (flatten.start_dim, flatten.end_dim) != (1, -1):
        raise InputError(f"{flatten} before the last layer: only nn.Flatten() can be decoupled")
    return Chain(tuple(body), head)


def _cut(chain: Chain, last: int) -> int:
    """The position in the body at which the decoupled convolutions begin."""
    convolutions = chain.convolutions
    if not 1 <= last < len(convolutions):
        raise InputError(
            f"last = {last} convolutions to decouple; the network has {len(convolutions)} and at least "
            f"one must stay shared: 1 to {len(convolutions) - 1} are allowed"
        )
    return convolutions[-last]


def blueprint_of(chain: Chain, last: int) -> Blueprint:
    """What stays shared and what becomes structures, for the last `last` convolutions of a chain."""
    cut = _cut(chain, last)
    shared = nn.Sequential()
    for name, layer in chain.body[:cut]:
        shared.add_module(name, copy.deepcopy(layer))
    for layer in shared.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.num_batches_tracked = None
    stages: list[Stage] = []
    for name, layer in chain.body[cut:]:
        if isinstance(layer, nn.Conv2d):
            if (
                isinstance(layer.padding, str)
                or layer.dilation != (1, 1)
                or layer.padding_mode != "zeros"
            ):
                raise InputError(
                    f"convolution {name}: {layer} cannot be decoupled; pad with zeros only"
                )
            stages.append(
                Stage(
                    name,
                    _pair(layer.kernel_size),
                    _pair(layer.stride),
                    _pair(layer.padding),
                    (),
                    None,
                    (),
                )
            )
        elif isinstance(layer, nn.BatchNorm2d):
            between = stages[-1].after
            pools = all(isinstance(item, nn.MaxPool2d | nn.AvgPool2d) for _, item in between)
            if stages[-1].norm or not pools or layer.momentum is None or not layer.affine:
                raise InputError(
                    f"batch norm {name} ({layer}) must be the usual one and follow its convolution, "
                    "with at most a pooling between them"
                )
            stages[-1] = _with(
                stages[-1], between=between, norm=(layer.eps, layer.momentum), after=()
            )
        else:
            stages[-1] = _with(stages[-1], after=(*stages[-1].after, (name, copy.deepcopy(layer))))
    return Blueprint(shared, tuple(stages))


def _pair(value: Sequence[int]) -> tuple[int, int]:
    return int(value[0]), int(value[1])


def _with(stage: Stage, **changes: object) -> Stage:
    return Stage(**{**vars(stage), **changes})


def score_filters(
    net: nn.Module, x: Tensor, y: Tensor, *, last: int, how: Score = "activation",
    classes: int | None = None, seed: int = 0, batch: int = 256,
) -> list[Tensor]:  # fmt: skip
    """How much each filter of each decoupled layer matters to each class: [layer][class, filter].

    `activation`: a class's mean activation times its share in the sum over all classes.
    `taylor`: mean of abs(activation * gradient of the loss) over the class's samples. `random`: a control.
    """
    if how not in get_args(Score):
        raise InputError(f"score {how!r} is not one of {', '.join(get_args(Score))}")
    chain = read_chain(net)
    check_chain(net, x[:2])
    cut, count = _cut(chain, last), classes or chain.head.out_features
    widths = [_filters(chain, i) for i in chain.convolutions[-last:]]
    if how == "random":
        generator = torch.Generator().manual_seed(seed)
        return [torch.rand(count, width, generator=generator) for width in widths]
    sums = [torch.zeros(count, width) for width in widths]
    seen = torch.bincount(y, minlength=count).clamp_min(1)[:, None]
    training = net.training
    net.eval()
    for begin in range(0, len(x), batch):
        part, labels = x[begin : begin + batch], y[begin : begin + batch]
        for total, values in zip(sums, _values(chain, cut, part, labels, how), strict=True):
            total.index_add_(0, labels, values)
    net.train(training)
    means = [total / seen for total in sums]
    if how == "taylor":
        return means
    return [mean * mean / mean.sum(0).clamp_min(1e-12) for mean in means]


def _filters(chain: Chain, index: int) -> int:
    layer = chain.body[index][1]
    assert isinstance(layer, nn.Conv2d)
    return layer.out_channels


def _values(chain: Chain, cut: int, x: Tensor, y: Tensor, how: Score) -> list[Tensor]:
    """For each decoupled layer, one number per sample and filter."""
    outputs: list[Tensor] = []
    with torch.set_grad_enabled(how == "taylor"):
        for index, (_, layer) in enumerate(chain.body):
            if index > cut and isinstance(layer, nn.Conv2d):
                outputs.append(x)
            x = layer(x)
        outputs.append(x)
        if how == "activation":
            return [out.clamp_min(0).mean((2, 3)) for out in outputs]
        loss = functional.cross_entropy(chain.head(x.mean((2, 3))), y, reduction="sum")
        slopes = torch.autograd.grad(loss, outputs)
    return [(o * g).mean((2, 3)).abs().detach() for o, g in zip(outputs, slopes, strict=True)]


def numbers(scores: Sequence[Tensor], keep: Keep) -> list[list[int]]:
    """How many filters each class keeps in each layer: [class][layer]."""
    if not isinstance(keep, float | int):
        counts = [list(map(int, row)) for row in keep]
        good = len(counts) == len(scores[0]) and all(len(row) == len(scores) for row in counts)
        if not good or any(
            not 1 <= n <= s.shape[1] for row in counts for n, s in zip(row, scores, strict=True)
        ):
            sizes = [s.shape[1] for s in scores]
            raise InputError(
                f"filters to keep {counts}: one row for each of {len(scores[0])} classes is needed, "
                f"with 1 up to {sizes} filters"
            )
        return counts
    if not 0 < keep <= 1:
        raise InputError(f"keep = {keep} of the filters; a share above 0 and up to 1 is allowed")
    return by_layer(scores, [keep] * len(scores))


def by_layer(scores: Sequence[Tensor], shares: Sequence[float]) -> list[list[int]]:
    """Numbers of filters for `decouple`: a share of each layer's filters, the same for all classes."""
    row = [max(1, round(share * s.shape[1])) for share, s in zip(shares, scores, strict=True)]
    return [list(row) for _ in scores[0]]


def by_importance(scores: Sequence[Tensor], shares: Sequence[float]) -> list[list[int]]:
    """Numbers of filters for `decouple`: more for classes that need more filters. The mean stays as given.

    A class whose activity is spread over many filters needs more of them. A third of the classes keeps
    a quarter less than the share, a third a quarter more: three sizes, so that they run as three banks.
    """
    need = torch.zeros(len(scores[0]))
    for score in scores:
        mass = score / score.sum(1, keepdim=True).clamp_min(1e-12)
        # The number of equally active filters with the same spread.
        need += 1 / mass.square().sum(1).clamp_min(1e-12)
    rank = need.argsort().argsort()
    third = len(need) // 3
    rows = []
    for place in rank.tolist():
        factor = 0.75 if place < third else 1.25 if place >= len(need) - third else 1.0
        rows.append(
            [
                min(s.shape[1], max(1, round(factor * share * s.shape[1])))
                for s, share in zip(scores, shares, strict=True)
            ]
        )
    return rows


def decouple(net: nn.Module, scores: Sequence[Tensor], *, last: int, keep: Keep) -> DecoupledNet:
    """The trained network as shared layers and structures; keep=1.0 reproduces its logits."""
    chain = read_chain(net)
    blueprint = blueprint_of(chain, last)
    counts = numbers(scores, keep)
    # Ascending numbers, so that keeping all filters keeps their order.
    chosen = [
        [s[label].topk(n).indices.sort().values for n, s in zip(row, scores, strict=True)]
        for label, row in enumerate(counts)
    ]
    layers = [layer for _, layer in chain.body[_cut(chain, last) :]]
    structures = {
        label: _structure(blueprint, layers, chain.head, label, filters)
        for label, filters in enumerate(chosen)
    }
    return compose(blueprint, blueprint.shared.state_dict(), structures)


def _structure(
    blueprint: Blueprint, layers: list[nn.Module], head: nn.Linear, label: int, chosen: list[Tensor]
) -> State:
    """One class's filters out of the dense layers."""
    state: State = {}
    stage = -1
    for layer in layers:
        if isinstance(layer, nn.Conv2d):
            stage += 1
            name, filters = blueprint.stages[stage].name, chosen[stage]
            weight = layer.weight.detach()[filters]
            state[f"{name}.weight"] = weight if stage == 0 else weight[:, chosen[stage - 1]]
            if layer.bias is not None:
                state[f"{name}.bias"] = layer.bias.detach()[filters]
        elif isinstance(layer, nn.BatchNorm2d):
            for key in ("weight", "bias", "running_mean", "running_var"):
                tensor: Tensor = getattr(layer, key)
                state[f"{name}_norm.{key}"] = tensor.detach()[chosen[stage]]
    state[f"{HEAD}.weight"] = head.weight.detach()[label, chosen[-1]].view(1, -1, 1, 1)
    state[f"{HEAD}.bias"] = (
        torch.zeros(1) if head.bias is None else head.bias.detach()[label : label + 1]
    )
    return {key: tensor.clone() for key, tensor in state.items()}
