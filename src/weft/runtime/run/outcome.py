"""What a series of minibatches gave, as it comes in."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field

from torch import Tensor

from weft.errors import WeftError
from weft.runtime.wire import messages as msg
from weft.runtime.wire.frames import Header, unpack_tensors


@dataclass
class Outcome:
    losses: dict[int, float] = field(default_factory=dict)
    answers: dict[tuple[int, int], dict[str, Tensor]] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)  # device -> newest minibatch

    def add(self, progress: msg.Progress) -> None:
        self.done[progress.device] = progress.step
        for step, loss in progress.losses:  # lanes may end on several devices: their shares add up
            self.losses[step] = self.losses.get(step, 0.0) + loss

    def answer(self, header: Header, payload: bytes) -> None:
        """Keeps copies, which the user may write into: the message's memory is read-only."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given buffer is not writable")
            tensors = unpack_tensors(header, payload)
            self.answers[header.step, header.micro] = {n: t.clone() for n, t in tensors.items()}


class Stalled(WeftError):
    """Nothing goes on: somebody cannot be reached, though all are there."""
