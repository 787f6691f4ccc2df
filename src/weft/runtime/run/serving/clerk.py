"""The one thread of a service that talks to the fleet: it takes requests there and brings answers back.

    clerk = Clerk(run, desk, put_together)
    clerk.start(); ...; clerk.close()

Requests that come while others are under way are added to them, so that a pipeline does not run empty. If a
device reports an error in its work, nobody knows which request is to blame. Then each request without an
answer is asked again alone, and only those that fail alone get the error.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from weft.dtypes import torch_dtype
from weft.errors import LostDevice, WeftError
from weft.runtime.node.samples import Minibatch
from weft.runtime.run.outcome import Outcome
from weft.runtime.run.serving.answering import Answering
from weft.runtime.run.serving.attendants import NobodyLeft
from weft.runtime.run.serving.desk import Closed, Desk, Request

log = logging.getLogger("weft.serve")

AT_ONCE = 64  # requests under way
IN_A_ROW = 256  # requests until the run begins a new series, and forgets the old one
ORPHANED_S = 3.0  # without a request, after the end of the program
Pieces = list[dict[str, Tensor]]


class Clerk:
    """`put_together` makes an answer from its micro-batches. `ends` says whether a lost device that nobody
    replaces ends the service. `release` frees the fleet."""

    def __init__(
        self,
        run: Answering,
        desk: Desk,
        put_together: Callable[[Pieces], Any],
        ends: bool,
        release: Callable[[], None],
    ) -> None:
        self._run, self._desk, self._put_together, self._ends = run, desk, put_together, ends
        self._release = release
        self._idle_since = time.monotonic()
        self._open: dict[int, Request] = {}  # by their number: taken, not yet answered
        self._next = 0
        self._until = 0  # requests before this number may be added to those under way
        self._alone = False  # a request is tried alone: nothing is added
        self._thread = threading.Thread(target=self._work, name="clerk", daemon=True)
        run.admit, run.give = self._admit, self._feed

    def start(self) -> None:
        self._thread.start()

    def close(self, seconds: float) -> None:
        """The desk must be closed already. Waits for the thread to end."""
        self._thread.join(timeout=seconds)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _feed(self, step: int) -> Minibatch:
        """The inputs of a request. One that has its answer may be asked again with those behind it: then
        anything will do."""
        request = self._open.get(step)
        return (request.inputs if request is not None else self._blank()), None

    def _blank(self) -> dict[str, Tensor]:
        graph, batch = self._run.graph, self._run.plan.batch
        return {
            name: torch.zeros(batch, *graph.values[name].shape[1:],
                              dtype=torch_dtype(graph.values[name].dtype))
            for name in graph.inputs
        }  # fmt: skip

    # --- the thread -----------------------------------------------------------------------------

    def _work(self) -> None:
        error: WeftError = Closed("the service has ended")
        try:
            while self._desk.closed is None:
                self._turn()
        except WeftError as ending:
            error = ending
        except Exception as unexpected:
            log.exception("the service has ended with an error")
            error = Closed(f"the service has ended: {type(unexpected).__name__}: {unexpected}")
        finally:
            self._desk.close(error)
            self._fail(self._desk.closed or error)
            if self._is_orphaned:
                self._release()  # nobody else will: open sessions keep a program from ending

    def _turn(self) -> None:
        work = self._desk.take_work()
        if work is not None:
            self._do(*work)
            return
        self._until = self._next + IN_A_ROW
        first = self._next
        last = self._admit(first)
        if last > first:
            self._answer(first, last)
            self._idle_since = time.monotonic()
            return
        if self._is_orphaned:
            raise Closed("the program has ended")
        self._alone = True
        try:
            self._run.idle(first)
        except WeftError as error:
            self._cannot_go_on(error)
        finally:
            self._alone = False

    @property
    def _is_orphaned(self) -> bool:
        """The program has ended without closing the service, and no other thread of it calls any more."""
        idle_s = time.monotonic() - self._idle_since
        return idle_s > ORPHANED_S and not threading.main_thread().is_alive()

    def _do(self, work: Callable[[], Any], answer: Any) -> None:
        try:
            answer.set_result(work())
        except Exception as error:
            answer.set_exception(error)

    def _admit(self, last: int) -> int:
        """Numbers the requests that have come, where there is room for them; returns where they end."""
        if self._desk.closed is not None:
            raise self._desk.closed
        if self._alone:
            return last
        room = min(AT_ONCE - len(self._open), self._until - self._next)
        for request in self._desk.take(room) if room > 0 else ():
            self._open[self._next] = request
            self._next += 1
        return max(last, self._next)

    def _answer(self, first: int, last: int) -> None:
        try:
            self._run.steps(first, last, self._deliver)
        except (LostDevice, NobodyLeft) as error:
            self._cannot_go_on(error)
        except WeftError as error:
            if self._desk.closed is not None:
                raise
            if self._run.broken:  # it could not even begin
                self._cannot_go_on(error)
            else:
                self._try_alone()

    def _deliver(self, outcome: Outcome) -> None:
        for step in [s for s in self._open if self._run.is_answered(s)]:
            keys = [(step, m) for m in range(self._run.plan.micro_batches)]
            answer = self._put_together([outcome.answers[key] for key in keys])
            outcome.answers.update({key: {} for key in keys})  # answered, and no longer here
            self._open.pop(step).answer.set_result(answer)

    # --- errors ---------------------------------------------------------------------------------

    def _try_alone(self) -> None:
        """Something failed, and nobody knows whose fault it is: each request is asked again alone."""
        self._alone = True
        self._run.begin_again()
        for number, request in list(self._open.items()):
            others, self._open = self._open, {number: request}
            try:
                self._run.steps(number, number + 1, self._deliver)
            except WeftError as error:
                if self._desk.closed is not None:
                    self._open = others
                    raise
                self._run.begin_again()
                self._fail(error)
            self._open = others
            del self._open[number]
        self._alone = False

    def _cannot_go_on(self, error: WeftError) -> None:
        """Nobody can answer at the moment. The next request, or a device that comes back, tries again."""
        if self._desk.closed is not None or (self._ends and isinstance(error, LostDevice)):
            raise error
        self._run.begin_again()
        self._fail(error)

    def _fail(self, error: WeftError) -> None:
        for request in self._open.values():
            if not request.answer.done():
                request.answer.set_exception(error)
        self._open.clear()
