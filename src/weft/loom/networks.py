"""Generated networks: profiles without a network, small modules, and the zoo on small inputs.

    net = Net(kind="conv", layers=3, shape=(2, 9, 11), classes=4, seed=7)
    graph_of(net)                 # captured once per process
    module_of(net)                # with weights from its seed

Layer n of a generated network depends only on the seed and on n: a network with fewer layers has the same
first layers.
"""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Literal, get_args

import torch
from msgspec import Struct
from torch import Tensor, nn

from weft import zoo
from weft.fleet.fleet import Fleet
from weft.graph.capture.module import capture, capture_loss
from weft.graph.network import Graph
from weft.loom.modules import build
from weft.plans.derive import derive_profile, derive_times
from weft.plans.profile import DeviceTimes, LayerCost, Profile

NetKind = Literal["profile", "zoo", "dense", "conv", "residual", "branch", "norm", "dropout"]
Times = Literal["derived", "random", "calls"]
TIMES: tuple[Times, ...] = get_args(Times)
LOSSES = ("cross_entropy", "cross_entropy_sum", "mse", "smooth_l1", "own")
POOL = 6  # different captured networks of each kind and seed: capturing takes half a second
SMALL_ZOO: dict[str, tuple[tuple[int, ...], ...]] = {
    "mlp": ((1, 6, 6), (1, 7, 5)),
    "lenet5": ((1, 28, 28), (1, 31, 29)),
    "vgg-small": ((1, 16, 16), (3, 18, 12)),
    "cnn5": ((3, 16, 16), (1, 20, 17)),
    "resnet8": ((1, 12, 12), (3, 15, 9)),
    "transformer": ((1, 8, 8), (1, 12, 6)),
}
LARGER_ZOO: dict[str, tuple[tuple[int, ...], ...]] = {
    "alexnet": ((3, 64, 64),),
    "resnet18": ((3, 32, 32),),
    "mobilenet": ((3, 32, 32),),
    "googlenet": ((3, 64, 64),),
}
GENERATED: tuple[NetKind, ...] = ("dense", "conv", "residual", "branch", "norm")


