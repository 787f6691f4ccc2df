"""HierTrain's experiments on the paper's own cost model.

    sweep = run_sweep(ALEXNET, captured(ALEXNET))
    sweep.seconds["hiertrain"]        # one number per bandwidth of MBPS

They give the seconds of an iteration for every method at every bandwidth, with one to four edge cores, and
the time of planning. The paper prints bandwidths, networks and data sets, but neither the batch size nor the
machines' effective speeds nor the bandwidth from device to cloud. The settings here give the shapes of its
figures.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from weft.fleet.fleet import Device, Fleet, Link, Route
from weft.graph.network import Graph
from weft.planning.task import make_task, named_graph
from weft.plans.derive import derive_profile
from weft.plans.plan import Plan
from weft.plans.registry import make_plan
from weft.plans.task import Task
from weft.strategies.common.costs import Costs
from weft.strategies.hiertrain.jointdnn import serial_seconds

MBPS = (1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0)  # edge to cloud, as in the paper
DEVICE_EDGE_MBPS = 5.0
BATCH = 128
CORES = (1, 2, 3, 4)
WHOLE = ("all-edge", "all-cloud", "all-device")  # the paper does not show the last one
SPLIT = ("jointdnn", "jointdnn+", "jalad")
METHODS = ("hiertrain", *WHOLE, *SPLIT)


@dataclass(frozen=True)
class Setting:
    """A network on the paper's Raspberry Pi, NUC (one core) and cloud workstation."""

    model: str
    title: str
    input_shape: tuple[int, ...] | None = None  # None: as published
    classes: int | None = None
    gflops: tuple[float, float, float] = (0.9, 7.5, 400.0)  # device, one edge core, cloud
    route: Route = "min"
    value_bytes: int = 4  # bytes of one number of a sample, sent from the device

    def words(self) -> str:
        """The setting in words, for titles."""
        kind = "float32" if self.value_bytes == 4 else "uint8"
        device, edge, cloud = self.gflops
        return (
            f"batch {BATCH}, {kind} samples, {device:g} / {edge:g} / {cloud:g} GFLOPS, "
            f"route {self.route}"
        )


ALEXNET = Setting("alexnet", "AlexNet", (3, 64, 64), 200)
LENET = Setting(
    "lenet5", "LeNet-5", (3, 32, 32), 10, (1.0, 8.0, 100.0), "store_and_forward", value_bytes=1
)
# The first setting gives Fig. 8's speedups, this one what the paper says of Fig. 10. None of 180 settings
# (speeds from 0.02 to 0.9, 0.5 to 7.5 and 20 to 400 GFLOPS, both routes, 1 or 4 bytes) gives both.
LENET_SLOWER = Setting(
    "lenet5",
    "LeNet-5 on slower machines",
    (3, 32, 32),
    10,
    (0.02, 0.5, 400.0),
    "min",
    value_bytes=1,
)
PLANNED = (  # the networks of Table II
    LENET,
    ALEXNET,
    Setting("vgg16", "VGG-16"),
    Setting("vgg19", "VGG-19"),
    Setting("googlenet", "GoogLeNet"),
    Setting("resnet34", "ResNet-34"),
)


@dataclass(frozen=True)
class Sweep:
    """One iteration by method: seconds and plans, one of each per bandwidth."""

    mbps: tuple[float, ...]
    seconds: dict[str, tuple[float, ...]]
    plans: dict[str, tuple[Plan, ...]]

    def speedups(self, over: str, of: str = "hiertrain") -> tuple[float, ...]:
        """How many times faster one method is than another, at every bandwidth."""
        pairs = zip(self.seconds[over], self.seconds[of], strict=True)
        return tuple(slow / fast for slow, fast in pairs)


@dataclass(frozen=True)
class Planning:
    """One network of Table II."""

    title: str
    layers: int
    cpu_s: float
    step_s: float  # seconds of the iteration that was planned


@functools.cache  # capturing takes seconds, and a graph never changes
def captured(setting: Setting) -> Graph:
    """The network's graph without weights: planning needs only their sizes."""
    return named_graph(setting.model, setting.input_shape, setting.classes)


def fleet_of(setting: Setting, mbps: float, cores: int = 1) -> Fleet:
    """The paper's three machines and links."""
    device, edge, cloud = setting.gflops
    return Fleet(
        (
            Device("device", "device", device, data=True),
            Device("edge", "edge", edge * cores),
            Device("cloud", "cloud", cloud),
        ),
        (
            Link(("device", "edge"), DEVICE_EDGE_MBPS, DEVICE_EDGE_MBPS),
            Link(("edge", "cloud"), mbps, mbps),
        ),
    )


def task_of(setting: Setting, graph: Graph, mbps: float, cores: int = 1) -> Task:
    """The task for a strategy in one of the paper's settings."""
    fleet = fleet_of(setting, mbps, cores)
    profile = derive_profile(graph, fleet)
    profile = msgspec.structs.replace(
        profile, input_bytes=profile.input_bytes * setting.value_bytes // 4
    )
    return make_task(profile, fleet, batch=BATCH, options={"route": setting.route}, graph=graph)


def model_seconds(task: Task, plan: Plan) -> float:
    """Seconds of an iteration as the paper counts: by equation (12), or one thing after the other."""
    for key in ("model_s", "serial_s"):
        if key in plan.decisions:
            return float(plan.decisions[key])
    whole = [plan.shards[0].device] * len(task.profile.layers)  # All-Edge and All-Cloud
    return serial_seconds(Costs(task), whole)


def run_sweep(
    setting: Setting,
    graph: Graph,
    methods: Sequence[str] = METHODS,
    mbps: Sequence[float] = MBPS,
    cores: int = 1,
) -> Sweep:
    """Plan every method at every bandwidth."""
    tasks = [task_of(setting, graph, speed, cores) for speed in mbps]
    plans = {name: tuple(make_plan(name, task) for task in tasks) for name in methods}
    seconds = {
        name: tuple(map(model_seconds, tasks, method_plans)) for name, method_plans in plans.items()
    }  # fmt: skip
    return Sweep(tuple(mbps), seconds, plans)


def time_planning(setting: Setting, graph: Graph, repeats: int) -> Planning:
    """CPU seconds of a whole HierTrain decision at 3 Mbps: the median of several."""
    task = task_of(setting, graph, 3.0)
    step_s = model_seconds(task, make_plan("hiertrain", task))  # the first call warms up
    spent: list[float] = []
    for _ in range(repeats):
        begin = time.process_time()
        make_plan("hiertrain", task)
        spent.append(time.process_time() - begin)
    return Planning(setting.title, len(graph.layers), statistics.median(spent), step_s)
