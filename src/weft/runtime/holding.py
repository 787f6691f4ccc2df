"""What a device holds between the instruction that makes a tensor and the last that reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from torch import Tensor

from weft.program import instructions as ins
from weft.runtime.messages import Job

Values = Mapping[str, Tensor]
Key = tuple[int, str, int, int]  # minibatch, kind, cut, micro-batch


class Holding:
    """Tensors by minibatch and name. How often each is read follows from the program, so it is let
    go with its last read; what nobody reads is not kept at all.
    """

    def __init__(self, job: Job) -> None:
        self._reads = _count_reads(job)
        self._held: dict[Key, Values] = {}
        self._left: dict[Key, int] = {}  # reads until a held tensor may go

    def hold(self, step: int, kind: str, at: int, micro: int, tensors: Values) -> None:
        reads = self._reads[kind, at, micro]
        if reads:
            key = (step, kind, at, micro)
            self._held[key], self._left[key] = tensors, reads

    def use(self, step: int, kind: str, at: int, micro: int) -> Values:
        key = (step, kind, at, micro)
        self._left[key] -= 1
        if self._left[key]:
            return self._held[key]
        del self._left[key]
        return self._held.pop(key)


def _count_reads(job: Job) -> Counter[tuple[str, int, int]]:
    """How often each tensor of a minibatch is read."""
    reads: Counter[tuple[str, int, int]] = Counter()
    for i in job.code:
        match i:
            case ins.Reduce():
                for part in i.parts:
                    reads[part.kind, part.at, part.micro] += 1
            case ins.Send(tensor=ins.Tensor(kind="wgrad" | "wsum" | "follow")):
                pass  # read from the gradients themselves
            case ins.Send(tensor=t, also=also):
                reads[t.kind, t.at, t.micro] += 1
                if also is not None:
                    reads[also.kind, also.at, also.micro] += 1
            case ins.Forward():
                reads["act", i.layers[0], i.micro] += 1
            case ins.Loss():
                reads["act", job.layers, i.micro] += 1
                reads["target", 0, i.micro] += 1
            case ins.Backward():
                reads["grad", i.layers[1] + 1, i.micro] += 1
            case ins.Emit():
                reads["act", i.at, i.micro] += 1
    return reads
