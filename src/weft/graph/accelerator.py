"""Computes a segment on an accelerator: a GPU, or whatever PyTorch has beside the processor.

    compute = Compute(threads=4)                      # this machine's processor
    compute = Compute(border=Border("cuda:0"))
    runner = compute.runner(segment, state)           # as Runner(segment, state)

Tensors cross at the border of a segment: inputs there, outputs back. Weights stay in this machine's memory,
where optimizers, copies and messages find them. The accelerator has a copy, renewed after an update.
Gradients of weights come back with each backward pass. This has been tested with a stand-in for a device, and
with no real one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from weft.errors import InputError
from weft.graph.execute import Runner, Tensors
from weft.graph.network import Segment

KINDS = ("cuda", "mps", "xpu")


class Border:
    """How tensors get to a device of PyTorch and back."""

    def __init__(self, device: str) -> None:
        self.device = device

    def there(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device)

    def back(self, tensor: Tensor) -> Tensor:
        return tensor.to("cpu")


@dataclass(frozen=True)
class Compute:
    """What a node computes with: threads of the processor, or an accelerator."""

    threads: int = 1
    border: Border | None = None

    @property
    def name(self) -> str:
        """For people, and for profiles: times are those of one setting."""
        return self.border.device if self.border else f"cpu x{self.threads}"

    def runner(self, segment: Segment, state: Mapping[str, Tensor]) -> Runner:
        """Runs a segment there."""
        return Accelerated(segment, state, self.border) if self.border else Runner(segment, state)


PLAIN = Compute()  # one thread


def accelerator(name: str) -> Border | None:
    """The border of a device such as cuda:0; None for cpu. InputError where PyTorch has no such device."""
    if name == "cpu":
        return None
    kind, _, number = name.partition(":")
    if kind not in KINDS or (number and not number.isdigit()):
        raise InputError(
            f"--compute {name!r} is not allowed; use cpu, or one of {', '.join(KINDS)} (as in cuda:0)"
        )
    module = getattr(torch, kind)
    if not module.is_available():
        raise InputError(
            f"--compute {name}: PyTorch {torch.__version__} finds no {kind} on this machine"
        )
    if number and int(number) >= module.device_count():
        raise InputError(
            f"--compute {name}: this machine has {module.device_count()} {kind} devices"
        )
    return Border(name)


class Accelerated(Runner):
    """A segment on the other side of a border. `state` has the weights on this side."""

    def __init__(self, segment: Segment, state: Mapping[str, Tensor], border: Border) -> None:
        super().__init__(segment, state)
        self._border, self._all = border, dict(state)
        loss = segment.loss.state if segment.loss else ()
        names = dict.fromkeys((*segment.state, *loss))
        self._there = {n: border.there(state[n].detach().clone()).detach() for n in names}
        self._inner = Runner(segment, self._there)
        self._inner.draw = torch.manual_seed  # also an accelerator's own generator
        self._versions = {n: self.state[n]._version for n in segment.state}
        for name in self.trained_names:
            add_hook: Any = self._there[name].register_post_accumulate_grad_hook  # has no types
            add_hook(partial(self._returned, name))

    def like(self, state: Mapping[str, Tensor]) -> Runner:
        return Accelerated(self.segment, {**self._all, **state}, self._border)

    def forward(
        self, inputs: Mapping[str, Tensor], *, training: bool = False, seed: int = 0
    ) -> dict[str, Tensor]:
        self._renew()
        moved = {name: self._border.there(tensor) for name, tensor in inputs.items()}
        outputs = self._inner.forward(moved, training=training, seed=seed)
        if training:
            self._take_buffers()
        return {name: self._border.back(tensor) for name, tensor in outputs.items()}

    def loss(self, output: Tensors, target: Tensors, samples: int) -> Tensor:
        self._renew()
        moved = (self._moved(output), self._moved(target))
        return self._border.back(self._inner.loss(*moved, samples))

    def piece_loss(
        self, output: Tensors, target: Tensors, totals: Sequence[Tensor], samples: int
    ) -> Tensor:
        self._renew()
        moved = (self._moved(output), self._moved(target), self._moved(totals))
        return self._border.back(self._inner.piece_loss(*moved, samples))

    def _moved(self, tensors: Tensors) -> list[Tensor]:
        listed = (tensors,) if isinstance(tensors, Tensor) else tensors
        return [self._border.there(tensor) for tensor in listed]

    @torch.no_grad()
    def _renew(self) -> None:
        """Copies the weights that have changed here since the last time."""
        for name, version in self._versions.items():
            tensor = self.state[name]
            if tensor._version != version:
                self._there[name].copy_(self._border.there(tensor.detach()))
                self._versions[name] = tensor._version

    @torch.no_grad()
    def _take_buffers(self) -> None:
        """Running statistics change with a forward pass."""
        for name, info in self.segment.state.items():
            if not info.trainable:
                self.state[name].copy_(self._border.back(self._there[name]))
                self._versions[name] = self.state[name]._version

    def _returned(self, name: str, there: Tensor) -> None:
        """A gradient has been added to a weight there; it is added to the weight here."""
        assert there.grad is not None
        gradient, weight = self._border.back(there.grad), self.state[name]
        there.grad = None
        if weight.grad is None:
            weight.grad = gradient
        else:
            weight.grad.add_(gradient)
