"""The agent that runs on every device: waits for a job, does its part of it, tells how it went.

    with Node("pi", Endpoints(join=("tcp/127.0.0.1:7447",))) as node:
        node.serve(stop)

It keeps nothing between runs and runs nothing it received: a job is data, its operators are looked up
in a fixed table. What it cannot read it counts, logs and drops.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
import warnings
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import torch
import zenoh
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors
from torch import Tensor

from weft.errors import InputError, WeftError
from weft.program import instructions as ins
from weft.program.timeline import Span
from weft.runtime import keys
from weft.runtime import messages as msg
from weft.runtime.fabric import Fabric
from weft.runtime.holding import Values
from weft.runtime.mailbox import Cancelled
from weft.runtime.probe import probe_compute, probe_link
from weft.runtime.prober import Prober
from weft.runtime.radio import Transmitter
from weft.runtime.samples import open_samples
from weft.runtime.session import Endpoints, open_session
from weft.runtime.wire import BadMessage, Header, pack_header, pack_tensors
from weft.runtime.worker import Worker
from weft.version import __version__

log = logging.getLogger("weft.node")

PIECE_BYTES = 64 << 20  # of state per reply
MOST_IN_FLIGHT = 64  # minibatches that a later span may be behind an earlier one


class Node:
    """One device. `group` keeps fleets apart that share a network."""

    def __init__(self, name: str, endpoints: Endpoints, group: str = "weft") -> None:
        self.name = name
        self.group = group
        self.session = open_session(endpoints)
        self.fabric = Fabric(self.session, group, name)
        self.prober = Prober(self.fabric, self._report, self._notice)
        self.bad_commands = 0
        self._job: msg.Job | None = None
        self._state: dict[str, Tensor] = {}
        self._optimizer_state: dict[str, Tensor] = {}
        self._worker: Worker | None = None
        self._thread: threading.Thread | None = None
        self._cpu_start = 0.0
        self._queries: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._control = self.session.declare_queryable(
            keys.control(group, name), self._queries.put, complete=True
        )
        self._alive = self.session.liveliness().declare_token(keys.alive(group, name))

    def __enter__(self) -> Node:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._end("the node is closing")
        self.prober.close()
        self.fabric.close()
        self.session.close()

    def serve(self, stop: threading.Event) -> None:
        """Carries out commands until `stop` is set."""
        # Tensors that share a message's read-only memory are only read.
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        while not stop.is_set():
            try:
                query = self._queries.get(timeout=0.2)
            except queue.Empty:
                continue
            with query:
                self._answer(query)

    def _answer(self, query: Any) -> None:
        try:
            payload = query.payload
            if payload is None:
                raise BadMessage("it is empty")
            command = msg.unpack_command(payload.to_bytes())
        except BadMessage as error:
            self.bad_commands += 1
            log.warning("%s dropped a malformed command: %s", self.name, error)
            query.reply_err(f"not a command: {error}"[:500])
            return
        try:
            for reply in self._carry_out(command):
                query.reply(query.key_expr, msg.pack(reply))
        except WeftError as error:
            query.reply_err(msg.pack(_failed(self.name, error)))
        except Exception as error:  # an agent outlives a bad job; the asker learns what happened
            log.exception("%s could not carry out %s", self.name, type(command).__name__)
            query.reply_err(msg.pack(_failed(self.name, error)))

    def _carry_out(self, command: msg.Command) -> Iterator[msg.Reply]:
        match command:
            case msg.Hello():
                yield self._welcome()
            case msg.Assign(job=job):
                self._assign(job)
                yield msg.Done()
            case msg.Weights():
                self._take_weights(command)
                yield msg.Done()
            case msg.Prepare():
                self._prepare(self._own_job(command.run))
                yield msg.Done()
            case msg.Run():
                self._start(command)
                yield msg.Done()
            case msg.GetState():
                worker = self._idle_worker(command.run)
                state, memory = worker.state(), worker.optimizer_state()
                if command.names is not None:
                    state, memory = chosen(state, memory, set(command.names))
                yield from state_pieces(state, optimizer=False)
                yield from state_pieces(memory, optimizer=True)
            case msg.GetTimeline(since=None):
                yield self._timeline(self._idle_worker(command.run))
            case msg.GetTimeline():
                self._own_job(command.run)
                if self._worker is None:
                    raise WeftError(f"{self.name} has not begun run {command.run}")
                yield self._timeline(self._worker, command.since)
            case msg.Where():
                worker = self._idle_worker(command.run)
                yield msg.At(worker.done, worker.leg.begun)
            case msg.ProbeCompute():
                yield msg.Probed(gflops=probe_compute())
            case msg.ProbeLink():
                yield probe_link(self.session, self.group, command)
            case msg.TestNetwork():
                self._own_job(command.run)
                self.prober.learn(command)
                yield msg.Done()
            case msg.ProbeServers():
                self._own_job(command.run)
                self.prober.ask(command)
                yield msg.Done()
            case msg.Echo():
                yield msg.Done()
            case msg.Cancel():
                if self._job and self._job.run == command.run:
                    self._cancel(command.why)
                yield msg.Done()
            case msg.End():
                if self._job and self._job.run == command.run:
                    self._end("the run is over")
                yield msg.Done()

    def _welcome(self) -> msg.Welcome:
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return msg.Welcome(
            name=self.name,
            version=__version__,
            cores=os.cpu_count() or 1,
            memory_mb=pages / 2**20,
            clock=time.monotonic(),
            busy=self._job.run if self._job else "",
        )

    def _assign(self, job: msg.Job) -> None:
        if self._job is not None and self._job.run != job.run:
            raise WeftError(f"{self.name} is busy with run {self._job.run}; try again later")
        held: tuple[dict[str, Tensor], dict[str, Tensor]] = ({}, {})
        if self._job is not None:  # the same run goes on under another plan
            self._cancel("a new plan has come")
            needed = {n for segment in job.segments for n in segment.state}
            worker = self._idle_worker(job.run) if self._worker else None
            if worker is not None:
                held = chosen(worker.state(), worker.optimizer_state(), needed)
                held[0].update(worker.groups.kept)
        self._end("a new plan has come")
        self._job = job
        self._state, self._optimizer_state = held
        self.fabric.begin(job.run, job.roads, job.record, job.changes)
        self.prober.begin(job.changes)
        self.fabric.radio = Transmitter(job.radio, self.fabric) if job.radio else None

    def _take_weights(self, command: msg.Weights) -> None:
        job = self._own_job(command.run)
        try:
            tensors = load_safetensors(command.data)
        except SafetensorError as error:
            raise InputError(f"{self.name}: weights that cannot be read: {error}") from None
        if command.optimizer:
            self._optimizer_state |= tensors
            return
        expected = {n: s for segment in job.segments for n, s in segment.state.items()}
        for name, tensor in tensors.items():
            if name not in expected or tuple(tensor.shape) != expected[name].shape:
                raise InputError(f"{self.name}: {name} {tuple(tensor.shape)} belongs to no shard")
            self._state[name] = tensor

    def _prepare(self, job: msg.Job) -> None:
        missing = [n for s in job.segments for n in s.state if n not in self._state]
        if missing:
            raise WeftError(f"{self.name} has no weights for {', '.join(missing[:3])}")
        loads = any(isinstance(i, ins.Load) for i in job.code)
        samples = open_samples(job, self.fabric) if loads else None
        if job.mode == "train" and not job.segments:
            warm_up(job)  # it may get layers later, in the middle of a run
        self._worker = Worker(job, self._state, self.fabric, samples, self._report, self._emit)
        if self._optimizer_state:
            self._worker.load_optimizer_state(self._optimizer_state)
        self.fabric.wait_for_neighbours(job.deadline_s)

    def _start(self, command: msg.Run) -> None:
        job = self._own_job(command.run)
        if self._worker is None:
            raise WeftError(f"{self.name} is not prepared for run {job.run}")
        if self._thread is not None and self._thread.is_alive():
            if self._worker.leg.extend(command.first, command.last):
                return
            self._thread.join(timeout=5.0)  # it has done its last minibatch and is about to end
            if self._thread.is_alive():
                raise WeftError(f"{self.name} is still at work on run {job.run}")
        self._worker.slots.begin(command.start, command.first)
        self._cpu_start = time.process_time()
        self._thread = threading.Thread(
            target=self._work, args=(self._worker, command), name="worker", daemon=True
        )
        self._thread.start()

    def _work(self, worker: Worker, command: msg.Run) -> None:
        torch.set_num_threads(1)
        try:
            worker.run(command.first, command.last)
        except Cancelled:
            worker.tell()
            log.info("%s stopped: the run was cancelled", self.name)
        except Exception as error:
            if not isinstance(error, WeftError):
                log.exception("%s failed", self.name)
            self._report(_failed(self.name, error))

    def _timeline(self, worker: Worker, since: int | None = None) -> msg.Spans:
        counts = {
            **self.fabric.counts, "bad_commands": self.bad_commands, "overruns": worker.overruns
        }  # fmt: skip
        total = time.process_time() - self._cpu_start
        spans = (*worker.spans, *self.fabric.transfers)
        if since is not None:
            spans = (*latest(worker.spans, since), *latest(self.fabric.transfers, since))
        return msg.Spans(spans, counts, worker.compute_cpu_s, total)

    def _own_job(self, run: str) -> msg.Job:
        if self._job is None or self._job.run != run:
            raise WeftError(f"{self.name} has no part in run {run}")
        return self._job

    def _idle_worker(self, run: str) -> Worker:
        self._own_job(run)
        if self._thread is not None:
            self._thread.join(timeout=5.0)
            if self._thread.is_alive():
                raise WeftError(f"{self.name} is still at work on run {run}")
        if self._worker is None:
            raise WeftError(f"{self.name} has not begun run {run}")
        return self._worker

    def _cancel(self, why: str) -> None:
        if self._worker is not None:
            self._worker.cancelled = why
        self.fabric.mailbox.cancel(why)

    def _end(self, why: str) -> None:
        self._cancel(why)
        if self._thread is not None:
            self._thread.join(timeout=5.0)
        self.fabric.end()
        self._thread = self._worker = self._job = None
        self._state, self._optimizer_state = {}, {}

    def _report(self, report: msg.Report) -> None:
        job = self._job
        if job is not None:
            self.session.put(
                keys.report(self.group, job.run),
                msg.pack(report),
                congestion_control=zenoh.CongestionControl.BLOCK,
            )

    def _notice(self, notice: msg.Notice) -> None:
        self.session.put(keys.notice(self.group, self.name), msg.pack(notice))

    def _emit(self, step: int, micro: int, values: Values) -> None:
        job = self._job
        if job is not None:
            specs, payload = pack_tensors(values)
            header = Header(job.run, job.version, step, "answer", job.layers, micro,
                            self.name, "", len(payload), specs)  # fmt: skip
            self.session.put(
                keys.answer(self.group, job.run),
                payload,
                attachment=pack_header(header),
                congestion_control=zenoh.CongestionControl.BLOCK,
            )


def _failed(name: str, error: Exception) -> msg.Failed:
    text = str(error) or type(error).__name__
    if not isinstance(error, WeftError):
        text = f"{type(error).__name__}: {text}"
    return msg.Failed(name, text[:2000], bad_input=isinstance(error, InputError))


def warm_up(job: msg.Job) -> None:
    """One step of next to nothing: what PyTorch imports at the first optimizer takes seconds."""
    weight = torch.zeros(1, requires_grad=True)
    optimizer = job.optimizer.build([weight])
    torch.autograd.backward([(weight * 1.0).sum()])
    optimizer.step()


def chosen(
    state: dict[str, Tensor], memory: dict[str, Tensor], names: set[str]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights and buffers of these names, and the optimizer's memory of them."""
    return (
        {n: t for n, t in state.items() if n in names},
        {k: t for k, t in memory.items() if k.rpartition("/")[0] in names},
    )


def latest(spans: list[Span], since: int) -> list[Span]:
    """The spans of minibatches from `since` on; they lie at the end, only roughly in order."""
    found: list[Span] = []
    for span in reversed(spans):
        if span.step < since - MOST_IN_FLIGHT:
            break
        if span.step >= since:
            found.append(span)
    return found[::-1]


def state_pieces(tensors: dict[str, Tensor], optimizer: bool) -> Iterator[msg.StatePiece]:
    """State in pieces that fit into messages."""
    piece: dict[str, Tensor] = {}
    size = 0
    for name, tensor in tensors.items():
        piece[name] = tensor.contiguous()
        size += tensor.nbytes
        if size >= PIECE_BYTES:
            yield msg.StatePiece(save_safetensors(piece), optimizer)
            piece, size = {}, 0
    if piece:
        yield msg.StatePiece(save_safetensors(piece), optimizer)
