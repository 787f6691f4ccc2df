"""Runs a swarm's plan: a device that dies does not end the run, its units are cloned to others.

    with SwarmCoordinator(crew, plan, graph, state, settings, feed) as run:
        run.prepare()
        run.steps(0, 1000)
        run.events           # [{"step": 212, "kind": "device_lost", "device": "n3", ...}, ...]

Devices report all that they know every few minibatches (`Swarm.every`). When one is lost, the others stop,
the units that are worth it are cloned from the last record, and training goes on with the next minibatch
under a new version of the plan. Nothing is repeated: a swarm loses more than that to its radio. A device
that falls silent while the others go on is only noted: it takes up again when it is back.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from torch import Tensor

from weft.errors import LostDevice, WeftError
from weft.graph.sliced_state import place_state
from weft.plan.plan import Plan
from weft.plan.stitchnet_recovery import importance
from weft.plan.swarm_plan import spread_of
from weft.plan.swarm_recovery import after_loss
from weft.program.timeline import Span, Timeline
from weft.runtime import messages as msg
from weft.runtime.coordinator import Coordinator
from weft.runtime.outcome import Outcome
from weft.simulate.price import priced

LEAD_S = 0.3  # from the word to begin until the first slot: every device must have heard it
SILENT_S = 1.0  # without a report while others go on, beside the time of two minibatches


class _Fewer(Exception):
    """Devices are gone; what the others have done so far."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome


