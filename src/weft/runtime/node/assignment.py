"""A node's part in one run: its job, the weights it holds, and the thread that does the work.

assignment = Assignment("pi", fabric, prober, report, emit)
assignment.assign(command)             # again for the same run: a new plan; weights that it needs are kept
assignment.take_weights(command)
assignment.prepare(job.run)
assignment.start(command)              # returns at once; the result is reported
assignment.end("the run is over")      # nothing of it is kept
"""

from __future__ import annotations

import hmac
import logging
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import msgspec
import torch
from safetensors.torch import save as save_safetensors
from torch import Tensor

from weft.errors import InputError, WeftError
from weft.graph.accelerator import PLAIN, Compute
from weft.graph.precision import check_bf16
from weft.program import instructions as ins
from weft.program.timeline import Span
from weft.runtime.node.groups import KEPT
from weft.runtime.node.memory import give_back
from weft.runtime.node.orders import Forgotten, Order, failed
from weft.runtime.node.probing.prober import Prober
from weft.runtime.node.samples import open_samples
from weft.runtime.node.tensors import Values
from weft.runtime.node.worker import Worker
from weft.runtime.wire import messages as msg
from weft.runtime.wire.fabric import Fabric
from weft.runtime.wire.job_limits import check_job
from weft.runtime.wire.ledger import SPANS
from weft.runtime.wire.limits import MAX_COPIES, Seldom, check_memory, check_run, job_bytes
from weft.runtime.wire.mailbox import Cancelled
from weft.runtime.wire.radio import Transmitter
from weft.runtime.wire.seal import Replays, RunKeys, digest_of
from weft.runtime.wire.span_ring import SpanRing
from weft.runtime.wire.state_pieces import chosen, state_answer, state_pieces
from weft.stored import tensors_in

log = logging.getLogger("weft.node")

KEEP_S = 60.0  # that a device keeps its copies of a run whose coordinator is gone
FORMAT_BYTES = 16 << 20  # of names and shapes, beside the weights
SETTLE_S = 1.0  # that a timeline waits for messages that are just being sent
MAX_LEFT = 4  # threads of ended runs that are still in the middle of an instruction
MOST_IN_FLIGHT = 64  # minibatches that a later span may be behind an earlier one


