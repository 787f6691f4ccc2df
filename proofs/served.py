"""The cells of a strategy that only answers: the same features, shown by a service and not by training.

A service on the subject's emulated fleet answers requests one after the other while the thing happens. Every
answer must be the whole network's.
"""

from __future__ import annotations

import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import weft
from proofs.case import check
from proofs.subjects import BATCH, pairs, subject
from weft.fleet.trace import Moment, Trace
from weft.loom.running import fleet_of_this_run
from weft.plans.protocols import Feature
from weft.runtime.emulate.local import LocalFleet
from weft.runtime.run.serve import Served

SAME = 1e-5
SLOWER = 20.0  # an answer takes a device a millisecond; on a busy machine soon two or three
WAIT_S = 60.0
LOOK_S = 12.0  # for a service to see that a device is slower, and to plan again


@dataclass
class Seen:
    """A service and what its answers were like."""

    net: Served
    local: LocalFleet
    model: torch.nn.Module
    asked: int = 0
    off: float = 0.0

    def ask(self, count: int = 1) -> None:
        """Some requests, each with samples of its own."""
        for _ in range(count):
            x: Tensor = pairs(self.asked)[0]
            with torch.no_grad():
                self.off = max(self.off, float((self.net(x) - self.model(x)).abs().max()))
            self.asked += 1
        check(self.off <= SAME, f"an answer is {self.off:.2g} from the whole network's")

    def ask_until(self, kind: str) -> None:
        """Asks until the service has noted such an event."""
        end = time.monotonic() + WAIT_S
        while kind not in self.kinds:
            check(time.monotonic() < end, f"no {kind} after {WAIT_S:g} s: {self.kinds}")
            self.ask()

    @property
    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.net.events]

    def someone(self) -> str:
        """A device that has a part and does not load the samples."""
        plan = self.net.plan
        return [device for device in plan.devices if device != plan.source][-1]

    def said(self) -> str:
        failed = [event for event in self.net.events if event["kind"] == "advice_failed"]
        check(not failed, f"advice failed: {failed}")
        return f"{self.asked} answers off by {self.off:.1e}; {self.kinds}"


@contextmanager
def served(name: str, **asked: Any) -> Iterator[Seen]:
    it = subject(name)
    model = it.model().eval()
    with weft.serve(model, pairs(0)[0], it.fleet, strategy=name, batch=BATCH, options=it.options,
                    local=True, **asked) as net:  # fmt: skip
        yield Seen(net, fleet_of_this_run(), model)


def dies(name: str) -> str:
    with served(name) as seen:
        seen.ask(5)
        device = seen.someone()
        seen.local.kill(device)
        seen.ask_until("recovered")
        seen.ask(5)
        check(device not in seen.net.plan.devices, f"{device} still has a part")
        return f"{device} killed; {seen.said()}"


def silent(name: str) -> str:
    with served(name) as seen:
        seen.ask(5)
        device = seen.someone()
        pid = seen.local.processes[device].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            seen.ask_until("recovered")
        finally:
            os.kill(pid, signal.SIGCONT)
        seen.ask_until("device_joined")
        seen.ask(5)
        return f"{device} stopped; {seen.said()}"


def comes_back(name: str) -> str:
    with served(name) as seen:
        seen.ask(5)
        device = seen.someone()
        seen.local.kill(device)
        seen.ask_until("recovered")
        seen.local.restart(device)
        seen.ask_until("device_joined")
        seen.ask(5)
        check(device in seen.net.plan.fleet.names, f"{device} is not in the plan's fleet")
        return f"{device} back; {seen.said()}"


def adapt(name: str) -> str:
    """A device of the plan becomes much slower: the strategy is asked again."""
    slow = subject(name).fleet.names[1]
    with served(name, trace=Trace((Moment(1.0, device=slow, slowdown=6.0),))) as seen:
        end = time.monotonic() + LOOK_S
        before = seen.net.plan
        while time.monotonic() < end and seen.net.plan.version == before.version:
            seen.ask()
        seen.ask(5)
        return f"{slow} slower; {seen.said()}"


def trace(name: str) -> str:
    """All devices are slower from the first moment on, and so they compute for longer."""
    moments = tuple(Moment(0.0, device=d, slowdown=SLOWER) for d in subject(name).fleet.names)
    times = []
    for change in (None, Trace(moments)):
        with served(name, trace=change, adapt=False) as seen:
            seen.ask(12)
            times.append(_computing_s(seen.net))
    ratio = times[1] / times[0]
    check(ratio > SLOWER / 4, f"computing takes {ratio:.2f} times as long, not {SLOWER}")
    return f"computing takes {ratio:.1f} times as long; {seen.said()}"


def _computing_s(net: Served) -> float:
    """The seconds that devices computed for a request: the one that was disturbed least."""
    seconds: dict[int, float] = defaultdict(float)
    for span in net.timeline()[0].spans:
        if span.what == "forward":
            seconds[span.step] += span.end - span.start
    return min(seconds.values())


RUNS: dict[Feature, Callable[[str], str]] = {
    "adapt": adapt,
    "trace": trace,
    "a device dies": dies,
    "falls silent": silent,
    "comes back": comes_back,
}