class SwarmCoordinator(Coordinator):
    """A coordinator of plans whose messages are best effort."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.begun = time.monotonic()  # events are counted from here
        self.counts: Counter[str] = Counter()  # of devices under plans that have ended
        self._kept: dict[str, Tensor] = dict(self.initial)
        self._kept_memory: dict[str, Tensor] = {}
        self._gone: dict[str, float] = {}  # devices that are lost: when that was noticed
        self._heard: dict[str, float] = {}
        self._silent: set[str] = set()
        self._gathered: tuple[dict[str, Tensor], dict[str, Tensor]] | None = None
        self._past: list[Span] = []  # of devices' earlier plans

    def prepare(self, optimizer_state: Mapping[str, Tensor] | None = None) -> None:
        self._kept_memory = dict(optimizer_state or {})
        super().prepare(optimizer_state)

    def steps(
        self, first: int, last: int, on_progress: Callable[[Outcome], None] | None = None
    ) -> Outcome:
        """Minibatches first..last-1 by whoever is there; fewer devices where some are lost."""
        losses: dict[int, float] = {}
        while True:
            self._heard = dict.fromkeys(self.devices, time.monotonic() + LEAD_S)
            self._silent = set()
            try:
                outcome = super().steps(first, last, on_progress)
                return Outcome(losses | outcome.losses, outcome.answers, outcome.done)
            except _Fewer as fewer:
                losses |= fewer.outcome.losses
                first = min(max(fewer.outcome.done.values()) + 1, last)
            while self._gone:
                self._recover(first)
            if first == last:
                return Outcome(losses, {}, dict.fromkeys(self.devices, last - 1))

    def _run_commands(self, first: int, last: int) -> dict[str, msg.Command]:
        assert self.plan.swarm is not None
        clocked = self.plan.swarm.slot_ms > 0
        apart = dict.fromkeys(self.devices, 0.0)
        if clocked and not self.settings.same_clock:
            apart = {d: self.crew.clock_offset(d) for d in self.devices}
        start = time.monotonic() + LEAD_S if clocked else 0.0
        return {d: msg.Run(self.run, first, last, start - apart[d]) for d in self.devices}

    # --- what devices tell ----------------------------------------------------------------------

    def _take(self, event: object, waiting: set[str], outcome: Outcome) -> None:
        match event:
            case msg.Kept():
                self._keep(event)
            case LostDevice():
                if event.device in self.devices and event.device not in self._gone:
                    self._note_lost(event.device, outcome)
                    raise _Fewer(outcome)
            case _:
                super()._take(event, waiting, outcome)
                if isinstance(event, msg.Progress | msg.Finished):
                    self._listen_for_silence(event.device, waiting, outcome)

    def _keep(self, kept: msg.Kept) -> None:
        """The record that units are cloned from; what cannot be read is not taken into it."""
        try:
            state = load_safetensors(kept.data)
            memory = load_safetensors(kept.optimizer) if kept.optimizer else {}
            for segment in self._segments.get(kept.device, ()):
                place_state(segment, state, self._kept)
                place_state(segment, memory, self._kept_memory)
        except (SafetensorError, WeftError):
            self.counts["bad"] += 1

    def _note_lost(self, device: str, outcome: Outcome) -> None:
        now = time.monotonic()
        self._gone[device] = now
        since = max(0.0, now - self._heard.get(device, now))
        self._event(max(outcome.done.values()), "device_lost", device=device,
                    silent_s=round(since, 3))  # fmt: skip

    def _listen_for_silence(self, device: str, waiting: set[str], outcome: Outcome) -> None:
        now = time.monotonic()
        self._heard[device] = now
        step = max(outcome.done.values())
        if device in self._silent:
            self._silent.discard(device)
            self._event(step, "device_back", device=device)
        # Nobody reports more often than once a minibatch.
        patience = SILENT_S + 2 * (self.plan.swarm.step_s if self.plan.swarm else 0.0)
        for other in waiting - self._silent:
            if now - self._heard.get(other, now) > patience:
                self._silent.add(other)
                self._event(step, "device_silent", device=other)

    def _event(self, step: int, kind: str, **more: Any) -> None:
        seconds = round(time.monotonic() - self.begun, 3)
        self.events.append({"step": step, "kind": kind, "time_s": seconds, **more})

    # --- going on without some ------------------------------------------------------------------

    def _recover(self, step: int) -> None:
        """The survivors stop; the lost units are cloned; everybody gets a new job."""
        begin = time.monotonic()
        there = self.crew.present
        lost = [d for d in self.devices if d in self._gone or d not in there]
        for device in lost:
            if device not in self._gone:
                self._gone[device] = begin
                self._event(step, "device_lost", device=device)
        survivors = [d for d in self.devices if d not in lost]
        self._tell({d: msg.Cancel(self.run, "a device is lost") for d in survivors}, 2.0)
        try:
            state, memory = self._gathered = self._gathered or self._gather(survivors)
            plan = after_loss(self.plan, lost, importance(self._incoming(state)))
            before, owned = spread_of(self.plan), spread_of(plan)
            self.adopt(priced(plan))
            idle = [d for d in survivors if d not in self.devices]
            self._tell({d: msg.End(self.run) for d in idle}, 2.0)
            self.initial = state
            self.prepare(memory)
            self._gathered = None
        except LostDevice as error:  # one more, just now
            if error.device == self.plan.source:
                raise
            self._gone[error.device] = time.monotonic()
            self._event(step, "device_lost", device=error.device)
            return
        numbers = [plan.fleet.names.index(d) for d in lost]
        units = sum(int(np.isin(o, numbers).sum()) for o in before.owners)
        cloned = sum(
            int((np.isin(o, numbers) & (new >= 0)).sum())
            for o, new in zip(before.owners, owned.owners, strict=True)
        )
        self._event(step, "recovered", lost=lost, units=units, cloned=cloned,
                    messages=len(plan.swarm.messages) if plan.swarm else 0,
                    seconds=round(time.monotonic() - begin, 3))  # fmt: skip
        present = self.crew.present
        self._gone = {d: begin for d in self.devices if d not in present}

    def _gather(self, survivors: list[str]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """What everybody knows now; of the lost, what was last recorded."""
        wait = self.settings.deadline_s
        replies = self.crew.ask_all({d: msg.GetState(self.run) for d in survivors}, wait)
        state, memory = dict(self._kept), dict(self._kept_memory)
        for device, pieces in replies.items():
            self._place(device, pieces, state, memory)
        found, counts = self.spans(survivors)
        self._past += found
        for spans in counts.values():
            self.counts.update(spans.counts)
        self._kept, self._kept_memory = dict(state), dict(memory)
        return state, memory

    def _incoming(self, state: Mapping[str, Tensor]) -> list[NDArray[np.floating]]:
        """The hidden layers' weights: a unit's row is what comes into it."""
        return [
            next(state[n].numpy() for n in layer.state if state[n].dim() > 1)
            for layer in self.graph.layers[:-1]
        ]

    # --- what it was all like -------------------------------------------------------------------

    def timeline(self, since: int | None = None) -> tuple[Timeline, dict[str, msg.Spans]]:
        """All plans' spans, on this machine's clock, from the first instruction on."""
        found, counts = self.spans(self.devices, since)
        return self.as_timeline([*self._past, *found]), counts


def run_class(plan: Plan) -> type[Coordinator]:
    """Who runs a plan."""
    return SwarmCoordinator if plan.swarm else Coordinator


def total_counts(run: Coordinator, nodes: Mapping[str, msg.Spans]) -> Counter[str]:
    """Messages, packets and losses of all devices over the whole run."""
    total: Counter[str] = Counter(run.counts if isinstance(run, SwarmCoordinator) else {})
    for spans in nodes.values():
        total.update(spans.counts)
    return total
