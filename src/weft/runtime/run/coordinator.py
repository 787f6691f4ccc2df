"""Runs a plan on a crew: hands out jobs and weights, starts, watches, collects.

    with Crew(endpoints) as crew, Coordinator(crew, plan, graph, state, settings) as run:
        run.prepare()
        run.steps(0, 100, on_progress)
        weights = run.collect()

A run is a series of `steps` calls; between two of them nothing is in flight.
"""

from __future__ import annotations

import queue
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any

from safetensors.torch import load as load_safetensors
from torch import Tensor

from weft.errors import InputError, LostDevice, WeftError
from weft.graph.network import Graph, Segment
from weft.graph.split.state import place_state, sliced_memory, sliced_state
from weft.plans.plan import Plan
from weft.program.lower.lower import lower
from weft.program.timeline import Span, Timeline
from weft.program.validate import validate
from weft.runtime.emulate.roads import involved
from weft.runtime.run.crew import Crew
from weft.runtime.run.feeder import Feed, Feeder
from weft.runtime.run.jobs import Settings, job_of
from weft.runtime.run.measured import done_everywhere, on_one_clock, timeline_of
from weft.runtime.run.networks import Own
from weft.runtime.run.outcome import Outcome, Stalled
from weft.runtime.wire import messages as msg
from weft.runtime.wire.frames import Header
from weft.runtime.wire.state_pieces import state_pieces


