"""JointDNN: each layer on the device or elsewhere, by the shortest path through layers x workers.

          enter        cross 1      cross 2       leave
    source ──► layer 0 ──► layer 1 ──► layer 2 ──► source      a node per layer and worker,
          ╲►  layer 0 ──► layer 1 ──► layer 2  ╱►              an edge between any two workers

One thing happens at a time: a layer's forward, backward and update stay on one worker, an edge
carries the minibatch's activations and brings their gradients back, weights never move. Under this
serial model the answer is exact. `jointdnn` knows device and cloud, `jointdnn+` the edge as well.

A real step is shorter than the serial model says: updates overlap with messages, and so do pieces. A way
over more workers can then be shorter by the model and longer in truth. `jointdnn+` therefore compares its
shortest path with the one without the edge by the simulator's price and takes the sooner.
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
    costs = Costs(task)
    return _shortest(task, costs, "jointdnn", [fastest(task, costs, "cloud", "jointdnn")])


@strategy(
    "jointdnn+",
    "each layer on device, edge or cloud, shortest path",
    options=options.MICRO_BATCHES,
    needs=frozenset({"tiers"}),
)
def jointdnn_plus(task: Task) -> Plan:
    costs = Costs(task)
    present = {device.tier for device in task.fleet.devices}
    tiers: list[Tier] = [tier for tier in ("edge", "cloud") if tier in present]
    if not tiers:
        raise InputError(
            "strategy jointdnn+ needs a device of tier 'edge' or 'cloud'; "
            f"the fleet has only devices: {', '.join(task.fleet.names)}"
        )
    near = {tier: fastest(task, costs, tier, "jointdnn+") for tier in tiers}
    own = _shortest(task, costs, "jointdnn+", list(near.values()))
    if len(near) == 1:
        return own
    without_edge = _shortest(task, costs, "jointdnn+", [near["cloud"]])
    return own if task.price(own) <= task.price(without_edge) else without_edge


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
    """The cheapest worker for every layer, all layers together, and what that costs."""
    best = {worker: costs.enter(worker) + costs.compute(worker, 0, 0) for worker in workers}
    came: list[dict[str, str]] = []
    for layer in range(1, costs.layers):
        origin: dict[str, str] = {}
        reached: dict[str, float] = {}
        for worker in workers:
            # At equal cost stay: no message is simpler than one.
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
    """What any assignment costs under the serial model: the length of its path."""
    seconds = costs.enter(assignment[0]) + costs.leave(assignment[-1])
    for layer, worker in enumerate(assignment):
        seconds += costs.compute(worker, layer, layer)
        if layer:
            seconds += costs.cross(layer, assignment[layer - 1], worker)
    return seconds
