"""What comes back to a run: the answers to one command, and the reports that wait until somebody takes them.

    answers = Answers(most_bytes(command))
    session.get(key, callback(answers.take), ...)      # Zenoh's thread
    reply = next_answer(answers, seconds, silent)      # who asked

    events = Events()
    events.offer("pi", report, size)                   # False: too much of pi waits already

A device that turned bad may send more than anybody takes. So both have limits of bytes: they are far above
what a run needs.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter
from typing import Any, NamedTuple

from weft.errors import InputError, LostDevice, WeftError
from weft.runtime.wire import messages as msg
from weft.runtime.wire.frames import HEADER_BYTES, BadMessage
from weft.runtime.wire.limits import memory_bytes

GRACE_S = 5.0  # Zenoh itself ends a request whose time is over
MAX_ANSWER = 256 << 20  # bytes of an answer that holds no state: a long timeline is the largest
MAX_REPORT = 16 << 20  # bytes of a report: copies come in pieces of a megabyte


def most_bytes(command: msg.Command) -> int:
    """How much one device may answer to a command."""
    if isinstance(command, msg.GetState | msg.GetCopies):
        return memory_bytes() // 2  # it is held as it came, and as tensors
    return min(MAX_ANSWER, memory_bytes() // 8)


class Answers(queue.SimpleQueue[Any]):
    """What a device answers to one command: replies, then None at the end; or an error if the node is gone,
    or if it answers too much."""

    def __init__(self, most: int = MAX_ANSWER) -> None:
        super().__init__()
        self.count = 0  # the command's number, which the answers carry
        self._most, self._bytes = most, 0

    def take(self, reply: Any) -> None:
        """A reply, from Zenoh's thread."""
        if self._bytes > self._most:
            return
        part = reply.ok if reply.ok is not None else reply.err
        self._bytes += len(part.payload) + HEADER_BYTES
        over = self._bytes > self._most
        self.put(WeftError(f"more than {self._most} bytes") if over else reply)


def next_answer(answers: Answers, seconds: float, silent: LostDevice) -> Any:
    """The next answer; raises `silent` where none comes."""
    try:
        return answers.get(timeout=seconds + GRACE_S)
    except queue.Empty:
        raise silent from None


def is_cut_short(command: msg.Command, last: msg.Reply) -> bool:
    """Whether the last piece of a state is missing: a device that dies while it sends its state sends only
    the first pieces."""
    return isinstance(command, msg.GetState | msg.GetCopies) and not getattr(last, "last", True)


def check_numbers(device: str, what: str, answer: list[msg.Reply]) -> None:
    """WeftError where a piece of a state is missing or came twice: each has a seal of its own."""
    numbers = [r.number for r in answer if isinstance(r, msg.StatePiece | msg.Kept)]
    if numbers != list(range(len(numbers))):
        listed = ", ".join(str(number) for number in numbers[:20])
        raise WeftError(
            f"{device} sent pieces {listed} of its answer to `{what}`; each must come once, in turn"
        )


def error_in(device: str, payload: bytes) -> WeftError:
    """The error that a device answers with."""
    try:
        report = msg.unpack_report(payload)
    except BadMessage:
        return WeftError(f"{device}: {payload[:300].decode(errors='replace')}")
    if not isinstance(report, msg.Failed):
        return WeftError(f"{device} answers an error that is none")
    if (
        report.forgotten
    ):  # what it knew was lost with its last life, whether we have heard of that or not
        return LostDevice(device, f"{device} was started again: {report.error}")
    kind = InputError if report.bad_input else WeftError
    return kind(f"{device}: {report.error}")


class _Waiting(NamedTuple):
    """A report that nobody has taken yet."""

    device: str
    size: int
    event: Any


class Events(queue.SimpleQueue[Any]):
    """What a run hears, in the order in which it came."""

    def __init__(self, most: int = 0) -> None:
        super().__init__()
        self._most = most or min(4 << 30, memory_bytes() // 4)
        self._guard = threading.Lock()
        self._bytes: Counter[str] = Counter()  # of each device's reports that wait
        self.dropped: Counter[str] = Counter()  # reports of each device

    def offer(self, device: str, event: Any, size: int) -> bool:
        """Adds a device's report, unless too much of this device waits, or of all together."""
        size += HEADER_BYTES
        with self._guard:
            waits, whole = self._bytes[device], sum(self._bytes.values())
            if waits and (waits + size > self._most // 4 or whole + size > self._most):
                self.dropped[device] += 1
                return False
            self._bytes[device] += size
        self.put(_Waiting(device, size, event))
        return True

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        return self._taken(super().get(block, timeout))

    def get_nowait(self) -> Any:
        return self._taken(super().get_nowait())

    def _taken(self, item: Any) -> Any:
        if not isinstance(item, _Waiting):
            return item
        with self._guard:
            self._bytes[item.device] -= item.size
        return item.event
