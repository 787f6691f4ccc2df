"""The order in which a node carries out commands, so that no command makes it deaf.

    lane = Lane(carry_out, do)
    lane.put(query, command)          # carried out by the lane's thread, one after the other
    lane.put_urgent(query, command)   # the same by `do`, but answered within a second in any case
    lane.look()                       # called regularly: answers urgent commands whose time is over

The thread that takes commands from the network never waits: it answers `hello` itself, wakes up whoever waits
when a run is cancelled or ended, and leaves everything else to the lane.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from weft.runtime.node.orders import Order
from weft.runtime.wire import messages as msg
from weft.runtime.wire.limits import Seldom, memory_bytes

log = logging.getLogger("weft.node")

Reply = Callable[[Any], None]  # sends the answer to a query
MAX_QUERIES = 4096  # of one kind that nobody has looked at
MANY = 64  # queries that wait: from then on some go first
MAX_COMMANDS = 64  # that wait to be carried out
# Bytes of commands that wait: most are weights, in pieces of a few MB. A small device has less room.
MAX_BYTES = min(2 << 30, memory_bytes() // 8)
MAX_OF_KIND = {"echo": 16 << 20}  # other devices' questions are empty
ANSWER_S = 0.6  # after which an urgent command is answered even if it is still being carried out
CLOSE_S = 0.5


class Intake:
    """Queries as they come from the network, until the node looks at them: so many, and of so many bytes.

    Each kind has its own room, and the kinds take turns, so that a flood of one kind does not keep out
    another one. `goes_first` says which queries overtake all others when many wait: it must be quick.
    """

    def __init__(
        self,
        most: int = MAX_QUERIES,
        most_bytes: int = MAX_BYTES,
        goes_first: Callable[[Any], bool] | None = None,
    ) -> None:
        self._most, self._most_bytes, self._goes_first = most, most_bytes, goes_first
        self._first: deque[Any] = deque()
        self._waiting: dict[str, deque[Any]] = {}  # by kind; the next kind is the first one
        self._bytes: Counter[str] = Counter()
        self._change = threading.Condition()

    def put(self, kind: str, query: Any) -> None:
        """Takes a query. Zenoh's thread calls this: it never waits, and a query without room is closed."""
        size = _size(query)
        with self._change:
            waiting = self._waiting.setdefault(kind, deque())
            many = len(waiting) >= MANY
        first = many and self._goes_first is not None and self._goes_first(query)
        with self._change:
            most = min(self._most_bytes, MAX_OF_KIND.get(kind, self._most_bytes))
            over = self._bytes[kind] + size > most and (
                self._bytes[kind] > 0 or kind in MAX_OF_KIND
            )
            room = len(self._first) < MANY if first else not over and len(waiting) < self._most
            if room and first:
                self._first.append(query)
            elif room:
                waiting.append(query)
                self._bytes[kind] += size
            self._change.notify()
        if not room:
            query.drop()

    def get(self, seconds: float) -> Any:
        """The next query; None if none comes in this time."""
        with self._change:
            self._change.wait_for(self._is_waited_for, seconds)
            if self._first:
                return self._first.popleft()
            for kind, waiting in self._waiting.items():
                if waiting:
                    query = waiting.popleft()
                    self._bytes[kind] -= _size(query)
                    self._waiting[kind] = self._waiting.pop(kind)  # the other kinds are next
                    return query
        return None

    def _is_waited_for(self) -> bool:
        return bool(self._first) or any(self._waiting.values())


def _size(query: Any) -> int:
    return len(query.payload) if query.payload is not None else 0


class Asked:
    """A command and the query that it came with. It is answered once."""

    def __init__(self, query: Any, order: Order, urgent: bool = False) -> None:
        self.query, self.order, self.urgent = query, order, urgent
        self.since = time.monotonic()
        self._guard = threading.Lock()
        self._answered = False

    def answer(self, reply: Reply) -> None:
        """Calls `reply` with the query and closes it, if nobody has done so."""
        with self._guard:
            if self._answered:
                return
            self._answered = True
        with self.query as query:
            reply(query)


class Lane:
    """A thread that carries out commands in the order in which they came."""

    def __init__(
        self, carry_out: Callable[[Order, Any], None], do: Callable[[Order], Reply]
    ) -> None:
        self._carry_out, self._do = carry_out, do
        self._log = Seldom(log)
        self._waiting: queue.SimpleQueue[Asked | Callable[[], None] | None] = queue.SimpleQueue()
        self._urgent: list[Asked] = []
        self._guard = threading.Lock()
        self._bytes = 0  # of commands that wait
        self._thread = threading.Thread(target=self._run, name="commands", daemon=True)
        self._thread.start()

    def is_full(self, size: int) -> bool:
        """Whether no further command of so many bytes is taken."""
        over = self._bytes > 0 and self._bytes + size > MAX_BYTES
        return over or self._waiting.qsize() >= MAX_COMMANDS

    def put(self, query: Any, order: Order) -> None:
        self._put(Asked(query, order))

    def put_urgent(self, query: Any, order: Order) -> None:
        asked = Asked(query, order, urgent=True)
        self._urgent.append(asked)
        self._put(asked)

    def _put(self, asked: Asked) -> None:
        with self._guard:
            self._bytes += asked.order.size
        self._waiting.put(asked)

    def put_own(self, act: Callable[[], None]) -> None:
        """Something that the node itself wants done, in its turn."""
        self._waiting.put(act)

    def look(self) -> None:
        """Answers urgent commands that take long. They are carried out all the same."""
        late = time.monotonic() - ANSWER_S
        for asked in [asked for asked in self._urgent if asked.since < late]:
            self._urgent.remove(asked)
            asked.answer(_being_done)

    def close(self) -> None:
        """Ends the thread, if it is not busy with something that takes long."""
        self._waiting.put(None)
        self._thread.join(timeout=CLOSE_S)

    def _run(self) -> None:
        torch.set_num_threads(1)  # each thread has its own setting; PyTorch's would wait in a loop
        while (asked := self._waiting.get()) is not None:
            try:
                self._act(asked)
            except Exception:  # who asked may be gone; the thread serves the others
                self._log.exception("a command could not be carried out or answered")
            if isinstance(asked, Asked):
                with self._guard:
                    self._bytes -= asked.order.size

    def _act(self, asked: Asked | Callable[[], None]) -> None:
        if not isinstance(asked, Asked):
            asked()
        elif asked.urgent:
            asked.answer(self._do(asked.order))
        else:
            asked.answer(partial(self._carry_out, asked.order))


def _being_done(query: Any) -> None:
    query.reply(query.key_expr, msg.pack(msg.Done("this takes a little longer")))
