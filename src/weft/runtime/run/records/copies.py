"""Copies of all weights by minibatch, as devices report them: where a run goes back to.

    copies = Copies(Copy(0, state, memory))
    copies.take(kept, wanted, place)      # a piece of a device's report
    copies.newest                         # the newest minibatch of which every device has reported

A copy is taken without a pause: every device copies what it knows after the same minibatch, when it comes
to it, and reports the copy while it works on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from weft.runtime.run.dispatch import State
from weft.runtime.wire import messages as msg
from weft.runtime.wire.limits import memory_bytes
from weft.runtime.wire.state_pieces import Pieces


@dataclass(frozen=True)
class Copy:
    """The whole network and the optimizer's memory as they are before minibatch `step`."""

    step: int
    state: Mapping[str, Tensor]
    memory: Mapping[str, Tensor]
    # Of minibatches before it, where the copy is of a run whose coordinator died.
    losses: Mapping[int, float] = field(default_factory=dict)


MOST_STEPS = 256  # minibatches with reports that are not whole yet


_Found = tuple[int, dict[str, Pieces]]  # a minibatch, and the state of each device
Place = Callable[[Mapping[str, tuple[State, State]], State, State], None]


class Copies:
    """Puts devices' reports together; knows the newest copy of the whole network."""

    def __init__(self, first: Copy, together: bool = True, most: int = 0) -> None:
        self.newest = first
        self._most = most or memory_bytes() // 2  # bytes of reports that are not whole yet
        # Whether devices are at the same minibatch. If nobody waits for others, a copy has the newest state
        # of each device: a fast one may be far ahead, and all of its states would be too much.
        self._together = together
        self._parts: dict[int, dict[str, Pieces]] = {}  # minibatch -> device
        self._whole: dict[int, set[str]] = {}  # minibatch -> devices that have reported all of it

    def take(
        self, kept: msg.Kept, wanted: Collection[str], place: Place, base: State
    ) -> Copy | None:
        """A piece of a report; the copy, where it was the last that was missing. What no device has is as
        in `base`."""
        self._make_room(len(kept.data))
        parts = self._parts.setdefault(kept.step, {})
        if kept.number == 0:  # a report begins, perhaps for the second time
            parts.pop(kept.device, None)
            self._whole.get(kept.step, set()).discard(kept.device)
        # A report that cannot be read stays incomplete, and the copy before it counts.
        if parts.setdefault(kept.device, Pieces()).take(kept):
            self._whole.setdefault(kept.step, set()).add(kept.device)
        found = self._whole_at(kept.step, wanted) if self._together else self._newest_of(wanted)
        if found is None:
            return None
        step, parts = found
        whole: tuple[State, State] = base, {}
        place({device: (part.state, part.memory) for device, part in parts.items()}, *whole)
        self.newest = Copy(step + 1, *whole)
        self._forget_through(step)
        return self.newest

    def _make_room(self, size: int) -> None:
        """A device that turned bad may report ever new minibatches, and no end of any. The oldest reports are
        forgotten where there are too many: the copy before them counts."""
        while self._parts:
            held = sum(p.bytes for parts in self._parts.values() for p in parts.values())
            if len(self._parts) <= MOST_STEPS and held + size <= self._most:
                return
            oldest = min(self._parts)
            del self._parts[oldest]
            self._whole.pop(oldest, None)

    def _whole_at(self, step: int, wanted: Collection[str]) -> _Found | None:
        return (step, self._parts[step]) if self._whole.get(step, set()) >= set(wanted) else None

    def _newest_of(self, wanted: Collection[str]) -> _Found | None:
        """Each device's newest state, if all devices have reported a newer one than in the last copy."""
        newest: dict[str, int] = {}
        for step in sorted(self._whole):
            newest |= dict.fromkeys(self._whole[step], step)
        for step, parts in self._parts.items():  # older states of a device are not needed any more
            for device in [d for d in parts if step < newest.get(d, -1)]:
                del parts[device]
                self._whole.get(step, set()).discard(device)
        if not newest.keys() >= set(wanted):
            return None
        least = min(newest[device] for device in wanted)
        if least < self.newest.step:
            return None
        return least, {device: self._parts[newest[device]][device] for device in wanted}

    def begin_anew(self) -> None:
        """Another plan: what was reported under the one before will not become whole."""
        self._parts, self._whole = {}, {}

    def _forget_through(self, step: int) -> None:
        self._parts = {n: parts for n, parts in self._parts.items() if n > step}
        self._whole = {n: devices for n, devices in self._whole.items() if n > step}
