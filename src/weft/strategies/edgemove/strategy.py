"""EdgeMove's plan before the run, and those of its baselines: one cut, one worker.

    edgemove       the server that answers a probe first, cut by Algorithm 1
    device-cloud   the fastest cloud machine, cut where the pipeline is fastest
    pipedream-e    a random edge server, cut where computing is balanced; links are ignored

The client has the data and the first layers, the worker the other layers. Two minibatches are in flight
(`--set in_flight=N`), so the client's gradients are one update old, and the client keeps older weights.
`model_s` is the pipeline's exact period; see model.py, and home.py for `labels=home`.

The papers' schemes do not consider memory. If their choice does not fit, the nearest one that fits is
taken.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from weft.errors import InputError
from weft.plans import options
from weft.plans.plan import Plan
from weft.plans.strategy import strategy
from weft.plans.task import Task
from weft.program.memory import fits
from weft.strategies.common.costs import Costs
from weft.strategies.common.stages import fastest, layer_plan
from weft.strategies.edgemove.home import HomeStages
from weft.strategies.edgemove.model import AnyStages, Stages, approximate_cut, middling, period

IN_FLIGHT = {
    "in_flight": "minibatches in flight; the client's gradients are one fewer updates old",
    "labels": "worker | home: who computes the loss; at home the labels stay with the samples",
    "standby": "auto | none | NAME: a server that keeps a copy of the worker's layers, in a live run",
}
SEED = {"seed": "which random server: a whole number from 1 up"}
LABELS = ("worker", "home")
TWO = 2  # minibatches in flight: PipeDream's number for two stages
LIVE = "weft.strategies.edgemove.online.live"
# Gradients are some updates old. In a live run a silent worker is noticed, because its reports stop.
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
    """The paper's plan; InputError if no edge server can be reached or the network has one layer."""
    costs = cuttable(task, "edgemove")
    count = options.in_flight(task, TWO)
    by_score = sorted(
        workers(task, "edgemove"),
        key=lambda name: costs.total(name) + network_s(task, costs, name),
    )

    def first_cut(worker: str) -> int:
        alone_s, there_s = costs.total(task.source), costs.total(worker)
        cut = approximate_cut(costs.layers, alone_s, there_s, network_s(task, costs, worker))
        return min(cut, most_cut(task, costs))

    for worker in by_score:
        wanted = first_cut(worker)
        by_distance = sorted(cuts_of(task, costs), key=lambda cut: abs(cut - wanted))
        for cut in by_distance:
            if fits_split(task, costs, worker, cut, count):
                return split_plan(task, "edgemove", costs, worker, cut, count)
    worker = by_score[0]  # nothing fits: the memory check after this names the device and the bytes
    return split_plan(task, "edgemove", costs, worker, first_cut(worker), count)


@strategy(
    "device-cloud",
    "one cut to the cloud, where the pipeline is fastest",
    ("train",),
    IN_FLIGHT,
    online=f"{LIVE}:device_cloud",
    **ONLINE,
)
def device_cloud(task: Task) -> Plan:
    """The fastest cloud machine with its best cut; InputError if there is none."""
    costs = cuttable(task, "device-cloud")
    worker = fastest(task, costs, "cloud", "device-cloud")
    if worker == task.source:
        raise not_alone(task, "device-cloud", "cloud")
    count = options.in_flight(task, TWO)
    periods = period(fleet_stages(task, costs, worker), count)
    cut = best_that_fits(task, costs, worker, count, periods)
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
    """A random edge server, and the cut that balances the seconds of computing on both sides."""
    costs = cuttable(task, "pipedream-e")
    seed = options.integer(task, "seed", 1)
    worker = random.Random(seed).choice(workers(task, "pipedream-e"))
    count = options.in_flight(task, TWO)
    last = last_at_home(task, costs)
    computing = [
        max(
            costs.compute(task.source, 0, cut - 1) + last,
            costs.compute(worker, cut, most_cut(task, costs)),
        )
        for cut in cuts_of(task, costs)
    ]
    cut = best_that_fits(task, costs, worker, count, np.array(computing))
    return split_plan(task, "pipedream-e", costs, worker, cut, count)


def cuttable(task: Task, name: str, may_stay_alone: bool = False) -> Costs:
    """The task's prices; InputError if the network has too few layers for a cut."""
    if len(task.profile.layers) < 2:
        raise InputError(
            f"strategy {name} cuts the network once; {task.profile.model} has only one layer: "
            "use all-device"
        )
    if at_home(task) and len(task.profile.layers) < 3 and not may_stay_alone:
        raise InputError(
            f"strategy {name} with labels=home gives a server the layers between the first and the last; "
            f"{task.profile.model} has only two: use all-device, or labels=worker"
        )
    # Both options are read again later. A wrong value must be refused now.
    options.choice(task, "labels", LABELS, LABELS[0])
    options.choice(task, "standby", ("auto", "none", *task.fleet.names), "auto")
    return Costs(task)


def workers(task: Task, name: str, keep: Callable[[str], bool] | None = None) -> list[str]:
    """The edge servers that the client can reach, or all machines whose tier passes `keep`.

    InputError if there is none.
    """
    wanted = keep or (lambda tier: tier == "edge")
    names = [
        device.name
        for device in task.fleet.devices
        if wanted(device.tier)
        and device.name != task.source
        and task.fleet.connected(task.source, device.name)
    ]
    if not names:
        raise not_alone(task, name, "edge")
    return names


