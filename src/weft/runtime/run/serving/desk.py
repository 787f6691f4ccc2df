"""Where requests wait until the fleet takes them: any thread puts them here, one thread takes them.

    desk = Desk(room=64, seconds=30.0, wake=...)
    future = desk.put([Request(tensors)])[0].answer      # waits while the desk is full
    requests = desk.take(16)                             # returns at once
    desk.close(error)                                    # whoever waits gets the error

A desk that is full makes its callers wait: this is the back-pressure. A caller that has waited for `seconds`
gets the error `Busy`, and its request is not carried out.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from weft.errors import WeftError


class Busy(WeftError):
    """The service has as many requests as it takes; this one was not carried out."""


class Closed(WeftError):
    """The service was closed, or has ended with an error."""


@dataclass(eq=False)
class Request:
    """The inputs of one batch by name, and the answer that somebody waits for."""

    inputs: dict[str, Tensor]
    answer: Future[Any] = field(default_factory=Future)


Work = Callable[[], Any]


class Desk:
    """A queue of requests with a bounded length. `wake` is called when something has been put on it."""

    def __init__(self, room: int, seconds: float, wake: Callable[[], None]) -> None:
        self.room, self._seconds, self._wake = room, seconds, wake
        self._requests: deque[Request] = deque()
        self._work: deque[tuple[Work, Future[Any]]] = deque()
        self._changed = threading.Condition()
        self._closed: WeftError | None = None

    def put(self, requests: Sequence[Request]) -> None:
        """Puts requests in this order, as many at once as there is room for. Waits for room."""
        left = deque(requests)
        deadline = time.monotonic() + self._seconds
        while left:
            with self._changed:
                self._wait_for_room(deadline)
                while left and len(self._requests) < self.room:
                    self._requests.append(left.popleft())
            deadline = time.monotonic() + self._seconds
            self._wake()

    def _wait_for_room(self, deadline: float) -> None:
        while self._closed is None and len(self._requests) >= self.room:
            if not self._changed.wait(deadline - time.monotonic()):
                raise Busy(
                    f"{self.room} requests are waiting, and none of them was taken for "
                    f"{self._seconds:g} s; send fewer at once, or give the service a longer queue"
                )
        if self._closed is not None:
            raise self._closed

    def ask(self, work: Work) -> Future[Any]:
        """Something else that the clerk's thread does between two requests."""
        answer: Future[Any] = Future()
        with self._changed:
            if self._closed is not None:
                raise self._closed
            self._work.append((work, answer))
        self._wake()
        return answer

    def take(self, most: int) -> list[Request]:
        """At most so many requests, in their order; none if the desk is empty. Never waits."""
        with self._changed:
            if self._closed is not None:
                raise self._closed
            count = min(most, len(self._requests))
            taken = [self._requests.popleft() for _ in range(count)]
            if taken:
                self._changed.notify_all()
        return [r for r in taken if r.answer.set_running_or_notify_cancel()]

    def take_work(self) -> tuple[Work, Future[Any]] | None:
        with self._changed:
            return self._work.popleft() if self._work else None

    @property
    def closed(self) -> WeftError | None:
        """Why no request is taken any more; None while the desk is open."""
        return self._closed

    def close(self, error: WeftError) -> None:
        """Ends all waiting with this error."""
        with self._changed:
            self._closed = self._closed or error
            answers = [r.answer for r in self._requests] + [answer for _, answer in self._work]
            self._requests.clear()
            self._work.clear()
            self._changed.notify_all()
        for answer in answers:
            if answer.set_running_or_notify_cancel():
                answer.set_exception(self._closed)
        self._wake()
