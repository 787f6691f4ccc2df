"""The cost of each layer on each device: all that a planner of layers and samples needs.

Sizes are bytes, times seconds. A layer's time for n samples is `call + n * per_sample`; the file may
leave the call part out. A device that was measured also has the runtime's own costs: its time for each
message and for each codec, and the host whose cores it shares with other nodes. A profile file is this
record as JSON.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec
from msgspec import Struct

from weft.codecs.registry import CodecName
from weft.codecs.times import CodecTimes


class LayerCost(Struct, frozen=True, omit_defaults=True):
    """The sizes of one layer."""

    name: str
    param_bytes: int
    output_bytes: int  # per sample: all that crosses a cut after this layer
    forward_flops: float = 0.0  # per sample
    saved_bytes: int = 0  # activations kept for the backward pass, per sample
    # Gradients over that cut, if some values are not differentiable.
    backward_bytes: int | None = None
    # Of these bytes: what crosses once for a piece of any size, such as a weight that two layers share.
    # Planners count it for each sample, so they cut there only where it is worth that.
    whole_bytes: int = 0
    whole_backward_bytes: int = 0
    block: str = ""  # the repeated part of the network that it belongs to, such as encoders.3


class DeviceTimes(Struct, frozen=True, omit_defaults=True):
    """One device's seconds per layer: per sample, and (optional) per call of any size."""

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    update_s: tuple[float, ...]
    forward_call_s: tuple[float, ...] = ()
    backward_call_s: tuple[float, ...] = ()
    # The runtime's own time at this device for each message that it sends or takes: packing, handing over,
    # waking up, unpacking; and the same for each byte. 0: not measured.
    message_s: float = 0.0
    byte_s: float = 0.0
    codecs: dict[CodecName, CodecTimes] = {}  # what coding costs this device, where it was measured
    # The machine that the node runs on. Nodes of one host share its cores. Empty: a machine of its own.
    host: str = ""
    cores: float = 0.0
    share: float = (
        1.0  # of a core that the device uses while it computes; below 1 under a CPU quota
    )
    memory_bytes: int = 0  # measured peak of a whole step on this device, for people

    def message(self, size: float) -> float:
        """Seconds of this device's own time to send, or to take, a message of so many bytes."""
        return self.message_s + self.byte_s * size

    def encode(self, size: float, codec: CodecName) -> float:
        """Seconds to code a message that then has so many bytes; 0 where it was not measured."""
        times = self.codecs.get(codec)
        return times.encode(size) if times is not None else 0.0

    def decode(self, size: float, codec: CodecName) -> float:
        """Seconds to read a coded message of so many bytes; 0 where it was not measured."""
        times = self.codecs.get(codec)
        return times.decode(size) if times is not None else 0.0

    def forward(self, first: int, last: int, samples: int) -> float:
        """Seconds for layers first..last (0-based, both included)."""
        per = sum(self.forward_s[first : last + 1])
        return per * samples + sum(self.forward_call_s[first : last + 1])

    def backward(self, first: int, last: int, samples: int) -> float:
        per = sum(self.backward_s[first : last + 1])
        return per * samples + sum(self.backward_call_s[first : last + 1])

    def update(self, first: int, last: int) -> float:
        return sum(self.update_s[first : last + 1])

    def scaled(self, factor: float) -> DeviceTimes:
        """The same network on a device that takes `factor` times as long."""
        layers = {key: tuple(t * factor for t in getattr(self, key)) for key in BY_LAYER}
        return msgspec.structs.replace(
            self,
            **layers,
            message_s=self.message_s * factor,
            byte_s=self.byte_s * factor,
            codecs={name: times.scaled(factor) for name, times in self.codecs.items()},
        )


BY_LAYER = ("forward_s", "backward_s", "update_s", "forward_call_s", "backward_call_s")


def messages_cost(devices: Iterable[DeviceTimes]) -> bool:
    """Whether messages or codecs cost any of these devices time of its own."""
    return any(times.message_s or times.byte_s or times.codecs for times in devices)


def crowded_s(devices: dict[str, DeviceTimes], busy_s: dict[str, float]) -> float:
    """The seconds in which hosts can do the work of their nodes: the CPU time of all nodes of a host, divided
    by its cores; the longest of all hosts. 0 where no host is known to have several nodes."""
    longest = 0.0
    for nodes in shared_hosts(devices, busy_s).values():
        cores = min(devices[name].cores for name in nodes)
        work = sum(busy_s[name] * devices[name].share for name in nodes)
        longest = max(longest, work / cores)
    return longest


def shared_hosts(
    devices: dict[str, DeviceTimes], names: Collection[str]
) -> dict[str, tuple[str, ...]]:
    """By host: those of the named devices that run on it, where there are at least two."""
    hosts: dict[str, tuple[str, ...]] = {}
    for name in names:
        times = devices.get(name)
        if times is not None and times.host and times.cores > 0:
            hosts[times.host] = (*hosts.get(times.host, ()), name)
    return {host: nodes for host, nodes in hosts.items() if len(nodes) > 1}


class Profile(Struct, frozen=True, omit_defaults=True):
    """The sizes of a network's layers, and their times on each device."""

    model: str
    input_bytes: int
    layers: tuple[LayerCost, ...]
    devices: dict[str, DeviceTimes]
    target_bytes: int = 8  # one label
    total_bytes: int = 0  # sums over a minibatch's targets, which travel with each piece's labels

    def cut_bytes(self, m: int) -> int:
        """Bytes per sample over a cut after the first m layers; 0 is the input."""
        return self.input_bytes if m == 0 else self.layers[m - 1].output_bytes

    def labels_bytes(self, samples: int) -> int:
        """Bytes of one message with the labels of some samples."""
        return samples * self.target_bytes + self.total_bytes

    def gradient_bytes(self, m: int) -> int:
        """Bytes per sample of the gradients that come back over the same cut."""
        if m == 0:
            return 0
        layer = self.layers[m - 1]
        return layer.output_bytes if layer.backward_bytes is None else layer.backward_bytes

    def activation_bytes(self, m: int, samples: int) -> int:
        """Bytes of a piece's activations over a cut."""
        whole = self.layers[m - 1].whole_bytes if m else 0
        return samples * (self.cut_bytes(m) - whole) + whole

    def returned_bytes(self, m: int, samples: int) -> int:
        """Bytes of a piece's gradients over a cut."""
        whole = self.layers[m - 1].whole_backward_bytes if m else 0
        return samples * (self.gradient_bytes(m) - whole) + whole
