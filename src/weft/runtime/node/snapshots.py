"""A device's copies of its own state, by minibatch. A run can go back to them.

    snapshots = Snapshots(report, "pi", version=0)
    snapshots.take(19, state, memory)     # copied at once; a separate thread reports the copy
    snapshots.at(19)                      # the copy, while it is one of the newest two

The copies lie in two buffers that are used in turn, so that nothing is allocated while a run goes on.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping

from torch import Tensor

from weft.runtime.wire import messages as msg
from weft.runtime.wire.state_pieces import state_pieces

State = dict[str, Tensor]
COPIES = 2


class _Copy:
    """One buffer. Its lock is held while it is written or read."""

    def __init__(self) -> None:
        self.step = -1
        self.state: State = {}
        self.memory: State = {}
        self.lock = threading.Lock()

    def fill(self, step: int, state: Mapping[str, Tensor], memory: Mapping[str, Tensor]) -> None:
        self.step = step
        self.state = _copied(state, self.state)
        self.memory = _copied(memory, self.memory)


def _copied(source: Mapping[str, Tensor], into: State) -> State:
    """Copies the source's values into the buffer's tensors; a tensor of another shape is replaced."""
    copies: State = {}
    for name, tensor in source.items():
        old = into.get(name)
        if old is not None and old.shape == tensor.shape and old.dtype == tensor.dtype:
            copies[name] = old.copy_(tensor.detach())
        else:
            copies[name] = tensor.detach().clone()
    return copies


class Snapshots:
    """The newest two copies of a device's state, and the thread that reports them."""

    def __init__(self, report: Callable[[msg.Report], None], device: str, version: int) -> None:
        self._report, self._device, self._version = report, device, version
        self._copies = [_Copy() for _ in range(COPIES)]
        self._next = 0
        self._waiting: queue.SimpleQueue[_Copy | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def take(self, step: int, state: Mapping[str, Tensor], memory: Mapping[str, Tensor]) -> None:
        """Copies the state after minibatch `step`. Waits only while the same buffer is being reported."""
        copy = self._copies[self._next]
        self._next = (self._next + 1) % COPIES
        with copy.lock:
            copy.fill(step, state, memory)
        if self._thread is None:
            self._thread = threading.Thread(target=self._tell, name="snapshots", daemon=True)
            self._thread.start()
        self._waiting.put(copy)

    def at(self, step: int) -> tuple[State, State] | None:
        for copy in self._copies:
            with copy.lock:
                if copy.step == step and step >= 0:
                    return (
                        {n: t.clone() for n, t in copy.state.items()},
                        {n: t.clone() for n, t in copy.memory.items()},
                    )
        return None

    def all(self) -> Iterator[tuple[int, State, State]]:
        """Every copy with its minibatch. A copy that is just being written is waited for."""
        for copy in self._copies:
            with copy.lock:
                if copy.step >= 0:
                    yield copy.step, copy.state, copy.memory

    def close(self) -> None:
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join(timeout=5.0)

    def _tell(self) -> None:
        while (copy := self._waiting.get()) is not None:
            with copy.lock:
                step = copy.step
                pieces = [*state_pieces(copy.state, False), *state_pieces(copy.memory, True)]
            for number, piece in enumerate(pieces, start=1):
                final = number == len(pieces)
                self._report(
                    msg.Kept(self._device, self._version, step, piece.data, piece.optimizer, final)
                )
