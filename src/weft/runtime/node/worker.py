"""Executes one device's part of a program, minibatch after minibatch.

    worker = Worker(job, state, fabric, samples, report, emit)
    worker.series.begin(0, 100)
    worker.run()

This module has the loop, the pace of an emulated device, and the reports. `interpreter` says what an
instruction does.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from weft.graph.accelerator import PLAIN, Compute
from weft.graph.optimizers.versions import split_versions
from weft.program import instructions as ins
from weft.runtime.node.groups import MEAN
from weft.runtime.node.interpreter import Interpreter
from weft.runtime.node.memory import keep_memory
from weft.runtime.node.probing.machine import free_memory_mb
from weft.runtime.node.samples import FedSamples, Samples
from weft.runtime.node.series import Series
from weft.runtime.node.snapshots import Snapshots
from weft.runtime.node.tensors import Values
from weft.runtime.wire.fabric import Fabric
from weft.runtime.wire.links.shaping import sleep_until
from weft.runtime.wire.mailbox import Cancelled
from weft.runtime.wire.messages import Finished, Job, Progress, Report

REPORT_EVERY_S = 0.1
RECENT = 4096  # losses that a device remembers
FEW = 3  # minibatches after which a device knows how much memory they take
SLICE_S = 0.1  # how soon a device that rests sees that its run is over
Parts = dict[tuple[int, int], tuple[dict[str, Tensor], dict[str, Tensor]]]  # by layers
COMPUTE = (ins.Forward, ins.Loss, ins.Backward, ins.Update)


class Worker(Interpreter):
    """One device in one run."""

    def __init__(
        self,
        job: Job,
        state: Mapping[str, Tensor],
        fabric: Fabric,
        samples: Samples | None,
        report: Callable[[Report], None],
        emit: Callable[[int, int, Values], None],
        compute: Compute = PLAIN,
    ) -> None:
        super().__init__(job, state, fabric, samples, emit, compute)
        self.report = report
        if isinstance(samples, FedSamples):
            samples.on_wait = self.tell
        self.series = Series(max((i.lag for i in job.code), default=0))
        self.done = -1  # the newest minibatch that is completely done here
        self.cancelled: str | None = None  # why to stop, set from another thread
        self.overruns = 0  # instructions that took longer here than on the emulated device
        self._unpaced = math.inf
        self._lasting = _last_of_step(job)
        self._reported = 0.0
        self._unreported: list[tuple[int, float]] = []
        # For a run that resumes this one: its coordinator may die before it has written them down.
        self.recent_losses: deque[tuple[int, float]] = deque(maxlen=RECENT)
        self._few = FEW
        self._chosen: dict[int, bool] = {}  # whether a copy is made after a minibatch in flight
        self._early: dict[int, Parts] = {}  # by minibatch: segments that are ahead of the others
        self.snapshots = Snapshots(report, fabric.name, job.version)
        self._rounds: deque[dict[str, Tensor]] = deque(maxlen=job.tail)  # weights at their ends

    def run(self) -> None:
        """Does the minibatches of the series, with the lags of the program; then reports the end."""
        paces = self.job.pace or (0.0,) * len(self.job.code)
        code = [
            (i, self.do[type(i)], i.lag, isinstance(i, COMPUTE), pace)
            for i, pace in zip(self.job.code, paces, strict=True)
        ]
        while (tick := self.series.tick()) is not None:
            first, last = self.series.first, self.series.last
            self._check_cancelled()  # a program without an instruction must see it too
            for index, (instruction, do, lag, compute, pace) in enumerate(code):
                step = tick - lag
                if not first <= step < last:
                    continue
                self._check_cancelled()  # a device that never waits must see it too
                if self.slots.missed(step, beginning=index == 0):
                    if index == self._lasting:
                        self._leave_out(step, final=step == last - 1)
                    continue
                if not ins.due(instruction, step):
                    pass
                elif compute:
                    self._timed(instruction, do, step, pace)
                else:
                    do(instruction, step)
                if index == self._lasting:
                    self._step_done(step, final=step == last - 1)
        self.report(Finished(self.fabric.name, self.series.last, self.job.version))

    def _check_cancelled(self) -> None:
        if self.cancelled is not None:
            raise Cancelled(self.cancelled)

    def _rest_until(self, moment: float) -> None:
        """Sleeps as a slower device would still compute. A run that ends wakes it up."""
        while moment - time.monotonic() > 2 * SLICE_S:
            time.sleep(SLICE_S)
            self._check_cancelled()
        sleep_until(moment)

    # --- reports ---------------------------------------------------------------------------

    def _timed(
        self, instruction: ins.Instruction, do: Callable[..., None], step: int, pace: float
    ) -> None:
        """Runs a compute instruction. If a slower device is emulated, it ends when that device's time is
        over."""
        start, cpu = time.monotonic(), time.thread_time()
        do(instruction, step)
        self.compute_cpu_s += time.thread_time() - cpu
        slowdown = self.fabric.troubles.slowdown
        if self.job.pace:
            self._keep_pace(start, pace * slowdown, isinstance(instruction, ins.Loss))
        elif slowdown > 1:
            self._rest_until(start + slowdown * (time.monotonic() - start))
        layers = getattr(instruction, "layers", None)
        label = f"{layers[0]}-{layers[1]}" if layers else ""
        what = type(instruction).__name__.lower()
        self.span(what, start, step, getattr(instruction, "micro", 0), label)

    def _keep_pace(self, start: float, pace: float, loss: bool) -> None:
        if loss:  # its time is part of the backward pass that follows
            self._unpaced = start
            return
        begin, self._unpaced = min(start, self._unpaced), math.inf
        if self.job.changes is not None:
            pace *= self.job.changes.slowdown(begin)
        end = begin + pace
        if time.monotonic() > end:
            self.overruns += 1
        self._rest_until(end)

    def _leave_out(self, step: int, final: bool) -> None:
        """Leaves out a minibatch whose time was over."""
        self.fabric.counts["left_out"] += 1
        self.losses.pop(step, None)
        self.held.forget(step)
        self.saved = {key: kept for key, kept in self.saved.items() if key[0] != step}
        self.updates.forget_gradients()
        self._step_done(step, final)

    def _step_done(self, step: int, final: bool) -> None:
        self.done = step
        self._few -= 1
        if self._few == 0:
            keep_memory(free_memory_mb() * 2**20)
        loss = self.losses.pop(step, None)
        if loss is not None and step not in self.void:
            self._unreported.append((step, loss))
            self.recent_losses.append((step, loss))
        self.void.discard(step)
        self.slots.forget(step)
        if keeps := self._is_chosen(step):
            self.tell()  # minibatches before a copy are not repeated: their losses must be known by then
            self.snapshots.take(step, *self._state_after(step), lambda: self.cancelled is not None)
        self._chosen.pop(step, None)
        if self.job.tail > 1 and (step + 1) % self.job.optimizer.round_steps == 0:
            self._rounds.append({n: t.clone() for n, t in self._weights().items()})
        if not keeps and (final or time.monotonic() - self._reported > REPORT_EVERY_S):
            self.tell()

    def _keeps(self, step: int) -> bool:
        """Whether a copy is due after this minibatch. One that a run only goes back to is left out while an
        earlier one is on its way."""
        if any((step + 1) % every == 0 for every in self.job.keep_every):
            return True
        every = self.job.go_back_every
        return every > 0 and (step + 1) % every == 0 and not self.snapshots.busy

    def _is_chosen(self, step: int) -> bool:
        """The same, asked for once a minibatch: parts of a copy may be taken at different times."""
        if step not in self._chosen:
            self._chosen[step] = self._keeps(step)
        return self._chosen[step]

    def _update(self, i: ins.Update, step: int) -> None:
        """A segment that will be updated for later minibatches before this one is done here is copied now."""
        super()._update(i, step)
        if i.lag < self.series.lag and self._is_chosen(step):
            state, memory = (
                {n: t.clone() for n, t in tensors.items()}
                for tensors in self._segment_after(i.layers, step)
            )
            self._early.setdefault(step, {})[i.layers] = state, memory

    def _state_after(self, step: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """All that this device knows after a minibatch that has just been done, for a copy."""
        early = self._early.pop(step, {})
        parts = {at: early.get(at) or self._segment_after(at, step) for at in self.trained}
        weights = {n: t for mine, _ in parts.values() for n, t in mine.items()}
        memory = {n: t for _, mine in parts.values() for n, t in mine.items()}
        return self._with_means(weights), memory

    def _segment_after(
        self, layers: tuple[int, int], step: int
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """A segment's weights, buffers and memory after its part of a minibatch. With several minibatches in
        flight the weights that these have met are part of the memory."""
        state = {n: t.detach() for n, t in self.trained[layers].state.items()}
        memory = self.updates.memory(layers)
        if layers in self._stashes:
            state |= self._stashes[layers].met(step + 1)
            memory |= self._stashes[layers].pending(step)
        return state, memory

    def tell(self) -> None:
        """How far it is, with the losses that nobody knows yet."""
        losses = tuple(self._unreported)
        self.report(Progress(self.fabric.name, self.done, losses, self.job.version))
        self._reported, self._unreported = time.monotonic(), []

    def state(self) -> dict[str, Tensor]:
        parts = [self._segment_after(layers, self.done)[0] for layers in self.trained]
        return self._with_means({n: t for part in parts for n, t in part.items()})

    def _with_means(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        past = self._rounds
        means = {
            MEAN + name: torch.stack([one[name] for one in past]).mean(0)
            for name in (past[0] if past else ())
            if past[0][name].is_floating_point()
        }
        return {**weights, **self.groups.kept, **means}

    def _weights(self) -> dict[str, Tensor]:
        return {n: t.detach() for r in self.trained.values() for n, t in r.state.items()}

    def optimizer_state(self) -> dict[str, Tensor]:
        parts = [self._segment_after(layers, self.done)[1] for layers in self.trained]
        return {n: t for part in parts for n, t in part.items()}

    def load(self, step: int, state: Mapping[str, Tensor], memory: dict[str, Tensor]) -> None:
        """Loads the weights after minibatch `step`, and the optimizer's memory that belongs to them."""
        self.done = self.updated = step
        with torch.no_grad():
            for name, tensor in self._weights().items():
                tensor.copy_(state[name])
        self.updates.forget()
        self.load_optimizer_state(memory)

    def load_optimizer_state(self, saved: dict[str, Tensor]) -> None:
        versions, memory = split_versions(saved)
        self.updates.load(memory)
        for stash in self._stashes.values():
            stash.restore(versions)


def _last_of_step(job: Job) -> int:
    """Index of the instruction after which a minibatch is done here."""
    most = max((i.lag for i in job.code), default=0)
    return max((k for k, i in enumerate(job.code) if i.lag == most), default=-1)
