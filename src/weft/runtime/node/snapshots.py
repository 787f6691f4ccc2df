"""A device's copies of its own state, by minibatch. A run can go back to them.

    snapshots = Snapshots(report, "pi", version=0)
    snapshots.take(19, state, memory)     # copied at once; a separate thread reports the copy
    snapshots.busy                        # the copy before is still on its way
    snapshots.at(19)                      # the copy, while it is one of the newest two

The copies lie in two buffers that are used in turn, so that nothing is allocated while a run goes on.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping

from safetensors.torch import save as save_safetensors
from torch import Tensor

from weft.runtime.wire import messages as msg
from weft.runtime.wire.state_pieces import kept_pieces

State = dict[str, Tensor]
COPIES = 2
WAIT_S, LOOK_S = (
    30.0,
    0.2,
)  # for a buffer whose copy is on its way; between two looks whether the run is over
log = logging.getLogger("weft.node")


class _Copy:
    """One buffer. Its lock is held while it is written or read. It is not written before it was reported."""

    def __init__(self) -> None:
        self.step = -1
        self.reported = threading.Event()
        self.reported.set()
        self.state: State = {}
        self.memory: State = {}
        self.lock = threading.Lock()

    def fill(self, step: int, state: Mapping[str, Tensor], memory: Mapping[str, Tensor]) -> None:
        self.step = step
        self.reported.clear()
        self.state = _copied(state, self.state)
        self.memory = _copied(memory, self.memory)


def _copied(source: Mapping[str, Tensor], into: State) -> State:
    """Copies the source's values into the buffer's tensors. A name that is new takes the tensor of one that
    is gone, if that has its shape: versions of weights are named by their minibatches."""
    copies: State = {}
    spare = [tensor for name, tensor in into.items() if name not in source]
    for name, tensor in source.items():
        old = into.get(name)
        if old is None:
            old = next((one for one in spare if _alike(one, tensor)), None)
            spare = [one for one in spare if one is not old]
        if old is not None and _alike(old, tensor):
            copies[name] = old.copy_(tensor.detach())
        else:
            copies[name] = tensor.detach().clone()
    return copies


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype


class Snapshots:
    """The newest two copies of a device's state, and the thread that reports them."""

    def __init__(self, report: Callable[[msg.Report], None], device: str, version: int) -> None:
        self._report, self._device, self._version = report, device, version
        self._copies = [_Copy() for _ in range(COPIES)]
        self._next = 0
        self._waiting: queue.SimpleQueue[_Copy | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def take(
        self,
        step: int,
        state: Mapping[str, Tensor],
        memory: Mapping[str, Tensor],
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Copies the state after minibatch `step`. Waits while this buffer's last copy is not reported: it
        would be lost. If that lasts for long, or the run is over, this copy is left out."""
        copy, deadline = self._copies[self._next], time.monotonic() + WAIT_S
        while not copy.reported.wait(LOOK_S):
            if is_over():
                return
            if time.monotonic() > deadline:
                log.warning(
                    "%s: no copy of minibatch %d: the one before is still on its way",
                    self._device,
                    step,
                )
                return
        self._next = (self._next + 1) % COPIES
        with copy.lock:
            copy.fill(step, state, memory)
        if self._thread is None:
            self._thread = threading.Thread(target=self._tell, name="snapshots", daemon=True)
            self._thread.start()
        self._waiting.put(copy)

    @property
    def busy(self) -> bool:
        """Whether a copy is waiting to be reported, or being reported."""
        return not all(copy.reported.is_set() for copy in self._copies)

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
            # Pieces are made while they are sent, so that no second copy of all is needed. No lock is held: a
            # device may go back to this copy while a slow link still carries it.
            head = msg.Kept(self._device, self._version, copy.step, save_safetensors({}))
            try:
                for piece in kept_pieces(head, copy.state, copy.memory):
                    self._report(piece)
            except Exception as error:  # the device has its copy, and the next one is reported
                log.warning("%s: a copy was not reported: %r", self._device, error)
            copy.reported.set()
