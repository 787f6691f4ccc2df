"""The whole network on one device. Every split is compared with these plans.

    weft plan lenet5 --fleet home.toml --strategy all-edge

    all-device            nothing is sent
    all-edge, all-cloud   the samples are sent; in training the labels too

By default one step happens after the other, as in the papers. With `--set micro_batches=N` the samples
of the next piece are sent while the device computes the piece before it.
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
    """All layers on the source if it is of tier "device"; else on the fastest device of that tier."""
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
    """All layers on the fastest edge server; InputError if the fleet has none."""
    return _whole_tier(task, "all-edge", "edge")


@strategy(
    "all-cloud",
    "the whole network on the fastest cloud machine",
    options=options.MICRO_BATCHES,
    needs=frozenset({"tiers"}),
    several_sources=True,
)
def all_cloud(task: Task) -> Plan:
    """All layers on the fastest cloud machine; InputError if the fleet has none."""
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
