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
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

import zenoh
from safetensors.torch import load as load_safetensors
from torch import Tensor

from weft.errors import InputError, LostDevice, WeftError
from weft.graph.network import Graph, Segment
from weft.graph.sliced_state import place_state, sliced_memory, sliced_state
from weft.plan.plan import Plan
from weft.program.lower import lower
from weft.program.timeline import Span, Timeline
from weft.program.validate import validate
from weft.runtime import messages as msg
from weft.runtime.crew import Crew
from weft.runtime.jobs import Settings, job_of
from weft.runtime.node import state_pieces
from weft.runtime.own import Own
from weft.runtime.roads import involved
from weft.runtime.wire import Header, pack_header, pack_tensors, unpack_tensors

Minibatch = tuple[dict[str, Tensor], Tensor | None]
Feed = Callable[[int], Minibatch]
FEED_BYTES = 64 << 20  # how much may wait at the loading device


@dataclass
class Outcome:
    """What a series of steps gave."""

    losses: dict[int, float] = field(default_factory=dict)
    answers: dict[tuple[int, int], dict[str, Tensor]] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)  # device -> newest minibatch


class Stalled(WeftError):
    """Nothing goes on: somebody cannot be reached, though all are there."""


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
        self._ahead = 0  # minibatches that may be fed before they are used
        self.events: list[dict[str, Any]] = []  # what happened to the fleet on the way
        self._segments: dict[str, tuple[Segment, ...]] = {}
        self.initial = state  # the weights that the run begins with
        self._feed = feed
        self._feeder = self._feeder_of(plan.source)
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

    def _feeder_of(self, device: str) -> zenoh.Publisher:
        feeder: zenoh.Publisher = self.crew.session.declare_publisher(
            f"{self.crew.group}/data/{device}",
            congestion_control=zenoh.CongestionControl.BLOCK,  # never drop a minibatch
        )
        return feeder

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
                outcome.done[event.device] = event.step
                for (
                    step,
                    loss,
                ) in event.losses:  # lanes may end on several devices: their shares add up
                    outcome.losses[step] = outcome.losses.get(step, 0.0) + loss
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
                    outcome.answers[header.step, header.micro] = _copies(header, payload)

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
        """Sends minibatches to the loading device, a bounded number ahead of where it is."""
        if self._feed is None or self.settings.data is not None:
            return fed
        least = 4 + self.program.max_lag
        self._ahead = max(self._ahead, least)
        while fed < min(last, source_at + self._ahead):
            inputs, target = self._feed(fed)
            tensors = {**inputs, **({"target": target} if target is not None else {})}
            specs, payload = pack_tensors(tensors)
            self._ahead = max(least, min(256, FEED_BYTES // max(len(payload), 1)))
            header = Header(self.run, self.plan.version, fed, "feed", 0, 0, "coordinator",
                            self.plan.source, len(payload), specs)  # fmt: skip
            self._feeder.put(payload, attachment=pack_header(header))
            fed += 1
        return fed

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
        whole = None
        if since is not None:  # the newest minibatches are still under way
            whole = _done_everywhere(found)
        return self.as_timeline(found, whole), counts

    def spans(
        self, devices: Iterable[str], since: int | None = None
    ) -> tuple[list[Span], dict[str, msg.Spans]]:
        """What these devices did when, on this machine's clock."""
        replies = self.crew.ask_all(
            {d: msg.GetTimeline(self.run, since) for d in devices}, self.settings.deadline_s
        )
        found: list[Span] = []
        counts: dict[str, msg.Spans] = {}
        for device, (spans,) in replies.items():
            assert isinstance(spans, msg.Spans)
            offset = 0.0 if self.settings.same_clock else self.crew.clock_offset(device)
            found += [_moved(s, offset) for s in spans.spans]
            counts[device] = spans
        return found, counts

    def as_timeline(self, found: list[Span], last: int | None = None) -> Timeline:
        """Spans in order, from 0 on. `last` is the newest minibatch whose end counts."""
        begin = min((s.start for s in found), default=0.0)
        spans = tuple(sorted((_moved(s, -begin) for s in found), key=lambda s: s.start))
        ends: dict[int, float] = {}
        for span in spans:
            if span.what != "transfer" and (last is None or span.step <= last):
                ends[span.step] = max(ends.get(span.step, 0.0), span.end)
        beat = max(2, self.program.beat)
        return Timeline(spans, tuple(ends[s] for s in sorted(ends)), "measured", beat)

    def _tell(self, commands: Mapping[str, msg.Command], seconds: float) -> None:
        """Says something to those who are still there; nobody has to answer."""
        there = {d: c for d, c in commands.items() if d in self.crew.present}
        try:
            self.crew.ask_all(there, seconds)
        except WeftError:
            return


def _copies(header: Header, payload: bytes) -> dict[str, Tensor]:
    """Tensors that belong to the user, who may write into them; the message's memory is read-only."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return {name: tensor.clone() for name, tensor in unpack_tensors(header, payload).items()}


def _done_everywhere(spans: list[Span]) -> int:
    """The newest minibatch that every device with weights has updated them for."""
    newest: dict[str, int] = {}
    for span in spans:
        if span.what == "update":
            newest[span.where] = max(newest.get(span.where, -1), span.step)
    return min(newest.values(), default=-1)


def _moved(span: Span, by: float) -> Span:
    return Span(span.where, span.what, span.start + by, span.end + by, span.step, span.micro,
                span.label, span.bytes)  # fmt: skip
