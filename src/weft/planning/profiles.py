"""A network's costs: its times measured on this machine, or derived from a speed.

profile = profile_model("lenet5", device="pi")
profile = joined(profile, profile_model("lenet5", device="cloud", gflops=100))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from weft.errors import InputError
from weft.graph.network import Graph
from weft.planning.task import named_graph
from weft.plans.derive import derive_times, graph_profile, layer_costs, measured_times
from weft.plans.profile import DeviceTimes, Profile

if TYPE_CHECKING:
    from torch import nn


def profile_model(
    text: str,
    *,
    device: str,
    batch: int = 32,
    gflops: float | None = None,
    input_shape: Sequence[int] | None = None,
    classes: int | None = None,
) -> Profile:
    """A network's costs by its name: measured here, or derived from `gflops`."""
    if batch < 1:
        raise InputError(f"batch {batch} is not allowed; it must be at least 1")
    if gflops is not None and not (math.isfinite(gflops) and gflops > 0):
        raise InputError(f"gflops {gflops} is not allowed; it must be a number above 0")
    if gflops is not None:
        graph = named_graph(text, input_shape, classes)
        return graph_profile(graph, {device: derive_times(layer_costs(graph), gflops)})
    from weft.graph.capture.module import capture
    from weft.zoo.loading import load, short_name

    module, example = load(text, input_shape, classes)
    graph = capture(module, example, name=short_name(text), mode="train")
    return graph_profile(graph, {device: measure_here(module, graph, batch=batch)})


def joined(known: Profile, new: Profile) -> Profile:
    """One profile with the devices of both. If both have a device, the new times are used."""
    if known.layers != new.layers:
        raise InputError(
            f"the profile of {known.model} ({len(known.layers)} layers) is of another network than "
            f"{new.model} ({len(new.layers)} layers): their layers differ"
        )
    return msgspec.structs.replace(new, devices={**known.devices, **new.devices})


def measure_here(model: nn.Module, graph: Graph, *, batch: int, repeats: int = 7) -> DeviceTimes:
    """A network's times on this machine, by CPU time of one thread."""
    from weft.graph.capture.module import state_of
    from weft.graph.measure import measure

    return measured_times(measure(graph, state_of(model), batch=batch, repeats=repeats))
