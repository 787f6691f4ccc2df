"""Who holds up a run in which everybody sends heartbeats and nothing is done.

    device = held_up_by(run, waiting)        # None where no device is to blame, or nobody can tell

Each device says whose message it waits for. Who follows these words comes to a device that does not wait: it
is slow, or hangs. Or the words lead back: two devices wait for each other, because the link between them is
cut.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from weft.errors import WeftError
from weft.runtime.wire import messages as msg

if TYPE_CHECKING:
    from weft.runtime.run.run import Run

ASK_S = 2.0
STEPS = 8  # expected steps without any progress
REST_S = 30.0  # before a slow device is taken back; twice as long each time


def limit_s(run: Run) -> float:
    """Seconds without any report after which somebody is slow. Devices give up after the deadline, so it is
    half of that; a busy machine may well pause for some seconds."""
    step_s = run.plan.predicted.seconds if run.plan.predicted else 0.0
    return max(run.settings.deadline_s / 2, STEPS * step_s)


def held_up_by(run: Run, waiting: Collection[str]) -> str | None:
    """The device without which the run shall go on."""
    waits_for = {d: source for d in sorted(waiting) if (source := _asked(run, d)) is not None}
    needed = run.plan.sources if run.recovery.goes_back else ()
    suspects = [d for d in end_of(waits_for) if d in run.working and d not in needed]
    return suspects[0] if suspects else None


def _asked(run: Run, device: str) -> str | None:
    """Whose message a device waits for; empty: nobody's. None: it does not answer."""
    try:
        (welcome,) = run.crew.ask(device, msg.Hello(), ASK_S)
    except WeftError:
        return None
    return welcome.waits_for if isinstance(welcome, msg.Welcome) else None


def end_of(waits_for: Mapping[str, str]) -> list[str]:
    """Where the words lead from the first device that waits: to the one that does not wait, or to those that
    wait for each other. Nothing where nobody waits, or where all wait for the process of the run itself."""
    start = next((d for d, source in waits_for.items() if source in waits_for), None)
    if start is None:
        return []
    seen = [start]
    while (source := waits_for[seen[-1]]) in waits_for:
        if source in seen:
            return seen[seen.index(source) :]
        seen.append(source)
    return [] if source else [seen[-1]]


@dataclass
class Resting:
    """Devices that were slow are left alone for a while, and longer each time."""

    until: dict[str, float] = field(default_factory=dict)
    rests: dict[str, float] = field(default_factory=dict)

    def add(self, device: str) -> None:
        """The device was slow just now."""
        self.rests[device] = 2 * self.rests.get(device, REST_S / 2)
        self.until[device] = time.monotonic() + self.rests[device]

    def rested(self, devices: Collection[str]) -> set[str]:
        """Those that may be taken back."""
        now = time.monotonic()
        return {device for device in devices if self.until.get(device, 0.0) <= now}