class Net(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A network by its recipe."""

    kind: NetKind
    layers: int = 1
    seed: int = 0
    shape: tuple[int, ...] = ()
    classes: int = 2
    name: str = ""  # of the zoo
    times: Times = "derived"  # of a profile


def draw_net(rng: random.Random, seed: int, kind: str, small: bool = False) -> Net:
    """A network for planning: mostly a profile; a captured network if units or rows are cut."""
    classes = rng.choice((1, 2, 3, 5, 10))
    if kind in ("tiers", "peers") and rng.random() < 0.8:
        times = rng.choice(TIMES)
        layers = rng.choice((1, 2, 3, 4) if small else (1, 2, 3, 3, 4, 4, 5, 6, 8, 12))
        return Net("profile", layers, rng.randrange(10**6), classes=classes, times=times)
    if kind == "tiers" and not small and rng.random() < 0.2:
        name = rng.choice(tuple(LARGER_ZOO))
        return Net("zoo", name=name, shape=LARGER_ZOO[name][0], classes=10)
    return _captured(rng, seed, kind)


def draw_small_net(rng: random.Random, seed: int, kind: str) -> Net:
    """A network for a real run."""
    if kind == "peers":  # peers need a data set that every device has
        return Net("zoo", name="cnn5", shape=(1, 8, 8), classes=10)
    return _captured(rng, seed, kind)


def _captured(rng: random.Random, seed: int, kind: str) -> Net:
    """One of a bounded number of networks for each seed."""
    generated = ("dense", "dense", "conv", "norm") if kind == "swarm" else GENERATED
    if rng.random() < 0.25:
        names = ("mlp", "lenet5") if kind == "swarm" else tuple(SMALL_ZOO)
        name = rng.choice(names)
        return Net("zoo", name=name, shape=rng.choice(SMALL_ZOO[name]), classes=10)
    chosen, number = rng.choice(generated), rng.randrange(POOL)
    recipe = random.Random(f"{seed}/{chosen}/{number}")
    shape: tuple[int, ...] = (recipe.randint(1, 3), recipe.randint(5, 17), recipe.randint(5, 13))
    if chosen == "dense":
        shape = (recipe.randint(1, 40),)
    classes = recipe.choice((1, 2, 3, 5, 10))
    return Net(chosen, recipe.randint(1, 6), recipe.randrange(10**6), shape, classes)


def profile_of(net: Net, fleet: Fleet, graph: Graph | None = None) -> Profile:
    """The profile of the network that a planner gets."""
    if graph is not None:
        return derive_profile(graph, fleet)
    layers = tuple(_layer(net, n) for n in range(net.layers))
    rng = random.Random(f"{net.seed}/input")
    devices = {d.name: _times(net, layers, d.name, d.gflops or 1.0) for d in fleet.devices}
    return Profile(
        "generated",
        input_bytes=rng.choice((4, 784, 3072, 49_152, 150_528)),
        layers=layers,
        devices=devices,
        target_bytes=rng.choice((8, 8, 4, 40)),
    )


def _layer(net: Net, n: int) -> LayerCost:
    rng = random.Random(f"{net.seed}/{n}")
    last = n == net.layers - 1
    output = 4 * net.classes if last else 4 * round(10 ** rng.uniform(0, 5))
    params = rng.choice((0, 4 * round(10 ** rng.uniform(0, 6)), 4 * round(10 ** rng.uniform(2, 5))))
    # Token numbers, which have no gradient, cross the cut too.
    part = rng.random() < 0.1 and not last
    return LayerCost(
        name=f"l{n}",
        param_bytes=params,
        output_bytes=output,
        forward_flops=round(10 ** rng.uniform(3, 9)),
        saved_bytes=rng.choice((0, output, 3 * output)),
        backward_bytes=output // 2 if part else None,
    )


def _times(net: Net, layers: tuple[LayerCost, ...], device: str, gflops: float) -> DeviceTimes:
    if net.times == "derived":
        return derive_times(layers, gflops)
    rng = random.Random(f"{net.seed}/{device}")

    def some(low: float, high: float) -> tuple[float, ...]:
        return tuple(10 ** rng.uniform(low, high) / gflops for _ in layers)

    calls = net.times == "calls"
    return DeviceTimes(
        forward_s=some(-6, -2),
        backward_s=some(-6, -2),
        update_s=some(-7, -3),
        forward_call_s=some(-6, -3) if calls else (),
        backward_call_s=some(-6, -3) if calls else (),
    )


def rough_bytes(net: Net, batch: int) -> float:
    """The approximate memory for training the whole network. Memory limits are drawn around it."""
    if net.kind == "profile":
        layers = [_layer(net, n) for n in range(net.layers)]
        return sum(3 * layer.param_bytes + batch * layer.saved_bytes for layer in layers) + 1e4
    return 2e6


@lru_cache(maxsize=256)
def graph_of(net: Net) -> Graph:
    """The captured network. Its weights have only shapes."""
    with torch.device("meta"):
        module = _module(net)
        example = torch.zeros(2, *net.shape)
    return capture(module, example, name=net.name or net.kind)


@lru_cache(maxsize=256)
def graph_with_loss(net: Net, loss: str) -> Graph:
    """The captured network with a loss, so that labels cross links too."""
    return capture_loss(graph_of(net), loss_of(loss), minibatch(net, loss, 2, 0, 0)[1])


def module_of(net: Net) -> nn.Module:
    """The network with weights from its seed."""
    torch.manual_seed(net.seed)
    return _module(net)


def _module(net: Net) -> nn.Module:
    if net.kind == "zoo":
        return zoo.build(net.name, net.shape, net.classes)
    return build(net.kind, net.layers, net.shape, net.classes, net.seed)


def minibatch(net: Net, loss: str, batch: int, seed: int, step: int) -> tuple[Tensor, Tensor]:
    """Samples and targets of a minibatch, in the form that the loss needs."""
    generator = torch.Generator().manual_seed(seed * 10_007 + step)
    x = torch.randn(batch, *net.shape, generator=generator)
    if loss.startswith("cross_entropy"):
        return x, torch.randint(0, net.classes, (batch,), generator=generator)
    return x, torch.randn(batch, net.classes, generator=generator)


def loss_of(name: str) -> nn.Module:
    """The loss by its name."""
    made: dict[str, nn.Module] = {
        "cross_entropy": nn.CrossEntropyLoss(),
        "cross_entropy_sum": nn.CrossEntropyLoss(reduction="sum"),
        "mse": nn.MSELoss(),
        "smooth_l1": nn.SmoothL1Loss(),
        "own": _OwnLoss(),
    }
    return made[name]


class _OwnLoss(nn.Module):
    """A loss as a user may write it: a mean over samples of the user's own function."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return ((output - target).abs() + 0.1 * output.pow(2)).mean()