class Assignment:
    """The part of one run that a device has: its job, its weights, its worker."""

    def __init__(
        self,
        device: str,
        fabric: Fabric,
        prober: Prober,
        report: Callable[[msg.Report, str], None],  # of a run
        emit: Callable[[msg.Job, int, int, Values], None],
        compute: Compute = PLAIN,
    ) -> None:
        self.device, self.compute = device, compute
        self.fabric = fabric
        self.prober = prober
        self.job: msg.Job | None = None
        self.keys = RunKeys()  # of the run, or of the last one: its messages stay replays
        self._replays = self._coming = Replays()
        self._report, self._emit = report, emit
        self._log = Seldom(log)  # on an open node anybody may give runs that fail
        self._state: dict[str, Tensor] = {}
        self._optimizer_state: dict[str, Tensor] = {}
        self._worker: Worker | None = None
        self._thread: threading.Thread | None = None
        self._switch = threading.Lock()  # while the run under way changes, or is cancelled
        self._left: list[threading.Thread] = []  # of runs that have ended
        self._cpu_start = 0.0
        self.orphaned_s: float | None = None  # since when the run has no coordinator
        self.given_s = 0.0  # when the run's first job came

    def check(self, order: Order) -> None:
        """Raises Forged for an order of the run under way that does not carry its key. A new run brings its
        own."""
        if self.job is not None and order.run == self.job.run:
            order.check(self.keys, self._replays)
        elif isinstance(order.command, msg.Assign) and order.command.keys.whole:
            if order.command.keys != self.keys:
                self._coming = Replays()
            order.check(order.command.keys, self._coming)

    @property
    def done(self) -> int | None:
        """Minibatches of the run that this device has done; None without a run."""
        worker = self._worker
        return None if worker is None else worker.done

    def assign(self, command: msg.Assign) -> None:
        job = command.job
        self._check_free(job)
        if self.job is not None and self.job.run == job.run and command.keys != self.keys:
            raise InputError(f"{self.device}: other keys for the run under way")
        if not command.keys.whole:
            raise InputError(f"{self.device}: a job without the run's keys")
        check_job(job)
        for segment in job.segments:
            check_bf16(segment.nodes, self.device)
        self.fabric.check(job.roads)
        if self.job is not None and self.job.run != job.run:
            self.end("the run is resumed")
            self.orphaned_s = None
        held = self._taken_over(job)
        self.end("a new plan has come")
        if command.keys != self.keys:
            self.keys, self._replays = command.keys, self._coming
        self.job = job
        self._state, self._optimizer_state = held
        self.fabric.begin(
            job.run, job.roads, job.record, job.changes, command.keys.tensors, SPANS[job.mode]
        )
        self.prober.begin(job.changes)
        self.fabric.radio = Transmitter(job.radio, self.fabric) if job.radio else None

    def _taken_over(self, job: msg.Job) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Weights and optimizer memory that this device has, and that the job needs too."""
        if self.job is None:
            return {}, {}
        if job.mode == "infer":  # weights do not change while it answers
            return self._still_needed(job), {}
        self.cancel("a new plan has come")  # the same run goes on under another plan
        needed = {n for segment in job.segments for n in segment.state}
        if self._worker is None:  # the change before this one was cut short
            kept = {n for n in self._state if n.startswith(KEPT)}
            return chosen(self._state, self._optimizer_state, needed | kept)
        worker = self.idle_worker(job.run)
        held = chosen(worker.state(), worker.optimizer_state(), needed)
        held[0].update(worker.groups.kept)
        return held

    def _check_free(self, job: msg.Job) -> None:
        """Raises an error for a run that must wait until this device is free."""
        self._left = [thread for thread in self._left if thread.is_alive()]
        if len(self._left) >= MAX_LEFT:
            raise WeftError(
                f"{self.device} still computes for {len(self._left)} runs that have ended; try again later"
            )
        if self.job is None:
            self.given_s = time.monotonic()
        if self.job is None or self.job.run == job.run:
            return
        if self.orphaned_s is None:
            raise WeftError(f"{self.device} is busy with another run; try again later")
        before = self.job
        if not (job.heir and (job.lineage, job.heir) == (before.lineage, before.heir)):
            left = max(0.0, self.orphaned_s + KEEP_S - time.monotonic())
            raise WeftError(
                f"{self.device} keeps its copy of a run whose coordinator is gone, for {left:.0f} s more; "
                "`weft train --resume` takes that run up; try again later"
            )
        self.given_s = time.monotonic()

    def orphan(self, run: str) -> None:
        """The coordinator is gone: stop, and keep the copies for a run that resumes this one."""
        with self._switch:
            if self.orphaned_s is None and self.has(run):
                self.orphaned_s = time.monotonic()
                self._wake("the coordinator of the run is gone")

    def reclaim(self) -> None:
        """The coordinator is there again."""
        self.orphaned_s = None

    def copies(self, command: msg.GetCopies) -> Iterator[msg.Kept]:
        """The answer to `GetCopies`, in numbered pieces."""
        for number, piece in enumerate(self._copies(command)):
            yield msgspec.structs.replace(piece, number=number)

    def _copies(self, command: msg.GetCopies) -> Iterator[msg.Kept]:
        """The copies of a run whose coordinator is gone, for the run that resumes it: it shows the secret of
        the run's folder, because the lineage alone can be overheard."""
        job = self.job
        asked = digest_of(command.secret)
        known = job is not None and job.lineage == command.lineage
        if (
            job is not None
            and known
            and self.orphaned_s is not None
            and hmac.compare_digest(job.heir, asked)
        ):
            worker = self.idle_worker(job.run)
            for step, state, memory in worker.snapshots.all():
                losses = tuple((n, loss) for n, loss in worker.recent_losses if n <= step)
                head = msg.Kept(self.device, job.version, step, save_safetensors({}))
                yield msgspec.structs.replace(head, segments=job.segments, losses=losses)
                for tensors, optimizer in ((state, False), (memory, True)):
                    for piece in state_pieces(tensors, optimizer):
                        yield msgspec.structs.replace(head, data=piece.data, optimizer=optimizer)
        yield msg.Kept(self.device, 0, -1, save_safetensors({}), last=True)

    def _still_needed(self, job: msg.Job) -> dict[str, Tensor]:
        """Of the weights that this device holds, those that another job needs in the same shape."""
        expected = {n: s.shape for segment in job.segments for n, s in segment.state.items()}
        return {n: t for n, t in self._state.items() if expected.get(n) == tuple(t.shape)}

    def check_weights(self, size: int, optimizer: bool = True) -> None:
        """Raises InputError for more bytes than belong to the job."""
        room = FORMAT_BYTES
        if self.job is not None:
            room += job_bytes(self.job) * (MAX_COPIES if optimizer else 1)
        if size > room:
            raise InputError(
                f"{self.device}: {size} bytes of weights; this job takes {room} at most"
            )

    def take_weights(self, command: msg.Weights) -> None:
        job = self.own_job(command.run)
        self.check_weights(len(command.data), command.optimizer)
        try:
            tensors = tensors_in(command.data)
        except InputError as error:
            raise InputError(f"{self.device}: weights that cannot be decoded: {error}") from None
        expected = {n: s for segment in job.segments for n, s in segment.state.items()}
        if command.optimizer:
            in_flight = max((i.lag for i in job.code), default=0)
            check_memory(tensors, expected, set(self._optimizer_state), in_flight)
            self._optimizer_state |= tensors
            return
        for name, tensor in tensors.items():
            if name not in expected or tuple(tensor.shape) != expected[name].shape:
                raise InputError(f"{self.device}: {name} {tuple(tensor.shape)} belongs to no shard")
            self._state[name] = tensor

    def prepare(self, run: str) -> None:
        job = self.own_job(run)
        missing = [n for s in job.segments for n in s.state if n not in self._state]
        if missing:
            raise WeftError(f"{self.device} has no weights for {', '.join(missing[:3])}")
        loads = any(isinstance(i, ins.Load) for i in job.code)
        samples = open_samples(job, self.fabric) if loads else None
        if job.mode == "train" and not job.segments:
            warm_up(job)  # it may get layers later, during a run
        self._worker = Worker(
            job, self._state, self.fabric, samples, lambda report: self._report(report, run),
            partial(self._emit, job), self.compute,
        )  # fmt: skip
        if self._optimizer_state:
            self._worker.load_optimizer_state(self._optimizer_state)
        self.fabric.wait_for_neighbours(job.deadline_s)

    def start(self, command: msg.Run) -> None:
        job = self.own_job(command.run)
        check_run(command, time.monotonic())
        if self._worker is None:
            raise WeftError(f"{self.device} is not prepared for run {job.run}")
        self._worker.updates.rates.take(command.schedule, command.first)
        if self._thread is not None and self._thread.is_alive():
            if self._worker.series.extend(command.first, command.last):
                return
            self._thread.join(timeout=5.0)  # it has done its last minibatch and is ending
            if self._thread.is_alive():
                raise WeftError(f"{self.device} is still at work on run {job.run}")
        self._worker.slots.begin(command.start, command.first)
        self._worker.series.begin(command.first, command.last)
        self._cpu_start = time.process_time()
        self._thread = threading.Thread(
            target=self._work, args=(self._worker,), name="worker", daemon=True
        )
        self._thread.start()

    def _work(self, worker: Worker) -> None:
        torch.set_num_threads(self.compute.threads)
        try:
            worker.run()
        except Cancelled:
            worker.tell()
            log.info("%s stopped: the run was cancelled", self.device)
        except Exception as error:
            if not isinstance(error, WeftError):
                self._log.exception("%s failed", self.device)
            worker.report(failed(self.device, error, worker.job.version))

    def go_back(self, command: msg.GoBack) -> None:
        """Restores the weights and the optimizer's memory of an earlier minibatch."""
        worker = self.idle_worker(command.run)
        copy = worker.snapshots.at(command.step)
        if copy is None:
            raise WeftError(f"{self.device} keeps no copy of minibatch {command.step}")
        worker.load(command.step, *copy)

    def state(self, command: msg.GetState) -> Iterator[msg.StatePiece]:
        self.own_job(command.run)
        if self._worker is None:  # a change of plan was cut short: what it held before it
            state, memory = self._state, self._optimizer_state
        else:
            worker = self.idle_worker(command.run)
            state, memory = worker.state(), worker.optimizer_state()
        if command.names is not None:
            state, memory = chosen(state, memory, set(command.names))
        yield from state_answer(state, memory)

    def where(self, run: str) -> msg.At:
        self.own_job(run)
        if (
            self._worker is None
        ):  # a change of plan was cut short: nothing is done under the new one
            return msg.At(-1, -1, -1)
        worker = self.idle_worker(run)
        return msg.At(worker.done, worker.series.begun, worker.updated)

    def timeline(self, command: msg.GetTimeline, counts: dict[str, int]) -> msg.Spans:
        """The timeline of the device. With `since` (a minibatch) it can be read while the work goes on."""
        since = command.since
        worker = self.idle_worker(command.run) if since is None else self._begun(command.run)
        counts = {**self.fabric.counts, **counts, "overruns": worker.overruns}
        total = time.process_time() - self._cpu_start
        if since is None:
            self.fabric.settle(SETTLE_S)
            spans = (*worker.spans, *self.fabric.transfers)
        else:
            spans = (*latest(worker.spans, since), *latest(self.fabric.transfers, since))
        return msg.Spans(spans, counts, worker.compute_cpu_s, total)

    def has(self, run: str) -> bool:
        return self.job is not None and self.job.run == run

    def own_job(self, run: str) -> msg.Job:
        if self.job is None or self.job.run != run:
            raise Forgotten(f"{self.device} has no part in run {run}")
        return self.job

    def _begun(self, run: str) -> Worker:
        self.own_job(run)
        if self._worker is None:
            raise WeftError(f"{self.device} has not begun run {run}")
        return self._worker

    def idle_worker(self, run: str) -> Worker:
        self.own_job(run)
        if self._thread is not None:
            self._thread.join(timeout=5.0)
            if self._thread.is_alive():
                raise WeftError(f"{self.device} is still at work on run {run}")
        return self._begun(run)

    def cancel(self, why: str, run: str | None = None) -> None:
        """Wakes up whoever works or waits. With `run`: only if this run is still the one under way. Another
        thread may just be ending it, and the next one must not be cancelled in its place."""
        with self._switch:
            if run is None or self.has(run):
                self._wake(why)

    def _wake(self, why: str) -> None:
        if self._worker is not None:
            self._worker.cancelled = why
        self.fabric.mailbox.cancel(why)

    def forget(self, why: str) -> None:
        """The run is over: nothing of it is kept."""
        self.end(why)
        self.prober.end()

    def end(self, why: str) -> None:
        self.cancel(why)
        if self._thread is not None:
            self._thread.join(timeout=5.0)
            if self._thread.is_alive():
                self._left.append(self._thread)
        if self._worker is not None:
            self._worker.snapshots.close()
        self.fabric.end()
        with self._switch:
            self._thread = self._worker = self.job = self.orphaned_s = None
        self._state, self._optimizer_state = {}, {}
        give_back()


def warm_up(job: msg.Job) -> None:
    """A tiny training step. PyTorch's imports at the first optimizer take seconds, and are done here in
    advance."""
    weight = torch.zeros(1, 1, requires_grad=True)
    optimizer = job.optimizer.build([weight])
    torch.autograd.backward([(weight * 1.0).sum()])
    optimizer.step()


def latest(spans: SpanRing, since: int) -> list[Span]:
    """The spans of minibatches from `since` on. They are at the end of the list, only roughly in order."""
    found: list[Span] = []
    for span in reversed(spans):
        if span.step < since - MOST_IN_FLIGHT:
            break
        if span.step >= since:
            found.append(span)
    return found[::-1]