class Coordinator:
    def __init__(
        self,
        crew: Crew,
        plan: Plan,
        graph: Graph,
        state: Mapping[str, Tensor],
        settings: Settings,
        feed: Feed | None = None,
        also: tuple[str, ...] = (),
        own: Mapping[str, Own] | None = None,
    ) -> None:
        self.crew = crew
        self.graph = graph
        self.settings = settings
        self.run = secrets.token_hex(6)
        # Devices that have no part in the plan but may get one: they belong to the run, so that they
        # can be probed. One of them may come and go without harm.
        self.also = also
        self.heard: Callable[[msg.ServerProbed | msg.Notice], None] | None = None
        # Seconds without any report until the run may have stalled, and who can tell whether it has.
        self.patience: float | None = None
        self.stalled: Callable[[], bool] = lambda: True
        self.own = own or {}  # devices with networks of their own
        self.adopt(plan)
        self._last = 0
        self.events: list[dict[str, Any]] = []  # what happened to the fleet on the way
        self._segments: dict[str, tuple[Segment, ...]] = {}
        self.initial = state  # the weights that the run begins with
        self._feed = feed
        self._feeder: Feeder | None = None  # where devices open the data themselves
        if feed is not None and settings.data is None:
            self._feeder = Feeder(crew.session, crew.group, self.run, feed)
        if feed is None and settings.data is None:
            raise InputError("nothing to run on: give data or a feed")

    def adopt(self, plan: Plan) -> None:
        """From now on this plan; WeftError where it cannot run. The devices do not know it yet."""
        program = lower(plan)
        validate(program)
        self.plan, self.program = plan, program
        self.devices = involved(plan.fleet, plan.devices)
        self.working = tuple(d for d in self.devices if program.code.get(d))
        self._end = plan.shards[-1].device

    def feed_from_here(self) -> None:
        """From now on samples come from here, if they are here: the source need not have the data."""
        if self._feed is not None and self._feeder is None:
            self._feeder = Feeder(self.crew.session, self.crew.group, self.run, self._feed)
            self.settings = replace(self.settings, data=None)

    @property
    def everyone(self) -> tuple[str, ...]:
        """The devices of the plan, and those beside it that are there."""
        there = self.crew.present
        return tuple(dict.fromkeys((*self.devices, *(d for d in self.also if d in there))))

    def __enter__(self) -> Coordinator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Frees every node that still answers; never hides the error that led here."""
        if error is not None:
            self.cancel(str(error))
        self.release()

    def cancel(self, why: str) -> None:
        """Whoever is at work stops; what has been updated stays as it is."""
        self._tell({d: msg.Cancel(self.run, why[:500]) for d in self.everyone}, 2.0)

    def release(self) -> None:
        """Every device forgets the run; it may be given a job of it again."""
        self._tell({d: msg.End(self.run) for d in self.everyone}, 8.0)

    def prepare(self, optimizer_state: Mapping[str, Tensor] | None = None) -> None:
        """Every device has its job, its weights and its neighbours; nothing has been computed."""
        self.crew.wait_for(self.devices, self.settings.deadline_s)
        jobs = self.assign()
        self.crew.listen(self.run)  # not before: a refused run must not make a running one deaf
        for device, job in jobs.items():
            here: dict[str, Tensor] = {}
            for segment in job.segments:
                state = self.own[device].state if device in self.own else self.initial
                here |= sliced_state(segment, state)
            self.ship(device, here, optimizer=False)
            if optimizer_state:
                memory: dict[str, Tensor] = {}
                for segment in job.segments:
                    memory |= sliced_memory(segment, optimizer_state)
                self.ship(device, memory, optimizer=True)
        self.build()

    def assign(self) -> dict[str, msg.Job]:
        """Hands out the jobs of the plan; of what devices hold already, they keep what they need."""
        jobs = {device: self.job(device) for device in self.everyone}
        wait = max(self.settings.deadline_s, 10.0)
        self.crew.ask_all({d: msg.Assign(job) for d, job in jobs.items()}, wait)
        self._segments = {device: job.segments for device, job in jobs.items()}
        return jobs

    def start_trace(self) -> None:
        """All is ready: from now on the emulated fleet changes as its trace says."""
        self.settings = replace(self.settings, trace_start=time.monotonic())
        self.assign()
        self.build()

    def enlist(self, device: str) -> None:
        """A device beside the plan that has come while the run goes on."""
        wait = max(self.settings.deadline_s, 10.0)
        self.crew.ask(device, msg.Assign(self.job(device)), wait)
        self.crew.ask(device, msg.Prepare(self.run), wait)

    def build(self) -> None:
        """Every device makes ready to compute, and sees that it reaches its neighbours."""
        wait = max(self.settings.deadline_s, 10.0) + 30
        self.crew.ask_all({d: msg.Prepare(self.run) for d in self.everyone}, wait)

    def job(self, device: str) -> msg.Job:
        own = self.own.get(device)
        return job_of(self.run, self.program, self.graph, self.settings, device, self.everyone, own)

    def ship(self, device: str, tensors: dict[str, Tensor], optimizer: bool) -> None:
        for piece in state_pieces(tensors, optimizer):
            # a slow link carries a piece of weights for as long as it takes, within reason
            wait = self.settings.deadline_s + len(piece.data) / 1e5
            self.crew.ask(device, msg.Weights(self.run, piece.data, optimizer), wait)

    def steps(
        self, first: int, last: int, on_progress: Callable[[Outcome], None] | None = None
    ) -> Outcome:
        """Minibatches first..last-1 on all devices. Ends within the deadline when a device fails.
        `on_progress` may `extend` the series: the pipeline then does not run empty."""
        outcome = Outcome(done=dict.fromkeys(self.devices, first - 1))
        self._last = last
        fed = self._feed_ahead(first, first, last)
        self._ask_to_run(first, last)
        waiting = set(self.working)
        heard = time.monotonic()
        while waiting or (
            self.plan.mode == "infer" and len(outcome.answers) < self._expected(first, last)
        ):
            try:
                event = self.crew.events.get(timeout=0.2)
            except queue.Empty:
                heard = self._check_silence(heard, waiting, outcome)
                continue
            heard = time.monotonic()
            self._take(event, waiting, outcome)
            fed = self._feed_ahead(outcome.done[self.plan.source] + 1, fed, self._last)
            if on_progress:
                before = self._last
                on_progress(outcome)
                if self._last > before:
                    waiting = set(self.working)
                    fed = self._feed_ahead(outcome.done[self.plan.source] + 1, fed, self._last)
        return outcome

    def extend(self, last: int) -> None:
        """Goes on to `last` where the series would have ended: to be called from `on_progress`."""
        first, self._last = self._last, last
        self._ask_to_run(first, last)

    def _ask_to_run(self, first: int, last: int) -> None:
        self.crew.ask_all(self._run_commands(first, last), self.settings.deadline_s)

    def _run_commands(self, first: int, last: int) -> dict[str, msg.Command]:
        return {d: msg.Run(self.run, first, last) for d in self.working}

    def _expected(self, first: int, last: int) -> int:
        return (last - first) * self.plan.micro_batches

    def _take(self, event: object, waiting: set[str], outcome: Outcome) -> None:
        match event:
            case msg.Progress():
                outcome.add(event)
            case msg.Finished():
                outcome.done[event.device] = event.last - 1
                if event.last == self._last:
                    waiting.discard(event.device)
            case msg.Failed():
                kind = InputError if event.bad_input else WeftError
                raise kind(f"{event.device}: {event.error}")
            case msg.ServerProbed() | msg.Notice():
                if self.heard is not None:
                    self.heard(event)
            case LostDevice():
                if event.device in self.devices:
                    done = min(outcome.done.values())
                    raise LostDevice(
                        event.device, f"{event} (after minibatch {done} of run {self.run})"
                    )
            case (Header() as header, bytes() as payload):
                if header.run == self.run and header.kind == "answer":
                    outcome.answer(header, payload)

    def _check_silence(self, heard: float, waiting: set[str], outcome: Outcome) -> float:
        """Nodes wait `deadline_s` for each other and then say so; past that, the silent one is lost.
        Returns since when to count."""
        silent = time.monotonic() - heard
        if self.patience is not None and silent > self.patience and waiting:
            if self.stalled():
                raise Stalled(f"no minibatch has been done for {silent:.1f} s")
            return time.monotonic()
        limit = self.settings.deadline_s * 1.5 + 5
        if silent > limit and not waiting:
            raise WeftError(
                f"all devices are done, but after {silent:.0f} s only {len(outcome.answers)} answers "
                "have come; is the link to this machine broken?"
            )
        if silent > limit:
            slowest = min(waiting, key=lambda d: outcome.done[d])
            raise LostDevice(
                slowest,
                f"no device has reported for {silent:.0f} s; {slowest} is furthest behind "
                f"(minibatch {outcome.done[slowest]}). Is it hanging? --deadline sets the limit",
            )
        return heard

    def _feed_ahead(self, source_at: int, fed: int, last: int) -> int:
        if self._feeder is None:
            return fed
        return self._feeder.feed(self.plan, self.program.max_lag, source_at, fed, last)

    def collect(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """(weights and buffers, optimizer memory) of all devices."""
        state: dict[str, Tensor] = dict(self.initial) if self.plan.swarm else {}
        optimizer: dict[str, Tensor] = {}
        wait = self.settings.deadline_s + sum(t.nbytes for t in self.initial.values()) / 1e5
        replies = self.crew.ask_all({d: msg.GetState(self.run) for d in self.devices}, wait)
        # Copies of a layer have equal weights, but running statistics of their own samples: those
        # of the device with the last layer count, which has seen every sample on its way.
        for device, pieces in sorted(replies.items(), key=lambda item: item[0] == self._end):
            self._place(device, pieces, state, optimizer)
        return state, optimizer

    def _place(
        self,
        device: str,
        pieces: Iterable[msg.Reply],
        state: dict[str, Tensor],
        optimizer: dict[str, Tensor],
    ) -> None:
        """Writes what a device has sent of its state into the whole network's."""
        for piece in pieces:
            assert isinstance(piece, msg.StatePiece)
            tensors = load_safetensors(piece.data)
            for segment in self._segments[device]:
                place_state(segment, tensors, optimizer if piece.optimizer else state)

    def timeline(self, since: int | None = None) -> tuple[Timeline, dict[str, msg.Spans]]:
        """What happened, on this machine's clock, from the first instruction on; or from minibatch
        `since` on, while the run goes on."""
        found, counts = self.spans(self.devices, since)
        # while it goes on, the newest minibatches are under way
        return self.as_timeline(found, None if since is None else done_everywhere(found)), counts

    def spans(
        self, devices: Iterable[str], since: int | None = None
    ) -> tuple[list[Span], dict[str, msg.Spans]]:
        """What these devices did when, on this machine's clock."""
        replies = self.crew.ask_all(
            {d: msg.GetTimeline(self.run, since) for d in devices}, self.settings.deadline_s
        )
        told: dict[str, msg.Spans] = {}
        for device, (spans,) in replies.items():
            assert isinstance(spans, msg.Spans)
            told[device] = spans
        same = self.settings.same_clock
        offsets = {d: 0.0 if same else self.crew.clock_offset(d) for d in told}
        return on_one_clock(told, offsets), told

    def as_timeline(self, found: list[Span], last: int | None = None) -> Timeline:
        return timeline_of(found, self.program.beat, last)

    def _tell(self, commands: Mapping[str, msg.Command], seconds: float) -> None:
        """Says something to those who are still there; nobody has to answer."""
        there = {d: c for d, c in commands.items() if d in self.crew.present}
        try:
            self.crew.ask_all(there, seconds)
        except WeftError:
            return
