"""What a series of minibatches gave, as it comes in."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from weft.errors import WeftError
from weft.runtime.wire import messages as msg
from weft.runtime.wire.frames import Header, unpack_tensors


@dataclass
class Outcome:
    """`together`: devices that train one network report shares of a loss, which add up. Devices with
    networks of their own report losses of their own, of which the mean counts."""

    together: Literal["sum", "mean"] = "sum"
    answers: dict[tuple[int, int], dict[str, Tensor]] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)  # device -> newest minibatch
    losses: dict[int, float] = field(default_factory=dict)  # by minibatch
    newest: int = -1  # the newest minibatch with a loss
    _new: list[int] = field(default_factory=list)  # minibatches with a loss that nobody has taken
    _reported: dict[int, dict[str, float]] = field(default_factory=dict)  # minibatch -> device
    _repeated_from: float = math.inf  # these minibatches are done again under the plan that runs

    def add(self, progress: msg.Progress) -> None:
        self.done[progress.device] = max(self.done.get(progress.device, -1), progress.step)
        self._add_losses(progress, math.inf)

    def add_late(self, progress: msg.Progress) -> None:
        """A report under a plan that has ended: only losses that no later report brings again."""
        self._add_losses(progress, self._repeated_from)

    def _add_losses(self, progress: msg.Progress, end: float) -> None:
        for step, loss in progress.losses:
            if step >= end:
                continue
            shares = self._reported.setdefault(step, {})
            if not shares:
                self._new.append(step)
                self.newest = max(self.newest, step)
            shares[progress.device] = loss
            total = sum(shares.values())
            self.losses[step] = total if self.together == "sum" else total / len(shares)

    def take_new(self) -> list[int]:
        """The minibatches whose losses have come since the last call. Who looks at these alone does not go
        through all minibatches at each report."""
        new, self._new = self._new, []
        return new

    def answer(self, header: Header, payload: bytes) -> None:
        """Keeps copies, which the user may write into: the message's memory is read-only."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given buffer is not writable")
            tensors = unpack_tensors(header, payload)
            self.answers[header.step, header.micro] = {n: t.clone() for n, t in tensors.items()}

    def repeat_from(self, step: int) -> None:
        """Minibatches from `step` on will be done again: what was reported of them does not count."""
        self._repeated_from = step
        for n in [n for n in self._reported if n >= step]:
            del self._reported[n], self.losses[n]
        self.newest = max(self.losses, default=-1)


class Settling:
    """Gives each minibatch's loss once, when all devices have done the minibatch.

    settling.take(outcome, end=20)      # {17: 0.31, 18: 0.30, 19: 0.33}, what is new before minibatch 20
    """

    def __init__(self) -> None:
        self._waiting: set[int] = set()  # minibatches with a loss that some device has not done
        self._given: set[int] = set()

    def take(self, outcome: Outcome, end: int) -> dict[int, float]:
        """The losses before minibatch `end` that were not given before, in order. A minibatch that is
        repeated is not given again."""
        self._waiting.update(outcome.take_new())
        due = sorted(step for step in self._waiting if step < end)
        self._waiting.difference_update(due)
        settled = {
            step: outcome.losses[step]
            for step in due
            if step not in self._given and step in outcome.losses
        }
        self._given.update(settled)
        return settled


class Stalled(WeftError):
    """Nothing goes on: somebody cannot be reached, though all are there."""
