"""JALAD: one cut between edge and cloud; each number that crosses it is sent in 8 bits.

    source ── samples ──► edge: layers 0..m-1 ── 8-bit activations ──► cloud: layers m..N-1
                                              ◄── 8-bit gradients ───

m = 0 puts the whole network in the cloud (the samples are sent uncoded). m = N puts the whole network
at the edge. One thing happens at a time, as in JointDNN's model. Only the updates of edge and cloud
happen at once, as in HierTrain's model (eq 11). The cut is the best one under this model.
"""

from __future__ import annotations

import dataclasses

from weft.plans import options
from weft.plans.plan import Plan
from weft.plans.strategy import strategy
from weft.plans.task import Task
from weft.strategies.common.costs import Costs
from weft.strategies.common.stages import fastest, layer_plan


@strategy(
    "jalad",
    "one cut between edge and cloud, 8-bit activations and gradients",
    options={**options.MICRO_BATCHES, "codec": "int8: always"},
    needs=frozenset({"tiers"}),
)
def jalad(task: Task) -> Plan:
    """The plan with the best cut; InputError if the fleet has no edge server or no cloud machine."""
    codec = options.choice(task, "codec", ("int8",), "int8")
    task = dataclasses.replace(task, options={**task.options, "codec": codec})
    costs = Costs(task)
    edge, cloud = (fastest(task, costs, tier, "jalad") for tier in ("edge", "cloud"))
    seconds = [
        _serial(costs, edge, cloud, m) - hidden_update(task, edge, cloud, m)
        for m in range(costs.layers + 1)
    ]
    cut = seconds.index(min(seconds))
    pieces = options.micro_batches(task)
    return layer_plan(
        task,
        "jalad",
        [edge] * cut + [cloud] * (costs.layers - cut),
        micro_batches=pieces,
        in_flight=options.in_flight(task, pieces),
        decisions={"workers": [edge, cloud], "cut": cut, "serial_s": seconds[cut]},
    )


def _serial(costs: Costs, edge: str, cloud: str, m: int) -> float:
    """Seconds of a step, one thing at a time, with the first m layers at the edge: `serial_seconds` of that
    assignment without a loop over its layers."""
    last = costs.layers - 1
    first_worker, last_worker = edge if m else cloud, cloud if m <= last else edge
    seconds = costs.enter(first_worker) + costs.leave(last_worker)
    seconds += costs.compute(edge, 0, m - 1) + costs.compute(cloud, m, last)
    return seconds + (costs.cross(m, edge, cloud) if 0 < m <= last else 0.0)


def hidden_update(task: Task, edge: str, cloud: str, m: int) -> float:
    """Seconds of the shorter of the two updates: it happens during the longer one and adds no time."""
    if task.mode != "train":
        return 0.0
    times, last = task.profile.devices, len(task.profile.layers) - 1
    at_edge = times[edge].update(0, m - 1) if m else 0.0
    in_cloud = times[cloud].update(m, last) if m <= last else 0.0
    return min(at_edge, in_cloud)
