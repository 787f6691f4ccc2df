"""What a run asks of its devices: take this job and these weights, make ready, report, hand your state back.

    dispatch.prepare()                   # jobs, weights and neighbours are there; nothing has been computed
    dispatch.assign(); dispatch.build()  # another plan: devices keep what they need of what they hold
    dispatch.collect()                   # all weights, and the optimizer's memory

There is no loop here: `run.py` decides when to ask.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import TypeVar

import msgspec
from safetensors.torch import save as save_safetensors
from torch import Tensor

from weft.errors import InputError, LostDevice, WeftError
from weft.graph.network import Graph, Segment
from weft.graph.optimizers.versions import limited
from weft.graph.split.state import place_state, sliced_memory, sliced_state
from weft.plans.plan import Plan
from weft.program.lower.lower import lower
from weft.program.timeline import Span
from weft.program.validate import validate
from weft.runtime.emulate.roads import involved
from weft.runtime.run.feeder import Feed, Feeder
from weft.runtime.run.jobs import Settings, job_of
from weft.runtime.run.measured import on_one_clock
from weft.runtime.run.workload.networks import Own
from weft.runtime.wire import messages as msg
from weft.runtime.wire.crew import Crew
from weft.runtime.wire.state_pieces import state_pieces
from weft.stored import tensors_in

State = dict[str, Tensor]
AnyDispatch = TypeVar("AnyDispatch", bound="Dispatch")
CANCEL_S, RELEASE_S = 2.0, 8.0
INTERRUPTED_S = 2.0  # to free the nodes after Ctrl-C or SIGTERM
LEAST_WAIT_S = 10.0  # for a job to be taken, however short the run's deadline is
BUILD_S = 30.0  # to make ready, beside the deadline: PyTorch imports, data is opened
STOP_LOOK_S = 0.1  # between two questions whether a device has stopped
SLOWEST_BYTES_PER_S = 1e5  # a slow link carries weights for as long as that takes


class Dispatch:
    """The devices of one run, and those beside it that may get a part."""

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
        if feed is None and settings.data is None and not own:
            raise InputError("nothing to run on: give data or a feed")
        self.crew, self.graph, self.settings = crew, graph, settings
        self.run_id = secrets.token_hex(6)
        # Devices that have no part in the plan but may get one. They belong to the run, so that they can
        # be probed. One of them may come and go without harm.
        self.also = also
        self.absent: set[str] = set()  # devices of the run that are gone or do not answer
        self.own = own or {}  # devices with networks of their own
        self.initial = state  # the weights that the run begins with
        self._segments: dict[str, tuple[Segment, ...]] = {}
        self.hired: set[str] = set()  # devices that were given a job of this run, now or before
        self._ready = -1  # the version of the plan that all are ready for
        self._feed = feed
        self._feeder: Feeder | None = None  # where devices open the data themselves
        if feed is not None and settings.data is None:
            self._feeder = Feeder(crew, self.run_id, feed)
        self.adopt(plan)

    def adopt(self, plan: Plan) -> None:
        """From now on this plan; WeftError where it cannot run. The devices do not know it yet."""
        program = lower(plan)
        validate(program)
        self.plan, self.program = plan, program
        # A device that is heard well may relay a swarm's messages without having any units.
        relays = {m.via for m in plan.swarm.messages if m.relayed} if plan.swarm else set()
        self.devices = involved(plan.fleet, (*plan.devices, *sorted(relays - {*plan.devices})))
        self.working = tuple(d for d in self.devices if program.code.get(d))

    def feed_from_here(self) -> None:
        """From now on samples come from here, if they are here: the source need not have the data."""
        if self._feed is not None and self._feeder is None:
            self._feeder = Feeder(self.crew, self.run_id, self._feed)
            self.settings = replace(self.settings, data=None)

    @property
    def everyone(self) -> tuple[str, ...]:
        """The devices of the plan, and those beside it that are there."""
        there = self.crew.present
        beside = (d for d in self.also if d in there and d not in self.absent)
        return tuple(dict.fromkeys((*self.devices, *beside)))

    def __enter__(self: AnyDispatch) -> AnyDispatch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Frees every node that still answers; never hides the error that led here."""
        if isinstance(error, Exception):
            self.cancel(str(error))
        # Somebody who ends the command waits for it, and nodes that do not hear it notice that it is gone.
        self.release(RELEASE_S if error is None or isinstance(error, Exception) else INTERRUPTED_S)

    def cancel(self, why: str) -> None:
        """Whoever is at work stops; what has been updated stays as it is."""
        self.tell({d: msg.Cancel(self.run_id, why[:500]) for d in self.everyone}, CANCEL_S)

    def release(self, seconds: float = RELEASE_S) -> None:
        """Every device forgets the run; it may be given a job of it again."""
        for device in self.crew.silent:  # it is free for other runs as soon as it wakes up
            self.crew.leave_word(device, msg.End(self.run_id))
        # Also those that were left out: they would keep their copies for a coordinator that is gone.
        self.tell({d: msg.End(self.run_id) for d in self.hired.union(self.everyone)}, seconds)
        self.crew.disclaim(self.run_id)

    def tell(self, commands: Mapping[str, msg.Command], seconds: float) -> None:
        """Says something to those who are still there; nobody has to answer."""
        there = {d: c for d, c in commands.items() if d in self.crew.present}
        with contextlib.suppress(WeftError):
            self.crew.ask_all(there, seconds)

    # --- jobs and weights -----------------------------------------------------------------------

    def prepare(self, optimizer_state: Mapping[str, Tensor] | None = None) -> None:
        """Every device has its job, its weights and its neighbours; nothing has been computed."""
        self.crew.wait_for(self.devices, self.settings.deadline_s)
        self.crew.claim(self.run_id)
        jobs = self.assign()
        self.crew.listen(self.run_id)  # not before: a refused run must not make a running one deaf
        for device, job in jobs.items():
            weights: State = {}
            memory: State = {}
            for segment in job.segments:
                state = self.own[device].state if device in self.own else self.initial
                weights |= sliced_state(segment, state)
                memory |= sliced_memory(segment, self._memory_of(device, optimizer_state or {}))
            self.ship(device, weights, optimizer=False)
            self.ship(device, memory, optimizer=True)
        self.build()

    def _memory_of(self, device: str, memory: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The optimizer's memory that may be a device's: all of it, or that of its own network."""
        if device not in self.own:
            return memory
        prefix = f"{device}/"
        return {n.removeprefix(prefix): t for n, t in memory.items() if n.startswith(prefix)}

    def assign(self) -> dict[str, msg.Job]:
        """Hands out the jobs of the plan; of what devices hold already, they keep what they need."""
        jobs = {device: self.job(device) for device in self.everyone}
        self.hired |= jobs.keys()
        self.crew.ask_all({d: msg.Assign(job) for d, job in jobs.items()}, self._job_wait_s)
        self._segments = {device: job.segments for device, job in jobs.items()}
        return jobs

    def start_trace(self) -> None:
        """All is ready: from now on the emulated fleet changes as its trace says."""
        self.settings = replace(self.settings, trace_start=time.monotonic())
        self.assign()
        self.build()

    def enlist(self, device: str) -> None:
        """A device beside the plan that has come while the run goes on."""
        job = self.job(device)
        # A device that was silent may still be at work under a plan that has ended.
        self.crew.ask(device, msg.End(self.run_id), self._job_wait_s)
        self.hired.add(device)
        self.crew.ask(device, msg.Assign(job), self._job_wait_s)
        self.crew.ask(device, msg.Prepare(self.run_id), self._job_wait_s)
        self._segments[device] = job.segments

    def build(self) -> None:
        """Every device with a job makes ready to compute, and sees that it reaches its neighbours."""
        wait = self._job_wait_s + BUILD_S
        self.crew.ask_all({d: msg.Prepare(self.run_id) for d in self._segments}, wait)
        self._ready = self.plan.version

    @property
    def is_ready(self) -> bool:
        """Whether all have their weights for the plan. If handing out was cut short, some have none."""
        return self._ready == self.plan.version

    @property
    def _job_wait_s(self) -> float:
        return max(self.settings.deadline_s, LEAST_WAIT_S)

    def job(self, device: str) -> msg.Job:
        own = self.own.get(device)
        job = job_of(
            self.run_id, self.program, self.graph, self.settings, device, self.everyone, own
        )
        loss = self.graph.loss
        if own is not None or job.mode != "train" or device not in self.plan.sources:
            return job
        if loss is None or loss.cut is None or job.data.name is None:
            return job
        state = {name: self.initial[name].contiguous() for name in loss.state}
        data = msgspec.structs.replace(job.data, totals=msg.Totals(loss, save_safetensors(state)))
        return msgspec.structs.replace(job, data=data)

    def segments(self, device: str) -> tuple[Segment, ...]:
        """What a device computes under the plan that was handed out last."""
        return self._segments.get(device, ())

    def ship(self, device: str, tensors: State, optimizer: bool) -> None:
        if optimizer:
            code = self.program.code.get(device, ())
            tensors = limited(tensors, max((i.lag for i in code), default=0))
        for piece in state_pieces(tensors, optimizer):
            wait = self.settings.deadline_s + len(piece.data) / SLOWEST_BYTES_PER_S
            self.crew.ask(device, msg.Weights(self.run_id, piece.data, optimizer), wait)

    # --- what comes home ------------------------------------------------------------------------

    def states(
        self, devices: Iterable[str], names: Iterable[str] | None = None
    ) -> dict[str, tuple[State, State]]:
        """Each device's weights and buffers, and its optimizer's memory; of these names, or all."""
        total = sum(t.nbytes for t in self.initial.values())
        wanted = None if names is None else tuple(sorted(names))
        wait = self.settings.deadline_s + total / SLOWEST_BYTES_PER_S
        asked = {d: msg.GetState(self.run_id, wanted) for d in devices}
        found: dict[str, tuple[State, State]] = {}
        for device, pieces in self.crew.ask_all(asked, wait).items():
            found[device] = ({}, {})
            for piece in pieces:
                assert isinstance(piece, msg.StatePiece)
                found[device][piece.optimizer].update(tensors_in(piece.data))
        return found

    def collect(self) -> tuple[State, State]:
        """(weights and buffers, optimizer memory) of the whole network."""
        # A swarm's units that nobody has stay as they were.
        state: State = dict(self.initial) if self.plan.swarm else {}
        memory: State = {}
        self.place(self.states(self.devices), state, memory)
        return state, memory

    def place(self, states: Mapping[str, tuple[State, State]], state: State, memory: State) -> None:
        """Writes what devices hold into the whole network's weights and memory.

        Copies of a layer have equal weights, but running statistics of their own samples. Those of the
        device with the last layer count: it has seen every sample on its way.
        """
        if self.own:  # of networks of their own nothing is put together here
            for device, (weights, own_memory) in states.items():
                state |= {f"{device}/{name}": tensor for name, tensor in weights.items()}
                memory |= {f"{device}/{name}": tensor for name, tensor in own_memory.items()}
            return
        end = self.plan.shards[-1].device
        for device in sorted(states, key=lambda d: d == end):
            weights, own_memory = states[device]
            for segment in self.segments(device):
                place_state(segment, weights, state)
                place_state(segment, own_memory, memory)

    def spans(
        self, devices: Iterable[str], since: int | None = None, seconds: float | None = None
    ) -> tuple[list[Span], dict[str, msg.Spans]]:
        """What these devices did when, on this machine's clock. `seconds`: how long they may take."""
        replies = self.crew.ask_all(
            {d: msg.GetTimeline(self.run_id, since) for d in devices},
            self.settings.deadline_s if seconds is None else seconds,
        )
        reported: dict[str, msg.Spans] = {}
        for device, (spans,) in replies.items():
            assert isinstance(spans, msg.Spans)
            reported[device] = spans
        same = self.settings.same_clock
        offsets = {d: 0.0 if same else self.crew.clock_offset(d) for d in reported}
        return on_one_clock(reported, offsets), reported

    def where(self, devices: Iterable[str], seconds: float) -> dict[str, msg.At]:
        """How far these devices have come. Who does not answer is left out."""
        found: dict[str, msg.At] = {}
        for device in devices:
            with contextlib.suppress(WeftError):
                (at,) = self.crew.ask(device, msg.Where(self.run_id), seconds)
                assert isinstance(at, msg.At)
                found[device] = at
        return found

    def stopped(self, devices: Iterable[str]) -> dict[str, msg.At]:
        """Where devices stand that were told to stop. Each finishes the instruction that it is at, which may
        take long on a slow device. LostDevice for one that takes more than the deadline."""
        found: dict[str, msg.At] = {}
        for device in devices:
            deadline = time.monotonic() + self.settings.deadline_s
            while device not in found:
                try:
                    (at,) = self.crew.ask(device, msg.Where(self.run_id), self.settings.deadline_s)
                    assert isinstance(at, msg.At)
                    found[device] = at
                except LostDevice:
                    raise
                except WeftError as error:
                    if time.monotonic() > deadline:
                        raise LostDevice(device, f"{device} does not stop: {error}") from None
                    time.sleep(STOP_LOOK_S)
        return found

    def feed_ahead(
        self, at: Mapping[str, int], fed: Mapping[str, int], last: int
    ) -> Mapping[str, int]:
        """Feeds each loading device as far ahead as it may be; returns up to where."""
        if self._feeder is None:
            return fed
        return self._feeder.feed(self.plan, self.program.max_lag, at, fed, last)
