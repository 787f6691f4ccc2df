"""Everything on one device: what there is to beat.

    all-device            nothing moves
    all-edge, all-cloud   the samples move, in training the labels too

Serial by default, as the papers compare; with `--set micro_batches=N` the samples of the next piece
cross the links while the device computes on the one before.
"""

from __future__ import annotations

from weft.fleet.fleet import Tier
from weft.plans import options
from weft.plans.plan import Plan
from weft.plans.strategy import strategy
from weft.plans.task import Task
from weft.strategies.common.costs import Costs
from weft.strategies.common.stages import fastest, layer_plan


@strategy(
    "all-device", "the whole network on the device with the data", options=options.MICRO_BATCHES
)
def all_device(task: Task) -> Plan:
    if task.fleet.device(task.source).tier == "device":
        return _whole(task, "all-device", task.source)
    return _whole_tier(task, "all-device", "device")


@strategy(
    "all-edge",
    "the whole network on the fastest edge server",
    options=options.MICRO_BATCHES,
    needs=frozenset({"tiers"}),
    several_sources=True,
)
def all_edge(task: Task) -> Plan:
    return _whole_tier(task, "all-edge", "edge")


@strategy(
    "all-cloud",
    "the whole network on the fastest cloud machine",
    options=options.MICRO_BATCHES,
    needs=frozenset({"tiers"}),
    several_sources=True,
)
def all_cloud(task: Task) -> Plan:
    return _whole_tier(task, "all-cloud", "cloud")


def _whole_tier(task: Task, name: str, tier: Tier) -> Plan:
    return _whole(task, name, fastest(task, Costs(task), tier, name))


def _whole(task: Task, name: str, worker: str) -> Plan:
    pieces = options.micro_batches(task)
    return layer_plan(
        task,
        name,
        [worker] * len(task.profile.layers),
        micro_batches=pieces,
        in_flight=options.in_flight(task, pieces),
    )
