"""Runs a swarm's plan: a device that dies does not end the run, its units are cloned to others.

    with SwarmCoordinator(crew, plan, graph, state, settings, feed) as run:
        run.prepare()
        run.steps(0, 1000)
        run.events           # [{"step": 212, "kind": "device_lost", "device": "n3", ...}, ...]

Devices report all that they know every few minibatches (`Swarm.every`). When one is lost, the others stop,
the units that are worth it are cloned from the last record, and training goes on with the next minibatch
under a new version of the plan. Nothing is repeated: a swarm loses more than that to its radio. Should it be
the device with the samples and the output layer, another is elected: it gets that layer from the record
and the samples from here. A device that falls silent while the others go on is only noted: it takes up
again when it is back.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from torch import Tensor

from weft.errors import LostDevice, WeftError
from weft.graph.network import Graph
from weft.graph.split.state import place_state
from weft.plans.plan import Plan
from weft.program.timeline import Span, Timeline
from weft.runtime.emulate.roads import involved
from weft.runtime.run.coordinator import Coordinator
from weft.runtime.run.outcome import Outcome
from weft.runtime.wire import messages as msg
from weft.simulate.price import priced
from weft.strategies.stitchnet.importance import Importance, importance
from weft.strategies.stitchnet.recovery import after_loss, moved_units

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
        self._members = set(self.devices)  # who may ever have a part in this run

    def adopt(self, plan: Plan) -> None:
        super().adopt(plan)
        # A device that is heard well may relay without having any units.
        relays = {m.via for m in plan.swarm.messages if m.relayed} if plan.swarm else set()
        self.devices = involved(plan.fleet, (*plan.devices, *sorted(relays - {*plan.devices})))

    def prepare(self, optimizer_state: Mapping[str, Tensor] | None = None) -> None:
        self._kept_memory = dict(optimizer_state or {})
        super().prepare(optimizer_state)

    def steps(
        self, first: int, last: int, on_progress: Callable[[Outcome], None] | None = None
    ) -> Outcome:
        """Minibatches first..last-1 by whoever is there; fewer devices where some are lost."""
        begin = first
        losses: dict[int, float] = {}
        answers: dict[tuple[int, int], dict[str, Tensor]] = {}
        while True:
            self._heard = dict.fromkeys(self.devices, time.monotonic() + LEAD_S)
            self._silent = set()
            try:
                outcome = super().steps(first, last, on_progress)
                return Outcome(losses | outcome.losses, answers | outcome.answers, outcome.done)
            except _Fewer as fewer:
                losses |= fewer.outcome.losses
                answers |= fewer.outcome.answers
                first = min(max(fewer.outcome.done.values()) + 1, last)
                if self.plan.mode == "infer":  # what nobody has answered is asked again
                    asked = {step for step, _ in answers}
                    first = min((s for s in range(begin, last) if s not in asked), default=last)
            while self._gone:
                self._recover(first)
            if first == last:
                return Outcome(losses, answers, dict.fromkeys(self.devices, last - 1))

    def _ask_to_run(self, first: int, last: int) -> None:
        try:
            super()._ask_to_run(first, last)
        except LostDevice as error:  # before it has begun: no other case than in the middle
            self.crew.events.put(error)

    def _run_commands(self, first: int, last: int) -> dict[str, msg.Command]:
        assert self.plan.swarm is not None
        clocked = self.plan.swarm.slot_ms > 0
        apart = dict.fromkeys(self.working, 0.0)
        if clocked and not self.settings.same_clock:
            apart = {d: self.crew.clock_offset(d) for d in self.working}
        start = time.monotonic() + LEAD_S if clocked else 0.0
        return {d: msg.Run(self.run, first, last, start - apart[d]) for d in self.working}

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
        left = [d for d in self.devices if d not in self._gone]
        self._tell({d: msg.Cancel(self.run, "a device is lost") for d in left}, 2.0)
        there = self.crew.present  # only now: whoever died together with it has not answered
        for device in left:
            if device not in there:
                self._gone[device] = begin
                self._event(step, "device_lost", device=device)
        able = [d for d in self._members if d in there and d not in self._gone]
        lost = [d for d in self.plan.fleet.names if d not in able]
        survivors = [d for d in left if d in able]
        before = self.plan
        try:
            state, memory = self._gathered = self._gathered or self._gather(survivors)
            self._go_over_to(after_loss(before, lost, units_weigh(self.graph, state)), step)
            idle = [d for d in survivors if d not in self.devices]
            self._tell({d: msg.End(self.run) for d in idle}, 2.0)
            self.initial = state
            self.prepare(memory)
            self._gathered = None
        except LostDevice as error:  # one more, just now
            self._gone[error.device] = time.monotonic()
            self._event(step, "device_lost", device=error.device)
            return
        units, cloned = moved_units(before, self.plan, lost)
        self._event(step, "recovered", lost=[d for d in before.devices if d in lost], units=units,
                    cloned=cloned, messages=len(self.plan.swarm.messages) if self.plan.swarm else 0,
                    seconds=round(time.monotonic() - begin, 3))  # fmt: skip
        self._members -= self._gone.keys()
        present = self.crew.present
        self._gone = {d: begin for d in self.devices if d not in present}

    def _go_over_to(self, plan: Plan, step: int) -> None:
        """Another plan; where it has another coordinator, the samples go there from now on."""
        before = self.plan.source
        self.adopt(priced(plan))
        if plan.source == before:
            return
        self.feed_from_here()
        self._event(step, "coordinator_elected", device=plan.source, before=before)

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

    # --- what it was all like -------------------------------------------------------------------

    def timeline(self, since: int | None = None) -> tuple[Timeline, dict[str, msg.Spans]]:
        """All plans' spans, on this machine's clock, from the first instruction on."""
        found, counts = self.spans(self.devices, since)
        return self.as_timeline([*self._past, *found]), counts


def units_weigh(graph: Graph, state: Mapping[str, Tensor]) -> Importance:
    """How important each unit of each hidden layer is: its row of the weights is what comes into it."""
    rows = [
        next(state[n].detach().flatten(1).numpy() for n in layer.state if state[n].dim() > 1)
        for layer in graph.layers[:-1]
    ]
    return importance(rows)


def run_class(plan: Plan) -> type[Coordinator]:
    """Who runs a plan."""
    return SwarmCoordinator if plan.swarm else Coordinator


def total_counts(run: Coordinator, nodes: Mapping[str, msg.Spans]) -> Counter[str]:
    """Messages, packets and losses of all devices over the whole run."""
    total: Counter[str] = Counter(run.counts if isinstance(run, SwarmCoordinator) else {})
    for spans in nodes.values():
        total.update(spans.counts)
    return total
