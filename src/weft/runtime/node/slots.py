"""Time slots: how long a device waits for a message that may be lost, and what it does without the message.

    slots = Slots(rules, mailbox, counts, deadline_s=30.0)
    slots.begin(start=12.5, first=0)          # minibatch 0 begins at 12.5 on this machine's clock
    letter = slots.take(key, recv, step=3)    # None: it is lost, or did not arrive in its slot

Slot k of minibatch n ends at start + (n * slots + k + 1) * slot_s. A message that has arrived when the device
asks for it is used, even if the device itself is late. A device that was cut off or stopped leaves out the
minibatches whose time is over, and goes on with the minibatch that the others are computing.
"""

from __future__ import annotations

import time
from collections import Counter

import torch

from weft.dtypes import torch_dtype
from weft.program.instructions import Miss, Recv, Tensor
from weft.runtime.node.tensors import Values
from weft.runtime.wire.frames import BadMessage, Key, unpack_tensors
from weft.runtime.wire.mailbox import Letter, Mailbox
from weft.runtime.wire.radio import RadioRules


class Slots:
    """One device's clock of slots. Without rules nothing is ever late."""

    def __init__(
        self, rules: RadioRules | None, mailbox: Mailbox, counts: Counter[str], deadline_s: float
    ) -> None:
        self._rules = rules
        self._mailbox = mailbox
        self._counts = counts
        self._deadline_s = deadline_s
        self._start, self._first = 0.0, 0
        self._missed: set[int] = set()
        self._unheard: dict[int, set[Tensor]] = {}  # by minibatch: messages that were replaced

    @property
    def clocked(self) -> bool:
        return self._rules is not None and not self._rules.told

    def begin(self, start: float, first: int) -> None:
        self._start, self._first = start, first
        self._missed.clear()

    def end(self, step: int, slot: int) -> float:
        assert self._rules is not None
        rules = self._rules
        return self._start + ((step - self._first) * rules.slots + slot + 1) * rules.slot_s

    def missed(self, step: int, beginning: bool) -> bool:
        """Whether a minibatch is left out because its time was over before this device began it."""
        if not self.clocked:
            return False
        if beginning and time.monotonic() > self.end(step, self._slots - 1):
            self._missed.add(step)
        return step in self._missed

    def heard(self, step: int, tensor: Tensor) -> bool:
        """Whether a tensor is the one that was sent, not a replacement."""
        return tensor not in self._unheard.get(step, ())

    def forget(self, step: int) -> None:
        """Ends a minibatch. Messages for it that arrive later are late."""
        self._unheard.pop(step, None)
        if self._rules is not None:
            self._missed.discard(step)
            self._counts["late"] += self._mailbox.forget(step)

    def take(self, key: Key, recv: Recv, step: int) -> Letter | None:
        """The message; None if it is lost or late."""
        assert self._rules is not None
        if self._rules.told:
            what = f"{recv.tensor} of minibatch {step} from {recv.source}"
            letter: Letter | None = self._mailbox.take(key, self._deadline_s, lambda: what)
        else:
            end = self.end(step, recv.slot)
            if time.monotonic() > end + self._slots * self._rules.slot_s:
                self._missed.add(step)  # the device is a whole minibatch late
            letter = self._mailbox.take_by(key, end)
        heard = letter is not None and not letter.header.lost
        self._counts["heard" if heard else "unheard"] += 1
        return letter if heard else None

    def values(
        self, letter: Letter | None, recv: Recv | Miss, own: Values | None, step: int
    ) -> Values:
        """The values of a message, or its replacement: zeros, or this device's own units, cyclically."""
        if letter is not None:
            try:
                found = unpack_tensors(letter.header, letter.payload)
            except BadMessage:
                found = {}
            if all(_fits(found.get(b.value), (recv.samples, *b.shape[1:])) for b in recv.blanks):
                return found
            self._counts["bad"] += 1
        self._unheard.setdefault(step, set()).add(recv.tensor)
        return {
            blank.value: _repeated(own[blank.value], blank.shape[1])
            if own
            else torch.zeros((recv.samples, *blank.shape[1:]), dtype=torch_dtype(blank.dtype))
            for blank in recv.blanks
        }

    @property
    def _slots(self) -> int:
        assert self._rules is not None
        return self._rules.slots


def _fits(tensor: torch.Tensor | None, shape: tuple[int, ...]) -> bool:
    return tensor is not None and tuple(tensor.shape) == shape


def _repeated(own: torch.Tensor, count: int) -> torch.Tensor:
    places = torch.arange(count) % own.shape[1]
    return own.detach().index_select(1, places)
