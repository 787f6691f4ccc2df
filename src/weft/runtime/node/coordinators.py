"""Which runs have lost their coordinator: the process that hands out jobs and listens to reports.

    coordinators = Coordinators(session, "weft")
    coordinators.is_gone("a1b2")       # it was there, and is not any more
    coordinators.is_claimed("a1b2")    # it is there

A coordinator has a liveliness token for each of its runs. The token goes when the process ends, for whatever
reason; if only the network is cut, it goes after Zenoh's lease. A run for which nobody ever had a token was
given by somebody who does not keep to the rules, or whose process ended at once.
"""

from __future__ import annotations

import threading
from typing import Any

import zenoh

from weft.runtime.wire import topics as keys

MOST = 1000  # runs that are remembered
MOST_THERE = 100_000  # tokens; with more of them it cannot be said that one is missing


class Coordinators:
    """Listens to the tokens of a group."""

    def __init__(self, session: Any, group: str) -> None:
        self._gone: dict[str, None] = {}  # in the order in which they went
        self._there: set[str] = set()
        self._guard = threading.Lock()
        self._tokens = session.liveliness().declare_subscriber(
            keys.coordinator(group, "*"),
            zenoh.handlers.Callback(self._changed, indirect=False),
            history=True,
        )

    def _changed(self, sample: Any) -> None:
        run = str(sample.key_expr).rsplit("/", 1)[1]
        with self._guard:
            self._gone.pop(run, None)
            self._there.discard(run)
            if sample.kind == zenoh.SampleKind.PUT:
                if len(self._there) < MOST_THERE:
                    self._there.add(run)
            else:
                self._gone[run] = None
                while len(self._gone) > MOST:
                    del self._gone[next(iter(self._gone))]

    def is_claimed(self, run: str) -> bool:
        """Whether the run's coordinator is there, as far as can be said."""
        with self._guard:
            return run in self._there or len(self._there) >= MOST_THERE

    def is_gone(self, run: str) -> bool:
        """Whether the run's coordinator was there and is gone."""
        with self._guard:
            return run in self._gone
