"""EdgeMove's offline decision, and those that it is compared with: one cut, one worker.

    edgemove       the server that answers a probe first, cut by Algorithm 1
    device-cloud   the fastest cloud machine, cut where the pipeline is fastest
    pipedream-e    a random edge server, cut where computing is balanced; links are ignored

The client keeps the data and the first layers, the worker the others; two minibatches are in flight
(`--set in_flight=N`), so the client's gradients are one update old and it stashes its weights.
`model_s` is the pipeline's exact period; see model.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from weft.errors import InputError
from weft.plans import options
from weft.plans.plan import Plan
from weft.plans.strategy import strategy
from weft.plans.task import Task
from weft.strategies.common.costs import Costs
from weft.strategies.common.stages import fastest, layer_plan
from weft.strategies.edgemove.model import Stages, approximate_cut, middling, period

IN_FLIGHT = {
    "in_flight": "minibatches in flight; the client's gradients are one fewer updates old",
    "labels": "worker | home: who computes the loss; at home the labels stay with the samples",
    "standby": "auto | none | NAME: a server that keeps a copy of the worker's layers, in a live run",
}
SEED = {"seed": "which random server: a whole number from 1 up"}
LABELS = ("worker", "home")
TWO = 2  # PipeDream's count for two stages
LIVE = "weft.strategies.edgemove.online.live"
# Gradients are some updates old. A live run hears of a silent worker, because its look does not come.
ONLINE: dict[str, Any] = {"needs": frozenset({"tiers"}), "exact": False, "refuses": {}}


@strategy(
    "edgemove",
    "one cut to the edge server that answers first, by its paper",
    ("train",),
    IN_FLIGHT,
    online=f"{LIVE}:edgemove",
    **ONLINE,
)
def edgemove(task: Task) -> Plan:
    costs = cuttable(task, "edgemove")
    worker = min(
        workers(task, "edgemove"),
        key=lambda name: costs.total(name) + network_s(task, costs, name),
    )
    cut = approximate_cut(
        costs.layers, costs.total(task.source), costs.total(worker), network_s(task, costs, worker)
    )
    return split_plan(task, "edgemove", costs, worker, cut, options.in_flight(task, TWO))


@strategy(
    "device-cloud",
    "one cut to the cloud, where the pipeline is fastest",
    ("train",),
    IN_FLIGHT,
    online=f"{LIVE}:device_cloud",
    **ONLINE,
)
def device_cloud(task: Task) -> Plan:
    costs = cuttable(task, "device-cloud")
    worker = fastest(task, costs, "cloud", "device-cloud")
    if worker == task.source:
        raise not_alone(task, "device-cloud", "cloud")
    count = options.in_flight(task, TWO)
    cut = int(period(fleet_stages(task, costs, worker), count).argmin()) + 1
    return split_plan(task, "device-cloud", costs, worker, cut, count)


@strategy(
    "pipedream-e",
    "one cut to a random edge server, links ignored",
    ("train",),
    {**IN_FLIGHT, **SEED},
    online=f"{LIVE}:pipedream_e",
    **ONLINE,
)
def pipedream_e(task: Task) -> Plan:
    costs = cuttable(task, "pipedream-e")
    seed = options.integer(task, "seed", 1)
    worker = random.Random(seed).choice(workers(task, "pipedream-e"))
    stages = fleet_stages(task, costs, worker)
    cut = int(np.maximum(stages.client_s, stages.worker_s).argmin()) + 1
    return split_plan(task, "pipedream-e", costs, worker, cut, options.in_flight(task, TWO))


def cuttable(task: Task, name: str) -> Costs:
    """The task's prices, where there is something to cut."""
    if len(task.profile.layers) < 2:
        raise InputError(
            f"strategy {name} cuts the network once; {task.profile.model} has only one layer: "
            "use all-device"
        )
    # Both are read again where they act; a wrong one must not wait for that.
    options.choice(task, "labels", LABELS, LABELS[0])
    options.choice(task, "standby", ("auto", "none", *task.fleet.names), "auto")
    return Costs(task)


def workers(task: Task, name: str, keep: Callable[[str], bool] | None = None) -> list[str]:
    """The edge servers in reach of the client, or all machines for which `keep` holds of the tier."""
    wanted = keep or (lambda tier: tier == "edge")
    found = [
        device.name
        for device in task.fleet.devices
        if wanted(device.tier)
        and device.name != task.source
        and task.fleet.connected(task.source, device.name)
    ]
    if not found:
        raise not_alone(task, name, "edge")
    return found


def not_alone(task: Task, name: str, tier: str) -> InputError:
    """The error for a fleet without a machine of the tier that a strategy needs."""
    others = [f"{d.name} ({d.tier})" for d in task.fleet.devices if d.name != task.source]
    return InputError(
        f"strategy {name} needs a machine of tier {tier!r} that {task.source} reaches; "
        f"beside it the fleet has: {', '.join(others) or 'nobody'}"
    )


def fleet_stages(task: Task, costs: Costs, worker: str) -> Stages:
    """Every cut between the source and one worker. Uplink and downlink may share a channel, so the
    busiest channel stands for both, and all other time on the way counts as propagation."""
    cuts = range(1, costs.layers)
    client = np.array([costs.compute(task.source, 0, m - 1) for m in cuts])
    theirs = np.array([costs.compute(worker, m, costs.layers - 1) for m in cuts])
    load = np.array([costs.load(m, task.source, worker) for m in cuts])
    way = np.array([costs.cross(m, task.source, worker) for m in cuts])
    return Stages(client, theirs, load, np.zeros_like(load), np.maximum(way - load, 0.0))


def network_s(task: Task, costs: Costs, worker: str) -> float:
    """The probe's RTT: propagation both ways, and transmission over a middling cut."""
    fleet = task.fleet
    rtt = fleet.path_latency(task.source, worker) + fleet.path_latency(worker, task.source)
    ways = [costs.cross(m, task.source, worker) for m in range(1, costs.layers)]
    return rtt + middling(np.maximum(np.array(ways) - rtt, 0.0))


def split_plan(task: Task, name: str, costs: Costs, worker: str, cut: int, in_flight: int) -> Plan:
    """The first `cut` layers on the source, the others on the worker."""
    seconds = float(period(fleet_stages(task, costs, worker), in_flight)[cut - 1])
    last = costs.layers - 1
    owners = [task.source] * cut + [worker] * (costs.layers - cut)
    if options.choice(task, "labels", LABELS, LABELS[0]) == "home" and cut < last:
        owners[last] = task.source
    return msgspec.structs.replace(
        layer_plan(task, name, owners),
        stale=in_flight - 1,
        decisions={"worker": worker, "cut": cut, "in_flight": in_flight, "model_s": seconds},
    )
