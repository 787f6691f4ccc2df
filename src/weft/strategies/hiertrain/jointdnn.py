"""JointDNN: a device for each layer, by the shortest path through layers x workers.

          enter        cross 1      cross 2       leave
    source ──► layer 0 ──► layer 1 ──► layer 2 ──► source      one node per layer and worker,
          ╲►  layer 0 ──► layer 1 ──► layer 2  ╱►              one edge between any two workers

One thing happens at a time. A layer's forward, backward and update are on one worker. An edge sends the
minibatch's activations and brings their gradients back. Weights are never sent. Under this serial model
the answer is exact. `jointdnn` uses device and cloud, `jointdnn+` the edge server too.

A real step is shorter than the serial model says, because updates overlap with messages, and so do
micro-batches. So a path over more workers can be shorter in the model and longer in reality.
`jointdnn+` therefore compares its path with the path without the edge server by the simulator's price,
and takes the faster one.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.errors import InputError
from weft.fleet.fleet import Tier
from weft.plans import options
from weft.plans.plan import Plan
from weft.plans.strategy import strategy
from weft.plans.task import Task
from weft.strategies.common.costs import Costs
from weft.strategies.common.stages import fastest, layer_plan


@strategy(
    "jointdnn",
    "each layer on device or cloud, shortest path",
    options=options.MICRO_BATCHES,
    needs=frozenset({"tiers"}),
)
def jointdnn(task: Task) -> Plan:
    """The shortest path over the source and the fastest cloud machine."""
    costs = Costs(task)
    return _shortest(task, costs, "jointdnn", [fastest(task, costs, "cloud", "jointdnn")])


@strategy(
    "jointdnn+",
    "each layer on device, edge or cloud, shortest path",
    options=options.MICRO_BATCHES,
    needs=frozenset({"tiers"}),
)
def jointdnn_plus(task: Task) -> Plan:
    """The shortest path over the source, an edge server and a cloud machine, or the one without edge."""
    costs = Costs(task)
    present = {device.tier for device in task.fleet.devices}
    tiers: list[Tier] = [tier for tier in ("edge", "cloud") if tier in present]
    if not tiers:
        raise InputError(
            "strategy jointdnn+ needs a device of tier 'edge' or 'cloud'; "
            f"the fleet has only devices: {', '.join(task.fleet.names)}"
        )
    near = {tier: fastest(task, costs, tier, "jointdnn+") for tier in tiers}
    over_all = _shortest(task, costs, "jointdnn+", list(near.values()))
    if len(near) == 1:
        return over_all
    without_edge = _shortest(task, costs, "jointdnn+", [near["cloud"]])
    return over_all if task.price(over_all) <= task.price(without_edge) else without_edge


def _shortest(task: Task, costs: Costs, name: str, others: list[str]) -> Plan:
    workers = tuple(dict.fromkeys([task.source, *others]))
    seconds, assignment = shortest_path(costs, workers)
    pieces = options.micro_batches(task)
    return layer_plan(
        task,
        name,
        assignment,
        micro_batches=pieces,
        in_flight=options.in_flight(task, pieces),
        decisions={"workers": list(workers), "serial_s": seconds},
    )


def shortest_path(costs: Costs, workers: Sequence[str]) -> tuple[float, tuple[str, ...]]:
    """The worker of each layer for which the sum of all costs is least, and that sum in seconds."""
    best = {worker: costs.enter(worker) + costs.compute(worker, 0, 0) for worker in workers}
    came: list[dict[str, str]] = []
    for layer in range(1, costs.layers):
        origin: dict[str, str] = {}
        reached: dict[str, float] = {}
        for worker in workers:
            # At equal cost stay on the worker: no message is simpler than a message.
            seconds, _, origin[worker] = min(
                (best[before] + costs.cross(layer, before, worker), before != worker, before)
                for before in workers
            )
            reached[worker] = seconds + costs.compute(worker, layer, layer)
        came.append(origin)
        best = reached
    ends = {worker: best[worker] + costs.leave(worker) for worker in workers}
    path = [min(workers, key=ends.__getitem__)]
    seconds = ends[path[0]]
    for origin in reversed(came):
        path.append(origin[path[-1]])
    return seconds, tuple(reversed(path))


def serial_seconds(costs: Costs, assignment: Sequence[str]) -> float:
    """Seconds of any assignment under the serial model: the length of its path."""
    seconds = costs.enter(assignment[0]) + costs.leave(assignment[-1])
    for layer, worker in enumerate(assignment):
        seconds += costs.compute(worker, layer, layer)
        if layer:
            seconds += costs.cross(layer, assignment[layer - 1], worker)
    return seconds
