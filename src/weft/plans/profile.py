"""The cost of each layer on each device: all that a planner of layers and samples needs.

Sizes are bytes, times seconds. A layer's time for n samples is `call + n * per_sample`; the file may
leave the call part out. A profile file is this record as JSON.
"""

from __future__ import annotations

from msgspec import Struct


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


class DeviceTimes(Struct, frozen=True, omit_defaults=True):
    """One device's seconds per layer: per sample, and (optional) per call of any size."""

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    update_s: tuple[float, ...]
    forward_call_s: tuple[float, ...] = ()
    backward_call_s: tuple[float, ...] = ()

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
        return DeviceTimes(
            *(tuple(t * factor for t in times) for times in (
                self.forward_s, self.backward_s, self.update_s,
                self.forward_call_s, self.backward_call_s))
        )  # fmt: skip


class Profile(Struct, frozen=True, omit_defaults=True):
    """The sizes of a network's layers, and their times on each device."""

    model: str
    input_bytes: int
    layers: tuple[LayerCost, ...]
    devices: dict[str, DeviceTimes]
    target_bytes: int = 8  # one label

    def cut_bytes(self, m: int) -> int:
        """Bytes per sample over a cut after the first m layers; 0 is the input."""
        return self.input_bytes if m == 0 else self.layers[m - 1].output_bytes

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
