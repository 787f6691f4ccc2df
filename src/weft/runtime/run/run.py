"""One run of a plan, whatever it trains or answers: prepare, start, watch, collect.

    with Crew(endpoints) as crew, Run(crew, plan, graph, state, settings, feed) as run:
        run.prepare()
        run.steps(0, 100, on_progress)
        weights, memory = run.collect()

Minibatches are asked for in series. A series is extended before it ends, so that the pipeline does not
run empty; only a change of plan ends one. Who may change the plan is the run's `adviser`; what happens when
a device is lost is its `recovery`. Both have a simple default.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence
from typing import Any

from torch import Tensor

from weft.errors import InputError, LostDevice, WeftError
from weft.fleet.faults import During
from weft.graph.network import Graph
from weft.plans.plan import Plan
from weft.program.timeline import Span, Timeline
from weft.runtime.run.advice import Adviser, Change, Nobody, kind_of
from weft.runtime.run.dispatch import Dispatch
from weft.runtime.run.feeder import Feed
from weft.runtime.run.jobs import Settings
from weft.runtime.run.measured import added, done_everywhere, timeline_of
from weft.runtime.run.migrate import change_over
from weft.runtime.run.outcome import Outcome, Stalled
from weft.runtime.run.records.copies import Copies, Copy
from weft.runtime.run.recovery.protocol import Fault, Recovery, Returned
from weft.runtime.run.recovery.stop import Stop
from weft.runtime.run.slow import Resting, held_up_by, limit_s
from weft.runtime.run.workload.protocol import Workload
from weft.runtime.wire import messages as msg
from weft.runtime.wire.crew import Crew
from weft.runtime.wire.frames import Header

Progress = Callable[[Outcome], None]
OnPlan = Callable[[int, Plan, str], None]  # from which minibatch on, the plan, why
MOST_FAULTS = 5  # in a row, without a minibatch between them; a device that is back is none
LISTEN_S = 0.2
LEAD_S = 0.3  # from the word to begin until the first slot: every device must have heard it


class Run(Dispatch):
    """The one loop behind training and answering."""

    def __init__(
        self,
        crew: Crew,
        plan: Plan,
        graph: Graph,
        state: Mapping[str, Tensor],
        settings: Settings,
        feed: Feed | None = None,
        *,
        workload: Workload | None = None,
        recovery: Recovery | None = None,
        adviser: Adviser | None = None,
    ) -> None:
        self.workload = workload or Workload()
        self.recovery: Recovery = recovery or Stop()
        self.adviser: Adviser = adviser or Nobody()
        also = self.adviser.also(plan)
        super().__init__(crew, plan, graph, state, settings, feed, also, self.workload.own)
        self.fleet = self.plan.fleet  # the whole fleet, whoever is there
        self.events: MutableSequence[dict[str, Any]] = []  # what happened on the way
        self.on_plan: OnPlan = lambda step, plan, why: None  # hears of every change of plan
        self.begun_s = time.monotonic()  # events are counted from here
        self.heard: Callable[[msg.ServerProbed | msg.Notice], None] | None = None
        self.on_copy: Callable[[Copy], None] | None = None
        # Seconds without any report until the run may have stalled, and who can tell whether it has.
        self.patience: float | None = None
        self.enough: Callable[[], bool] = lambda: False  # whether the user wants no more
        self.stalled: Callable[[], bool] = lambda: True
        self.copies = Copies(Copy(0, self.initial, {}), self.workload.together)
        self.outcome = Outcome()
        self.phase: During | None = None  # None: it trains or answers
        self.fault: Fault | None = None  # what the next `steps` has to get over first
        self._last = 0  # where the series ends that is under way
        self._change: Change | None = None
        self._began = False
        self.resting = Resting()
        self.advanced = False  # whether a minibatch was done since the last fault
        self._past: list[Span] = []  # of plans that have ended
        self.counts: dict[str, msg.Spans] = {}  # of devices under plans that have ended

    def prepare(self, optimizer_state: Mapping[str, Tensor] | None = None) -> None:
        super().prepare(optimizer_state)
        self.copies.newest = Copy(
            self.copies.newest.step, self.initial, dict(optimizer_state or {})
        )
        self.crew.watch(self._watched(), self.settings.patience_s)

    def _watched(self) -> set[str]:
        """The devices whose silence counts as loss. Without the device that has the data nobody can go on:
        it is waited for until the deadline."""
        if not self.recovery.waits(self.plan):
            return set()
        needed = self.plan.sources if self.recovery.goes_back else ()
        return {*self.fleet.names, *self.devices} - {*needed}

    # --- minibatches ----------------------------------------------------------------------------

    def steps(self, first: int, last: int, on_progress: Progress | None = None) -> Outcome:
        """Minibatches first..last-1, whatever happens on the way, if the recovery knows a way."""
        self.outcome = Outcome(self.workload.losses, done=dict.fromkeys(self.devices, first - 1))
        if not self._began:
            self.copies.newest = Copy(first, self.copies.newest.state, self.copies.newest.memory)
        begins, faults = dict.fromkeys(self.working, first), 0
        fault, self.fault = self.fault, None
        while True:
            try:
                last = self.extended(last)
                if fault is not None:
                    begins = self.recover(fault, last)
                    fault = None
                elif not self._began:
                    self._begin(first)
                    begins = dict.fromkeys(self.working, first)  # other devices may work now
                if min(begins.values(), default=last) < last:
                    begins = self._series(begins, last, on_progress)
                    last = self.extended(last)
                if min(begins.values(), default=last) >= last:
                    return self.outcome
            except (LostDevice, Stalled) as error:
                more = 0 if isinstance(error, Returned) else 1
                fault, faults = error, more if self.advanced else faults + more
                self.advanced = False
                if faults > MOST_FAULTS:
                    raise

    def recover(self, fault: Fault, last: int) -> dict[str, int]:
        """Makes the run ready to go on without a device; returns the next minibatch of each device."""
        with self.in_phase(During.recovery):
            return self.recovery.recover(self, fault, last)

    @contextlib.contextmanager
    def in_phase(self, phase: During) -> Iterator[None]:
        """Others may see what the run is doing."""
        before, self.phase = self.phase, phase
        try:
            yield
        finally:
            self.phase = before

    def extended(self, last: int) -> int:
        """Where the minibatches end. A run that answers is asked for others while it works."""
        return last

    def _begin(self, step: int) -> None:
        """Before the first minibatch: the adviser may want another plan to begin with."""
        self._began = True
        change = self.advice(step, lambda: self.adviser.begin(self, step))
        if change is not None:
            self.change_to(change, step)

    def advice(self, step: int, ask: Callable[[], Change | None]) -> Change | None:
        """What the adviser says. Its error is an event: it never ends a run that goes well."""
        try:
            return ask()
        except (LostDevice, Stalled):
            raise
        except WeftError as error:
            self.note(step, "advice_failed", str(error))
            return None

    def _series(
        self, begins: Mapping[str, int], last: int, on_progress: Progress | None
    ) -> dict[str, int]:
        """One series, to a change of plan or to the end. Returns where each device goes on."""
        first = min(begins.values())
        self._change = None
        self._last = min(first + (self.adviser.every or last), last)
        sources = self.plan.sources
        fed = self.feed_ahead(
            {s: begins.get(s, first) for s in sources}, dict.fromkeys(sources, first), self._last
        )
        self.ask_to_run(begins, self._last)
        waiting = set(begins)
        heard = time.monotonic()
        while waiting or self._unanswered(first):
            self.recovery.look_around(self)
            try:
                event = self.crew.events.get(timeout=LISTEN_S)
            except queue.Empty:
                heard = self._check_silence(heard, waiting)
                continue
            heard = time.monotonic()
            self._take(event, waiting)
            if self.workload.is_enough(self, waiting) or self.enough():
                self.cancel("enough has been done")
                return dict.fromkeys(self.working, last)
            if on_progress:
                on_progress(self.outcome)
            last = self.extended(last)
            if self._look(last):
                waiting = set(self.working)
            at = {s: self.outcome.done[s] + 1 for s in sources}
            fed = self.feed_ahead(at, fed, self._last)
            self.workload.passed(self._first_kept())
        if self._change is not None and self._last < last:
            self.change_to(self._change, self._last)
        return dict.fromkeys(self.working, self._last)

    def _first_kept(self) -> int:
        """The first minibatch that may have to be repeated."""
        if self.recovery.goes_back:
            return self.copies.newest.step
        return min(self.outcome.done.values(), default=-1) + 1

    def _look(self, last: int) -> bool:
        """Asks the adviser shortly before the series ends; True where the series was extended."""
        if self._change is not None or self._last >= last or not self.working:
            return False
        done = min(self.outcome.done[d] for d in self.working) + 1
        if done < self._last - self.adviser.margin(self):
            return False
        self._change = self.advice(done, lambda: self.adviser.look(self, done))
        if self._change is not None:
            return False
        before, self._last = self._last, min(self._last + self.adviser.every, last)
        self.ask_to_run(dict.fromkeys(self.working, before), self._last)
        return True

    def ask_to_run(self, begins: Mapping[str, int], last: int) -> None:
        starts = self._starts(begins)
        timetable = self.settings.timetable
        commands = {
            d: msg.Run(
                self.run_id, n, last, starts[d], timetable.between(n, last) if timetable else ()
            )
            for d, n in begins.items()
        }
        self.crew.ask_all(commands, self.settings.deadline_s)

    def _starts(self, devices: Iterable[str]) -> dict[str, float]:
        """Where a swarm's slots follow the clock: when they begin, by each device's own clock."""
        if self.plan.swarm is None or self.plan.swarm.slot_ms <= 0:
            return dict.fromkeys(devices, 0.0)
        same = self.settings.same_clock
        apart = {d: 0.0 if same else self.crew.clock_offset(d) for d in devices}
        start = time.monotonic() + LEAD_S
        return {d: start - offset for d, offset in apart.items()}

    def _unanswered(self, first: int) -> bool:
        if self.plan.mode != "infer":
            return False
        # Answers from before a recovery lie there too.
        answered = sum(first <= step < self._last for step, _ in self.outcome.answers)
        return answered < (self._last - first) * self.plan.micro_batches

    # --- what devices report --------------------------------------------------------------------

    def _take(self, event: object, waiting: set[str]) -> None:
        self.recovery.hear(self, event, waiting)
        match event:
            case msg.Progress() | msg.Finished() | msg.Failed() if (
                event.version != self.plan.version
            ):  # of a plan that has ended
                if isinstance(event, msg.Progress):
                    self.outcome.add_late(event)
            case msg.Progress():
                self.advanced |= event.step > self.outcome.done.get(event.device, -1)
                self.outcome.add(event)
            case msg.Finished():
                self.outcome.done[event.device] = event.last - 1
                if event.last == self._last:
                    waiting.discard(event.device)
            case msg.Kept():
                self._take_copy(event)
            case msg.Failed():
                kind = InputError if event.bad_input else WeftError
                raise kind(f"{event.device}: {event.error}")
            case msg.ServerProbed() | msg.Notice():
                if self.heard is not None:
                    self.heard(event)
            case LostDevice():
                if event.device in self.devices and event.device not in self.absent:
                    done = min(self.outcome.done.values())
                    raise LostDevice(
                        event.device, f"{event} (after minibatch {done} of run {self.run_id})"
                    )
            case (Header() as header, bytes() as payload):
                # An answer under a plan that has ended may be in other pieces.
                is_answer = header.run == self.run_id and header.kind == "answer"
                if is_answer and header.version == self.plan.version:
                    self.outcome.answer(header, payload)

    def _take_copy(self, kept: msg.Kept) -> None:
        wanted = self.recovery.goes_back or self.on_copy is not None
        if kept.version != self.plan.version or not wanted:
            return
        holders = [d for d in self.working if any(s.state for s in self.segments(d))]
        # A swarm's units that nobody has stay as they were.
        base = dict(self.initial) if self.plan.swarm else {}
        copy = self.copies.take(kept, holders, self.place, base)
        if copy is not None and self.on_copy is not None:
            self.on_copy(copy)

    def returned(self) -> set[str]:
        """Lost devices that are there again, and may be taken back."""
        return self.resting.rested(self.absent & set(self.crew.present))

    def _check_silence(self, heard: float, waiting: set[str]) -> float:
        """Nodes wait `deadline_s` for each other and then say so; past that, the silent one is lost.
        Returns since when to count."""
        silent = time.monotonic() - heard
        if self.patience is not None and silent > self.patience and waiting:
            if self.stalled():
                raise Stalled(f"no minibatch has been done for {silent:.1f} s")
            return time.monotonic()
        if waiting and self.advanced and self.recovery.recovers and silent > limit_s(self):
            slow = held_up_by(self, waiting)
            if slow is not None:
                self.resting.add(slow)
                raise LostDevice(slow, f"{slow} is slow: it sends heartbeats, but others have waited for it "
                                       f"or its messages for {silent:.0f} s")  # fmt: skip
        limit = self.settings.deadline_s * 1.5 + 5
        if silent > limit and not waiting:
            raise WeftError(
                f"all devices are done, but after {silent:.0f} s only {len(self.outcome.answers)} "
                "answers have come; is the link to this machine broken?"
            )
        if silent > limit:
            slowest = min(waiting, key=lambda d: self.outcome.done[d])
            raise LostDevice(
                slowest,
                f"no device has reported for {silent:.0f} s; {slowest} is furthest behind "
                f"(minibatch {self.outcome.done[slowest]}). Is it hanging? --deadline sets the limit",
            )
        return heard

    # --- changes --------------------------------------------------------------------------------

    def change_to(self, change: Change, step: int) -> None:
        """Another plan, between two minibatches: only what changes hands moves."""
        before = self.plan
        self.gather()
        self.adviser.pause(self, change)
        move = change_over(self, change.plan)
        self.follow_plan(step, change.why)
        self.note(step, kind_of(before, change.plan), change.why, **change.what,
                  moved_bytes=move.bytes, seconds=round(move.seconds, 4))  # fmt: skip

    @property
    def series_end(self) -> int:
        """The minibatch before which the series ends that is under way: a new plan begins with it."""
        return self._last

    def follow_plan(self, step: int, why: str = "") -> None:
        """All who watch the run know that another plan runs from minibatch `step` on."""
        self.on_plan(step, self.plan, why)
        self.copies.begin_anew()
        for device in self.devices:
            self.outcome.done.setdefault(device, step - 1)
        self.adviser.follow(self)

    def note(self, step: int, kind: str, why: str = "", /, **what: Any) -> None:
        """An event of the run, for people and for `--json`."""
        told = {"why": why} if why else {}
        at = round(time.monotonic() - self.begun_s, 3)
        self.events.append({"step": step, "kind": kind, **told, "at_s": at, **what})

    # --- what happened --------------------------------------------------------------------------

    def gather(self, without: frozenset[str] = frozenset()) -> None:
        """Takes the spans of the devices before a new plan makes them begin anew."""
        self._past, self.counts = self._all_spans(without)

    def _all_spans(self, without: frozenset[str]) -> tuple[list[Span], dict[str, msg.Spans]]:
        """Of plans that have ended, and of the one that runs. Who does not answer is missing."""
        spans, counts = list(self._past), dict(self.counts)
        there = set(self.crew.present) - without
        asked = [d for d in self._segments if d in there]  # who has a job
        try:
            new_spans, new_counts = self.spans(asked)
        except WeftError as error:  # what has gone took its part of the timeline with it
            self.note(max(self.outcome.done.values(), default=0), "timeline_incomplete", str(error))
            return spans, counts
        for device, reported in new_counts.items():
            known = counts.get(device)
            counts[device] = reported if known is None else added(known, reported)
        return spans + new_spans, counts

    def look_back(self, since: int) -> Timeline:
        """What happened from minibatch `since` on, while the run goes on."""
        spans, _ = self.spans(self.devices, since)
        return timeline_of(spans, self.program.beat, done_everywhere(spans))  # others are under way

    def timeline(self) -> tuple[Timeline, dict[str, msg.Spans]]:
        """What happened in the whole run, under all of its plans, on this machine's clock."""
        spans, counts = self._all_spans(frozenset(self.absent))
        return self.workload.timeline(self, spans), counts
