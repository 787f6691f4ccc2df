"""The order in which a node carries out commands, so that no command makes it deaf.

    lane = Lane(carry_out, do)
    lane.put(query, command)          # carried out by the lane's thread, one after the other
    lane.put_urgent(query, command)   # the same by `do`, but answered within a second in any case
    lane.look()                       # called regularly: answers urgent commands whose time is over

The thread that takes commands from the network never waits: it answers `hello` itself, wakes up whoever waits
when a run is cancelled or ended, and leaves everything else to the lane.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from weft.runtime.node.orders import Order
from weft.runtime.wire import messages as msg

Reply = Callable[[Any], None]  # sends the answer to a query
MAX_COMMANDS = 64  # that wait to be carried out
ANSWER_S = 0.6  # after which an urgent command is answered even if it is still being carried out
CLOSE_S = 0.5


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
        self._waiting: queue.SimpleQueue[Asked | Callable[[], None] | None] = queue.SimpleQueue()
        self._urgent: list[Asked] = []
        self._thread = threading.Thread(target=self._run, name="commands", daemon=True)
        self._thread.start()

    @property
    def full(self) -> bool:
        """Whether no further command is taken."""
        return self._waiting.qsize() >= MAX_COMMANDS

    def put(self, query: Any, order: Order) -> None:
        self._waiting.put(Asked(query, order))

    def put_urgent(self, query: Any, order: Order) -> None:
        asked = Asked(query, order, urgent=True)
        self._urgent.append(asked)
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
            if not isinstance(asked, Asked):
                asked()
            elif asked.urgent:
                asked.answer(self._do(asked.order))
            else:
                asked.answer(partial(self._carry_out, asked.order))


def _being_done(query: Any) -> None:
    query.reply(query.key_expr, msg.pack(msg.Done("this takes a little longer")))
