"""CoopAI's experiments on the paper's own cost model: MLS and SLS on up to ten Raspberry Pi 4.

    runs = run_network(captured("vgg16"), "VGG16")
    runs.best("mls").devices       # 7

They are run for every number of devices behind the gateway and for every bandwidth.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

from weft.graph.network import Graph
from weft.planning.task import named_graph
from weft.strategies.coopai.geometry import Geometry, geometry_of
from weft.strategies.coopai.model import Speeds
from weft.strategies.coopai.passthrough import as_printed
from weft.strategies.coopai.rows import row_work
from weft.strategies.coopai.search import Split, best_splits

NETWORKS = {"alexnet": "AlexNet", "vgg16": "VGG16", "vgg19": "VGG19", "yolov2": "YOLOv2"}
DEVICES = 10
GFLOPS = 13.6  # of a Raspberry Pi 4
MBPS = 100.0
SWEEP = tuple(range(40, 401, 40))  # Mbps

Method = Literal["mls", "sls"]
METHODS: tuple[Method, ...] = ("mls", "sls")


@dataclass(frozen=True)
class NetworkRuns:
    """One network: the best split for every k, and the best time at every bandwidth."""

    title: str
    graph: Graph
    splits: dict[Method, list[Split]]
    by_mbps: dict[Method, tuple[float, ...]]

    def best(self, method: Method) -> Split:
        """The fastest split of a method."""
        return min(self.splits[method], key=lambda split: split.seconds)

    def seconds(self, method: Method) -> list[float]:
        """Seconds of a method by number of devices, from 1 on."""
        return [split.seconds for split in self.splits[method]]

    @property
    def saved(self) -> float:
        """Percent that MLS saves against SLS, each with its best number of devices."""
        return percent(self.best("mls").seconds, self.best("sls").seconds)

    @property
    def saved_against_one(self) -> float:
        """Percent that MLS saves against one device."""
        return percent(self.best("mls").seconds, self.splits["mls"][0].seconds)

    @property
    def saved_by_mbps(self) -> list[float]:
        """Percent that MLS saves against SLS at every bandwidth."""
        return [
            percent(mls, sls)
            for mls, sls in zip(self.by_mbps["mls"], self.by_mbps["sls"], strict=True)
        ]


def percent(faster: float, slower: float) -> float:
    """By how many percent `faster` is below `slower`."""
    return 100 * (1 - faster / slower)


@functools.cache  # capturing takes seconds, and a graph never changes
def captured(name: str) -> Graph:
    """The network's graph with its layers in sequence, without weights: planning needs only sizes."""
    from weft.graph.sequence import in_sequence

    return in_sequence(named_graph(name))


def run_network(graph: Graph, title: str) -> NetworkRuns:
    """All of the paper's experiments with one network."""
    geometry = as_printed(geometry_of(graph))
    splits = _splits(geometry, (MBPS,))[MBPS]
    swept = _splits(geometry, tuple(map(float, SWEEP)))
    by_mbps: dict[Method, tuple[float, ...]] = {
        method: tuple(
            min(s.seconds for s in splits_at_rate[method]) for splits_at_rate in swept.values()
        )
        for method in METHODS
    }
    return NetworkRuns(title, graph, splits, by_mbps)


def _splits(geometry: Geometry, mbps: tuple[float, ...]) -> dict[float, dict[Method, list[Split]]]:
    work = row_work(geometry, DEVICES)  # the same at every bandwidth
    splits: dict[float, dict[Method, list[Split]]] = {}
    for rate in mbps:
        speeds = Speeds(GFLOPS * 1e9, rate * 1e6)
        splits[rate] = {
            method: best_splits(geometry, speeds, DEVICES, single=method == "sls", work=work)
            for method in METHODS
        }
    return splits
