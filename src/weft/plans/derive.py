"""Profiles without measuring, and profiles from and to files.

profile = derive_profile(graph, fleet)      # from FLOPs and each device's gflops
profile = load_profile("alexnet.json")      # a profile file
check_profile(profile, fleet)               # InputError if the two do not match
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from weft.errors import InputError
from weft.fleet.fleet import Fleet
from weft.graph.network import Graph
from weft.plans.profile import BY_LAYER, DeviceTimes, LayerCost, Profile
from weft.reading import read_bounded

if TYPE_CHECKING:  # imports torch, which planning does not need
    from weft.graph.measure import LayerTimes

MAX_BYTES = 64 << 20


def layer_costs(graph: Graph) -> tuple[LayerCost, ...]:
    """The costs of each layer that are the same on every device."""
    costs: list[LayerCost] = []
    for m, layer in enumerate(graph.layers, start=1):
        values = [graph.values[name] for name in graph.cut(m)]
        output = graph.cut_bytes(m)
        gradients = sum(value.bytes for value in values if value.differentiable)
        whole = [value for value in values if not value.scales]
        costs.append(
            LayerCost(
                name=layer.name,
                param_bytes=graph.param_bytes(m - 1),
                output_bytes=output,
                forward_flops=layer.forward_flops,
                saved_bytes=layer.saved_bytes,
                backward_bytes=None if gradients == output else gradients,
                whole_bytes=sum(value.bytes for value in whole),
                whole_backward_bytes=sum(value.bytes for value in whole if value.differentiable),
                block=layer.block,
            )
        )
    return tuple(costs)


def graph_profile(graph: Graph, devices: dict[str, DeviceTimes]) -> Profile:
    """A graph's profile with the given times, derived or measured."""
    loss = graph.loss
    labels = {"target_bytes": loss.target_bytes, "total_bytes": loss.total_bytes} if loss else {}
    return Profile(graph.name, graph.cut_bytes(0), layer_costs(graph), devices, **labels)


def derive_profile(graph: Graph, fleet: Fleet) -> Profile:
    """A profile from FLOPs and each device's effective gflops."""
    layers = layer_costs(graph)
    devices: dict[str, DeviceTimes] = {}
    for device in fleet.devices:
        if device.gflops is None:
            raise InputError(
                f"[[device]] {device.name}: gflops is missing, so its speed is unknown; "
                "give it gflops, or a measured profile with --profile"
            )
        devices[device.name] = derive_times(layers, device.gflops, device.call_ms / 1e3)
    return graph_profile(graph, devices)


def measured_times(times: LayerTimes) -> DeviceTimes:
    """Times that were measured on a machine, as that device's part of a profile."""
    return DeviceTimes(
        times.forward_s,
        times.backward_s,
        times.update_s,
        times.forward_call_s,
        times.backward_call_s,
    )


def derive_times(layers: tuple[LayerCost, ...], gflops: float, call_s: float = 0.0) -> DeviceTimes:
    """One device's seconds. A backward pass takes twice as long as the forward pass (gradients of weights and
    of inputs). In the first layer it takes as long as the forward pass, because the input needs no gradient.
    An update takes two operations per parameter. `call_s` is what each pass through a layer takes besides."""
    per_s = gflops * 1e9
    calls = (call_s,) * len(layers) if call_s else ()
    return DeviceTimes(
        forward_s=tuple(layer.forward_flops / per_s for layer in layers),
        backward_s=tuple(
            layer.forward_flops * (1 if index == 0 else 2) / per_s
            for index, layer in enumerate(layers)
        ),
        update_s=tuple(layer.param_bytes / 4 * 2 / per_s for layer in layers),
        forward_call_s=calls,
        backward_call_s=calls,
    )


def load_profile(path: str | Path) -> Profile:
    """Read and check a profile file."""
    data = read_bounded(path, MAX_BYTES, "profile file")
    try:
        profile = msgspec.json.decode(data, type=Profile)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"profile file {path} is not a profile: {error}") from None
    check_values(profile, f"profile file {path}")
    return profile


def save_profile(profile: Profile, path: str | Path) -> None:
    """Writes a profile file."""
    Path(path).write_bytes(msgspec.json.format(msgspec.json.encode(profile), indent=1))


def check_profile(profile: Profile, fleet: Fleet, where: str = "profile") -> None:
    """InputError unless the values are possible and the devices are exactly the fleet's."""
    check_values(profile, where)
    known = set(fleet.names)
    missing = [name for name in fleet.names if name not in profile.devices]
    extra = [name for name in profile.devices if name not in known]
    if missing or extra:
        says = [f"has no times for {', '.join(missing)}"] if missing else []
        says += [f"has times for {', '.join(extra)}, not in the fleet"] if extra else []
        raise InputError(
            f"{where}: devices {' and '.join(says)}; "
            f"it must have exactly the fleet's devices: {', '.join(fleet.names)}"
        )


def check_values(profile: Profile, where: str = "profile") -> None:
    """InputError for a profile that no network and no device can have."""
    if not profile.layers:
        raise InputError(f"{where}: layers = [] is not allowed; there must be at least one layer")
    for key in ("input_bytes", "target_bytes", "total_bytes"):
        _not_negative(where, key, getattr(profile, key))
    for index, layer in enumerate(profile.layers):
        place = f"{where}: layers[{index}] ({layer.name})"
        for key in ("param_bytes", "output_bytes", "forward_flops", "saved_bytes"):
            _not_negative(place, key, getattr(layer, key))
        _not_negative(place, "backward_bytes", layer.backward_bytes or 0)
    for name, times in profile.devices.items():
        _check_times(f"{where}: devices.{name}", times, len(profile.layers))


def _check_times(place: str, times: DeviceTimes, layers: int) -> None:
    for key in ("message_s", "byte_s", "cores", "share", "memory_bytes"):
        _not_negative(place, key, getattr(times, key))
    for codec, coding in times.codecs.items():
        for key, value in msgspec.structs.asdict(coding).items():
            _not_negative(f"{place}: codecs.{codec}", key, value)
    for key in BY_LAYER:
        values: tuple[float, ...] = getattr(times, key)
        if key.endswith("_call_s") and not values:
            continue
        if len(values) != layers:
            raise InputError(
                f"{place}: {key} has {len(values)} numbers; "
                f"there must be {layers}, one for each layer"
            )
        for index, value in enumerate(values):
            _not_negative(place, f"{key}[{index}]", value)


def _not_negative(place: str, key: str, value: float) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise InputError(f"{place}: {key} = {value} is not allowed; it must be a number from 0 up")