def not_alone(task: Task, name: str, tier: str) -> InputError:
    """The error for a fleet without a machine of the tier that a strategy needs."""
    others = [f"{d.name} ({d.tier})" for d in task.fleet.devices if d.name != task.source]
    return InputError(
        f"strategy {name} needs a machine of tier {tier!r} that {task.source} reaches; "
        f"beside it the fleet has: {', '.join(others) or 'nobody'}"
    )


def at_home(task: Task) -> bool:
    """Whether the labels, and with them the last layer, stay on the client."""
    return options.choice(task, "labels", LABELS, LABELS[0]) == "home"


def most_cut(task: Task, costs: Costs) -> int:
    """The most first layers that the client may have: the worker keeps one. Also the worker's last layer."""
    return costs.layers - (2 if at_home(task) else 1)


def cuts_of(task: Task, costs: Costs) -> range:
    """The cuts that leave each side at least one layer."""
    return range(1, most_cut(task, costs) + 1)


def last_at_home(task: Task, costs: Costs) -> float:
    """The client's seconds for the last layer if it stays at home; else 0."""
    return costs.compute(task.source, costs.layers - 1, costs.layers - 1) if at_home(task) else 0.0


def fleet_stages(task: Task, costs: Costs, worker: str) -> AnyStages:
    """The stages of every cut between the source and one worker.

    Uplink and downlink may share a channel. So the time of the busiest channel stands for both, and all
    other time on the way counts as propagation. The labels are sent with the activations. The worker updates
    its weights after it has sent the gradients. Nobody waits for that, so it is subtracted from the way.
    """
    if at_home(task):
        return home_stages(task, costs, worker)
    cuts, riding = cuts_of(task, costs), task.profile.labels_bytes(task.batch)
    client = np.array([costs.compute(task.source, 0, m - 1) for m in cuts])
    theirs = np.array([costs.compute(worker, m, costs.layers - 1) for m in cuts])
    load = np.array([costs.load(m, task.source, worker, riding) for m in cuts])
    way = np.array([costs.cross(m, task.source, worker, riding) for m in cuts])
    updates = [task.profile.devices[worker].update(m, costs.layers - 1) for m in cuts]
    rest = np.maximum(way - load, 0.0) - np.array(updates)
    return Stages(client, theirs, load, np.zeros_like(load), rest)


def home_stages(task: Task, costs: Costs, worker: str) -> HomeStages:
    """The same if the last layer stays at home: each minibatch is sent there and back twice."""
    source, last, times = task.source, costs.layers - 1, task.profile.devices[worker]
    outputs, output_gradients = costs.bytes_over(last)
    slopes = costs.slopes(source, worker).values()
    up, down = task.fleet.path_latency(source, worker), task.fleet.path_latency(worker, source)
    rows = []
    for cut in cuts_of(task, costs):
        activations, gradients = costs.bytes_over(cut)
        there, back = activations + output_gradients, gradients + outputs
        forward = times.forward(cut, last - 1, task.batch)
        rows.append((
            costs.compute(source, 0, cut - 1), costs.compute(source, last, last), forward,
            costs.compute(worker, cut, last - 1) - forward,
            costs.send(source, worker, activations, costs.codec if cut else "none") - up,
            costs.send(worker, source, outputs, costs.codec) - down,
            costs.send(source, worker, output_gradients, costs.codec) - up,
            costs.send(worker, source, gradients, costs.codec) - down, up + down,
            max((there * a + back * b for a, b in slopes), default=0.0),
        ))  # fmt: skip
    return HomeStages(*np.array(rows, dtype=float).reshape(-1, 10).T)


def fits_split(task: Task, costs: Costs, worker: str, cut: int, in_flight: int) -> bool:
    """Whether both sides have enough memory for weights, older versions of them, activations and messages."""
    limits = (task.fleet.device(name).memory_mb for name in (task.source, worker))
    if all(limit is None for limit in limits):
        return True
    return fits(split_plan(task, "any", costs, worker, cut, in_flight))


def best_that_fits(
    task: Task, costs: Costs, worker: str, in_flight: int, seconds: NDArray[np.float64]
) -> int:
    """The fastest cut that fits into memory; if none fits, the fastest cut."""
    by_seconds = [int(index) + 1 for index in np.argsort(seconds, kind="stable")]
    fitting = (cut for cut in by_seconds if fits_split(task, costs, worker, cut, in_flight))
    return next(fitting, by_seconds[0])


def network_s(task: Task, costs: Costs, worker: str) -> float:
    """The RTT of a probe in seconds: propagation both ways, and the time to send a cut of middle size."""
    fleet = task.fleet
    rtt = fleet.path_latency(task.source, worker) + fleet.path_latency(worker, task.source)
    ways = [costs.cross(m, task.source, worker) for m in cuts_of(task, costs)]
    return rtt + middling(np.maximum(np.array(ways) - rtt, 0.0))


def split_plan(task: Task, name: str, costs: Costs, worker: str, cut: int, in_flight: int) -> Plan:
    """The plan with the first `cut` layers on the source and the others on the worker."""
    seconds = float(period(fleet_stages(task, costs, worker), in_flight)[cut - 1])
    last = costs.layers - 1
    owners = [task.source] * cut + [worker] * (costs.layers - cut)
    if at_home(task):
        owners[last] = task.source
    return msgspec.structs.replace(
        layer_plan(task, name, owners),
        stale=in_flight - 1,
        decisions={"worker": worker, "cut": cut, "in_flight": in_flight, "model_s": seconds},
    )
