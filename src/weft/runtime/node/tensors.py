"""The tensors of a device, from the instruction that makes a tensor to the last one that reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from torch import Tensor

from weft.program import instructions as ins
from weft.runtime.wire.messages import Job

Values = Mapping[str, Tensor]
Key = tuple[int, str, int, int, int]  # minibatch, kind, cut, micro-batch, part


class HeldTensors:
    """Tensors by minibatch and name. The program says how often each is read, so a tensor is freed with its
    last read. A tensor that is never read is not kept.
    """

    def __init__(self, job: Job) -> None:
        self._reads = _count_reads(job)
        self._held: dict[Key, Values] = {}
        self._left: dict[Key, int] = {}  # reads until a tensor is freed

    def hold(
        self, step: int, kind: str, at: int, micro: int, tensors: Values, part: int = 0
    ) -> None:
        reads = self._reads[kind, at, micro, part]
        if reads:
            key = (step, kind, at, micro, part)
            self._held[key], self._left[key] = tensors, reads

    def maybe(self, step: int, kind: str, at: int, micro: int, part: int = 0) -> Values | None:
        """The tensor; None if it did not arrive."""
        key = (step, kind, at, micro, part)
        return self.use(step, kind, at, micro, part) if key in self._left else None

    def use(self, step: int, kind: str, at: int, micro: int, part: int = 0) -> Values:
        key = (step, kind, at, micro, part)
        self._left[key] -= 1
        if self._left[key]:
            return self._held[key]
        del self._left[key]
        return self._held.pop(key)

    def forget(self, step: int) -> None:
        """Frees all tensors of a skipped minibatch."""
        for key in [key for key in self._held if key[0] == step]:
            del self._held[key], self._left[key]


def _count_reads(job: Job) -> Counter[tuple[str, int, int, int]]:
    """How often each tensor of a minibatch is read."""
    reads: Counter[tuple[str, int, int, int]] = Counter()
    for i in job.code:
        match i:
            case ins.Reduce():
                for part in i.parts:
                    reads[part.kind, part.at, part.micro, part.part] += 1
            case ins.Send(tensor=ins.Tensor(kind="wgrad" | "wsum" | "follow" | "whole")):
                pass  # weight gradients are read from the parameters; `done` and the like have no values
            case ins.Recv(own=ins.Tensor() as t) | ins.Miss(own=ins.Tensor() as t):
                reads[t.kind, t.at, t.micro, t.part] += 1
            case ins.Send(tensor=t, also=also):
                reads[t.kind, t.at, t.micro, t.part] += 1
                if also is not None:
                    reads[also.kind, also.at, also.micro, also.part] += 1
            case ins.Stitch() | ins.Pool():
                for t in i.reads:
                    reads[t.kind, t.at, t.micro, t.part] += 1
            case ins.Blend() | ins.Clip():
                for part in i.parts:
                    reads[part.kind, part.at, part.micro, part.part] += 1
            case ins.Keep(part=t):
                reads[t.kind, t.at, t.micro, t.part] += 1
            case ins.Forward():
                reads["in" if i.part else "act", i.layers[0], i.micro, i.part] += 1
            case ins.Loss():
                reads["act", job.layers, i.micro, i.part] += 1
                reads["target", 0, i.micro, 0] += 1
            case ins.Backward():
                reads["grad", i.layers[1] + 1, i.micro, i.part] += 1
            case ins.Emit():
                reads["act", i.at, i.micro, 0] += 1
    return reads


def sized(shape: tuple[int, ...], batch_dim: int | None, samples: int) -> tuple[int, ...]:
    """The shape of a value with so many samples."""
    if batch_dim is None:
        return shape
    return (*shape[:batch_dim], samples, *shape[batch_dim + 1 :])
