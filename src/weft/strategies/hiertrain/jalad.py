"""JALAD: one cut between edge and cloud, with 8 bits for each number that crosses it.

    source ── samples ──► edge: layers 0..m-1 ── 8-bit activations ──► cloud: layers m..N-1
                                              ◄── 8-bit gradients ───

m = 0 is the whole network in the cloud (the samples go there as they are), m = N the whole network
at the edge. One thing happens at a time, as in JointDNN's model; under it the cut is the best one.
"""

from __future__ import annotations

import dataclasses

from weft.plans import options
from weft.plans.plan import Plan
from weft.plans.strategy import strategy
from weft.plans.task import Task
from weft.strategies.common.costs import Costs
from weft.strategies.common.stages import fastest, layer_plan
from weft.strategies.hiertrain.jointdnn import serial_seconds


@strategy(
    "jalad",
    "one cut between edge and cloud, 8-bit activations and gradients",
    options={**options.MICRO_BATCHES, "codec": "int8: always"},
    needs=frozenset({"tiers"}),
)
def jalad(task: Task) -> Plan:
    codec = options.choice(task, "codec", ("int8",), "int8")
    task = dataclasses.replace(task, options={**task.options, "codec": codec})
    costs = Costs(task)
    edge, cloud = (fastest(task, costs, tier, "jalad") for tier in ("edge", "cloud"))
    ways = [[edge] * m + [cloud] * (costs.layers - m) for m in range(costs.layers + 1)]
    seconds = [serial_seconds(costs, way) for way in ways]
    cut = seconds.index(min(seconds))
    pieces = options.micro_batches(task)
    return layer_plan(
        task,
        "jalad",
        ways[cut],
        micro_batches=pieces,
        in_flight=options.in_flight(task, pieces),
        decisions={"workers": [edge, cloud], "cut": cut, "serial_s": seconds[cut]},
    )
