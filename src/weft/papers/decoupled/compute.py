"""The paper's Figure 5: how much a peer computes, counted from shapes.

    [load.per_epoch for load in loads()]

The printed factors come out if a peer's smaller share of the samples counts too. Per sample, decoupling gives
at most 1.65x, because the shared layers of VGG-16 are 61% of its work.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from weft.strategies.decoupled.costs import TRAINING, ClassCosts, class_costs, convolutions

LAST = 6  # decoupled layers of VGG-16: conv4_1 to conv5_3


@dataclass(frozen=True)
class Configuration:
    """One bar of the figure. `hidden`: sizes of the dense layers before the network was decoupled."""

    id: str
    label: str
    channels: int
    classes: int
    held: int
    peers: int
    filters: int  # of 512, for each class and layer, as the paper prints
    samples: int  # in the training part of the data set
    hidden: tuple[int, ...]
    paper: float | None


CONFIGURATIONS = (
    Configuration("cifar10", "CIFAR-10, 10N_2Cls", 3, 10, 2, 10, 52, 50_000, (512, 512), 7.8),
    Configuration("cifar100", "CIFAR-100, 10N_20Cls", 3, 100, 20, 10, 5, 50_000, (512, 512), 8.5),
    Configuration("kws", "keywords, 4 of 30", 1, 30, 4, 15, 52, 51_088, (), 11.8),
    Configuration("4N_5Cls", "CIFAR-10, 4N_5Cls", 3, 10, 5, 4, 52, 50_000, (512, 512), None),
)


@dataclass(frozen=True)
class Load:
    """The multiply-adds of one of the paper's configurations."""

    id: str
    label: str
    paper: float | None
    dense_macs: int
    shared_macs: int
    peer_macs: int
    per_sample: float
    per_epoch: float
    aggregation_share: float  # operations of one exchange divided by those of a peer's epoch


@cache
def vgg_costs(channels: int) -> ClassCosts:
    """The costs of VGG's shared and decoupled layers."""
    import torch

    from weft import zoo
    from weft.graph.capture.module import capture
    from weft.graph.split.classes.averaged import averaged

    with torch.device("meta"):  # only shapes are needed
        net = averaged(zoo.build("vgg16", (channels, 32, 32), 10), 10)
        graph = capture(net, torch.empty(2, channels, 32, 32), name="vgg16")
    return class_costs(convolutions(graph), LAST, 10)


def load_of(one: Configuration) -> Load:
    """The load of one configuration."""
    base = vgg_costs(one.channels)
    costs = ClassCosts(base.shared, base.decoupled, one.classes, one.hidden)
    filters = [one.filters] * LAST
    peer = costs.peer_macs(filters, one.held)
    epoch = 2.0 * TRAINING * peer * one.samples * one.held / one.classes
    return Load(
        one.id,
        one.label,
        one.paper,
        costs.dense_macs(),
        costs.shared_macs(),
        peer,
        costs.per_sample(filters, one.held),
        costs.per_epoch(filters, one.held),
        costs.aggregation(filters, one.held, one.peers) / epoch,
    )


def loads() -> list[Load]:
    """The loads of all configurations."""
    return [load_of(one) for one in CONFIGURATIONS]
