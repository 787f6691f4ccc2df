"""Who has fallen silent: devices whose heartbeats have stopped while others are heard.

    silence = Silence(patience=1.0)
    silence.expect("pi", now)             # it is connected: a heartbeat should come
    silence.heard("pi", now)              # a heartbeat has come
    silence.tick(now, {"pi", "nuc"})      # several times a second; returns devices that are now silent

A process that gets no CPU time for a while must not be taken for a silent one. So silence is counted in
ticks of the one who listens, and a tick that comes late counts no more than one that is on time. A tick in
which nobody at all was heard says more about this machine than about any device, and is not counted. Where
the heartbeats of others come irregularly, everybody gets more time, but never so much that Zenoh would
close the connection first (10 s) and a device that is only stopped would be called gone. On a machine so
busy that ticks come late too, the clock decides: after 8 s there is no more time than `patience`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from weft.errors import InputError

PATIENCE_S = 1.0  # if nobody says otherwise
BEAT_S = 0.2  # between two heartbeats, and between two ticks
IRREGULAR = 5  # times the longest recent gap between two heartbeats of a device that is not silent
MOST_S = 6.0  # of the time that irregular heartbeats give, and of that for the first heartbeat
LATEST_S = 8.0  # by the clock since the last heartbeat: then irregular heartbeats give no more time
RECENT = 100  # gaps that are remembered, of all devices together


def check_patience(seconds: float) -> None:
    """InputError for a patience in which not even two heartbeats come."""
    if seconds < 2 * BEAT_S:
        raise InputError(
            f"patience {seconds:g} is not allowed; it must be at least {2 * BEAT_S:g} seconds, because "
            f"devices send a heartbeat every {BEAT_S:g} s"
        )


class Silence:
    """Counts the silence of each device that is connected. It reads no clock and opens nothing."""

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self.silent: set[str] = set()
        self._quiet: dict[str, float] = {}  # seconds, counted in ticks
        self._last: dict[str, float] = {}  # when each was heard, or expected
        self._unheard: set[str] = set()  # those that are only expected
        self._gaps: deque[float] = deque(maxlen=RECENT)
        self._heard_since: set[str] = set()  # since the last tick
        self._ticked: float | None = None

    def expect(self, device: str, now: float) -> None:
        """The device has connected. It gets more time for its first heartbeat: it may still be starting."""
        if device not in self._last:
            self._unheard.add(device)
            self._last[device], self._quiet[device] = now, 0.0

    def heard(self, device: str, now: float) -> bool:
        """A heartbeat; True where the device was silent before."""
        before = self._last.get(device)
        self._last[device], self._quiet[device] = now, 0.0
        self._heard_since.add(device)
        first = device in self._unheard
        self._unheard.discard(device)
        if device in self.silent:
            self.silent.discard(device)
            return True
        if before is not None and not first:
            self._gaps.append(now - before)
        return False

    def forget(self, device: str) -> None:
        """The device is gone: it is neither heard nor silent."""
        self.silent.discard(device)
        self._unheard.discard(device)
        self._quiet.pop(device, None)
        self._last.pop(device, None)

    @property
    def limit(self) -> float:
        """The seconds without a heartbeat, counted in ticks, after which a device is silent."""
        return max(self.patience, min(MOST_S, IRREGULAR * max(self._gaps, default=0.0)))

    def tick(self, now: float, watched: Collection[str]) -> list[str]:
        """The devices among `watched` that are silent from now on."""
        since = now - self._ticked if self._ticked is not None else 0.0
        self._ticked = now
        heard, self._heard_since = self._heard_since, set()
        witnesses = [d for d in self._quiet if d not in self.silent]
        heard_once = [d for d in witnesses if d not in self._unheard]
        if not heard and len(heard_once or witnesses) > 1:
            return []
        fallen = []
        for device in witnesses:
            if device in heard:
                continue
            self._quiet[device] += min(since, 2 * BEAT_S)
            if device in watched and self._quiet[device] > self._limit_of(device, now):
                fallen.append(device)
        self.silent.update(fallen)
        return fallen

    def _limit_of(self, device: str, now: float) -> float:
        if self.since(device, now) > LATEST_S:
            return self.patience
        return max(self.limit, MOST_S) if device in self._unheard else self.limit

    def since(self, device: str, now: float) -> float:
        """The seconds since a device was heard last, by the clock."""
        return now - self._last.get(device, now)
