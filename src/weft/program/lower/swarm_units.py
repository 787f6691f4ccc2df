"""Which device has which units of a spread network, and which part of a layer it computes.

holders_of(plan)[1]                       # {"n2": (0, 1, 2), "n5": (3, 4)}: units of layer 1
swarm_segment(graph, plan, "n5", 1)       # those two units, on the values of layer 0 that n5 reads
"""

from __future__ import annotations

from weft.errors import InputError
from weft.graph.network import Graph, Segment
from weft.graph.split.units import listed_segment
from weft.plans.plan import Plan
from weft.plans.swarm import Swarm


def check_swarm(plan: Plan) -> Swarm:
    """Raises InputError if a swarm plan's fields contradict each other."""
    swarm = plan.swarm
    assert swarm is not None
    if plan.micro_batches != 1 or plan.in_flight != 1:
        raise InputError(
            "plan: a swarm's minibatch is one piece; micro_batches and in_flight are 1"
        )
    if swarm.depth + 1 != len(plan.profile.layers):
        raise InputError(
            f"plan: swarm has {swarm.depth} hidden layers and an output; the profile of "
            f"{plan.model} has {len(plan.profile.layers)} layers"
        )
    if swarm.late == "none" and (swarm.slot_ms or plan.mode == "infer"):
        raise InputError(
            "plan: swarm: late = none needs slot_ms = 0 and training: to skip a minibatch "
            "together, devices must wait for each other"
        )
    if swarm.copies and (swarm.late != "zero" or swarm.rescale or plan.mode != "infer"):
        raise InputError(
            "plan: swarm: copies are for inference, with late = zero and without rescale: in training "
            "copies would have to be kept equal"
        )
    for copy in swarm.copies:
        width = swarm.values[copy.layer + 1].shape[1] if 0 <= copy.layer < swarm.depth else 0
        if not (copy.units and 0 <= min(copy.units) <= max(copy.units) < width):
            raise InputError(
                f"plan: swarm: {copy.device} has copies {copy.units} of layer {copy.layer}"
            )
    if swarm.rescale and swarm.late != "zero":
        raise InputError(
            f"plan: swarm: rescale needs late = zero, not {swarm.late}: the replacement of a lost message "
            "would count twice"
        )
    if not 0 <= swarm.drill <= 100 or (swarm.drill and swarm.late == "none"):
        raise InputError(
            f"plan: swarm: drill = {swarm.drill} with late = {swarm.late}; 0 to 100 percent are allowed, and "
            "with late = none only 0: a minibatch without one of the workers would be given up"
        )
    if swarm.slot_ms < 0 or swarm.every < 1:
        raise InputError(f"plan: swarm: slot_ms = {swarm.slot_ms}, every = {swarm.every}")
    for shard in plan.shards:
        layer, units = shard.layers[0], shard.part.units
        width = swarm.values[layer + 1].shape[1]
        right = shard.layers == (layer, layer) and layer <= swarm.depth
        if not right or (units is None) != (layer == swarm.depth):
            raise InputError(
                f"plan: swarm: shard {shard.device} of layers {list(shard.layers)}; every hidden layer "
                "has shards of units, the output layer is whole"
            )
        if units is not None and not (units and 0 <= min(units) <= max(units) < width):
            raise InputError(
                f"plan: swarm: {shard.device} has units {units} of layer {layer}, which has {width}"
            )
    return swarm


def holders_of(plan: Plan) -> list[dict[str, tuple[int, ...]]]:
    """For each layer, the units of each device that has some, in the fleet's order. The output layer is
    whole."""
    swarm = plan.swarm
    assert swarm is not None
    by_layer: list[dict[str, tuple[int, ...]]] = [{} for _ in range(swarm.depth + 1)]
    order = {name: n for n, name in enumerate(plan.fleet.names)}
    for shard in sorted(plan.shards, key=lambda s: order[s.device]):
        layer = shard.layers[0]
        units = shard.part.units or tuple(range(swarm.values[layer + 1].shape[1]))
        by_layer[layer][shard.device] = units
    return by_layer


def held_of(plan: Plan) -> list[dict[str, tuple[int, ...]]]:
    """The same, with the copies that a device computes after its own units."""
    assert plan.swarm is not None
    by_layer = holders_of(plan)
    for copy in plan.swarm.copies:
        by_layer[copy.layer][copy.device] += copy.units
    return by_layer


def read_by(plan: Plan, layer: int) -> dict[str, tuple[int, ...]]:
    """The owners of the layer before, in the order in which a layer's turns join their units."""
    assert plan.swarm is not None
    return {plan.swarm.coordinator: ()} if layer == 0 else holders_of(plan)[layer - 1]


def swarm_segment(graph: Graph, plan: Plan, device: str, layer: int) -> Segment:
    """The segment for a device's units of a layer, with inputs in the order in which they are joined."""
    swarm = plan.swarm
    assert swarm is not None
    number = plan.fleet.names.index(device) + 1
    columns = [u for units in read_by(plan, layer).values() for u in units]
    if layer == swarm.depth:
        loss = plan.mode == "train"
        return listed_segment(graph, layer, number, (), columns, with_loss=loss)
    return listed_segment(graph, layer, number, held_of(plan)[layer][device], columns)
