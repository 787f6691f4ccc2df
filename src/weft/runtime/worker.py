"""Executes one device's part of a program, minibatch after minibatch.

    worker = Worker(job, state, fabric, samples, report)
    worker.run(0, 100)

This is the whole interpreter of the instruction set: one method per instruction, in program order.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from weft.errors import WeftError
from weft.graph.execute import Runner
from weft.graph.optimizer import load_state_tensors, state_tensors
from weft.program import instructions as ins
from weft.program.timeline import Span
from weft.runtime.codec import TensorSpec
from weft.runtime.fabric import Fabric
from weft.runtime.holding import Holding, Values
from weft.runtime.leg import Leg
from weft.runtime.mailbox import Cancelled, nothing_missing
from weft.runtime.messages import Finished, Job, Progress, Report
from weft.runtime.samples import Samples
from weft.runtime.shaping import sleep_until
from weft.runtime.stash import stashes
from weft.runtime.wire import BadMessage, Header, pack_tensors, unpack_tensors

REPORT_EVERY_S = 0.1
RIDING = "@also"  # the name of what rides in another tensor's message; no value can be called so
MAX_SPANS = 200_000


class Worker:
    """One device in one run: its weights, its optimizer, and what it is holding at the moment."""

    def __init__(
        self,
        job: Job,
        state: Mapping[str, Tensor],
        fabric: Fabric,
        samples: Samples | None,
        report: Callable[[Report], None],
        emit: Callable[[int, int, Values], None],
    ) -> None:
        self.job = job
        self.fabric = fabric
        self.samples = samples
        self.report = report
        self.emit = emit
        self.training = job.mode == "train"
        self.runners = {(s.first, s.last): Runner(s, state) for s in job.segments}
        self.optimizers = {
            layers: job.optimizer.build(runner.parameters)
            for layers, runner in self.runners.items()
            if self.training and runner.parameters
        }
        self._stashes = stashes(self.runners, job.code) if self.training else {}
        self.leg = Leg(max((i.lag for i in job.code), default=0))
        self.done = -1  # the newest minibatch that is all done here
        self.cancelled: str | None = None  # why to stop, set from another thread
        self.spans: list[Span] = []
        self.compute_cpu_s = 0.0
        self.overruns = 0  # instructions that took longer here than on the emulated device
        self._unpaced = math.inf
        self._holding = Holding(job)
        self._saved: dict[tuple[int, tuple[int, int], int], tuple[Values, Values]] = {}
        self._sums: dict[tuple[int, int], tuple[tuple[TensorSpec, ...], bytes]] = {}  # to be sent
        self._losses: dict[int, float] = {}
        self._lasting = _last_of_step(job)
        self._reported = 0.0
        self._unreported: list[tuple[int, float]] = []
        self._do: dict[type, Callable[..., None]] = {
            ins.Load: self._load, ins.Recv: self._recv, ins.Send: self._send,
            ins.Forward: self._forward, ins.Loss: self._loss, ins.Backward: self._backward,
            ins.Reduce: self._reduce, ins.Update: self._update, ins.Emit: self._emit,
        }  # fmt: skip

    def run(self, first: int, last: int) -> None:
        """Minibatches first..last-1, with the lags of the program; then says so."""
        paces = self.job.pace or (0.0,) * len(self.job.code)
        code = [
            (i, self._do[type(i)], i.lag, isinstance(i, COMPUTE), pace)
            for i, pace in zip(self.job.code, paces, strict=True)
        ]
        self.leg.begin(first, last)
        while (tick := self.leg.tick()) is not None:
            first, last = self.leg.first, self.leg.last
            for index, (instruction, do, lag, compute, pace) in enumerate(code):
                step = tick - lag
                if not first <= step < last:
                    continue
                if self.cancelled is not None:  # also seen by a device that waits for nobody
                    raise Cancelled(self.cancelled)
                if compute:
                    self._timed(instruction, do, step, pace)
                else:
                    do(instruction, step)
                if index == self._lasting:
                    self._step_done(step, final=step == last - 1)
        self.report(Finished(self.fabric.name, last))

    # --- one method per instruction -------------------------------------------------------------

    def _load(self, i: ins.Load, step: int) -> None:
        assert self.samples is not None
        start, cpu = time.monotonic(), time.thread_time()
        inputs, target = self.samples.minibatch(step)
        a, b = i.samples
        self._holding.hold(step, "act", 0, i.micro, {n: x[a:b] for n, x in inputs.items()})
        if target is not None:
            self._holding.hold(step, "target", 0, i.micro, {"target": target[a:b]})
        self.compute_cpu_s += time.thread_time() - cpu
        self._span("load", start, step, i.micro, f"{a}-{b}")

    def _recv(self, i: ins.Recv, step: int) -> None:
        t = i.tensor
        start = time.monotonic()
        letter = self.fabric.mailbox.take(
            (self.job.version, step, t.kind, t.at, t.micro),
            self.job.deadline_s,
            lambda: f"{t} of minibatch {step} from {i.source}",
        )
        try:
            tensors = unpack_tensors(letter.header, letter.payload)
        except BadMessage as error:
            raise WeftError(
                f"{t} of minibatch {step} from {i.source} is damaged: {error}"
            ) from None
        if i.also is not None:
            labels = tensors.pop(RIDING, None)
            if labels is None:
                raise WeftError(f"{t} of minibatch {step} from {i.source} came without {i.also}")
            self._holding.hold(step, i.also.kind, i.also.at, i.also.micro, {i.also.kind: labels})
        self._holding.hold(step, t.kind, t.at, t.micro, tensors)
        self._span("wait", start, step, t.micro, str(t))

    def _send(self, i: ins.Send, step: int) -> None:
        t = i.tensor
        if t.kind == "wsum":
            specs, payload = self._sums[t.at, t.last]
        elif t.kind == "wgrad":
            specs, payload = pack_tensors(self._gradients((t.at, t.last)), i.codec)
        elif t.kind == "follow":
            specs, payload = pack_tensors(self._followed((t.at, t.last)), i.codec)
        else:
            tensors = self._holding.use(step, t.kind, t.at, t.micro)
            if i.also is not None:
                (labels,) = self._holding.use(step, i.also.kind, i.also.at, i.also.micro).values()
                tensors = {**tensors, RIDING: labels}
            specs, payload = pack_tensors(tensors, i.codec)
        self.fabric.send(self._header(t, i.dest, step, specs, len(payload)), payload)

    def _header(
        self, t: ins.Tensor, dest: str, step: int, specs: tuple[TensorSpec, ...], size: int
    ) -> Header:
        return Header(self.job.run, self.job.version, step, t.kind, t.at, t.micro,
                      self.fabric.name, dest, size, specs)  # fmt: skip

    def _forward(self, i: ins.Forward, step: int) -> None:
        runner = self.runners[i.layers]
        held = self._holding.use(step, "act", i.layers[0], i.micro)
        problem = nothing_missing(
            dict(held),
            {n: _shape(v.shape, v.batch_dim, i.samples) for n, v in runner.segment.inputs.items()},
        )
        if problem:
            raise WeftError(f"input of layers {i.layers} in minibatch {step}: {problem}")
        inputs = {n: held[n].detach() for n in runner.segment.inputs}
        if self.training and i.layers[0] > 0:
            for tensor in inputs.values():
                tensor.requires_grad_(tensor.is_floating_point())
        seed = (self.job.seed * 1_000_003 + step) * 1_009 + i.micro
        stash = self._stashes.get(i.layers)
        if stash is not None:
            runner = stash.at(step)
        with torch.set_grad_enabled(self.training):
            outputs = runner.forward(inputs, training=self.training, seed=seed)
        if self.training:
            self._saved[step, i.layers, i.micro] = (inputs, outputs)
        self._holding.hold(step, "act", i.layers[1] + 1, i.micro, outputs)

    def _loss(self, i: ins.Loss, step: int) -> None:
        runner = next(r for r in self.runners.values() if r.segment.loss is not None)
        record = runner.segment.loss
        assert record is not None
        output = self._holding.use(step, "act", self.job.layers, i.micro)[record.inputs[0]]
        target = self._holding.use(step, "target", 0, i.micro)["target"]
        leaf = output.detach().requires_grad_()
        share = i.samples / self.job.batch if record.reduction == "mean" else 1.0
        with torch.enable_grad():
            loss = runner.loss(leaf, target, i.samples) * share
        (gradient,) = torch.autograd.grad(loss, leaf)
        self._losses[step] = self._losses.get(step, 0.0) + loss.item()
        self._holding.hold(step, "grad", self.job.layers, i.micro, {record.inputs[0]: gradient})

    def _backward(self, i: ins.Backward, step: int) -> None:
        inputs, outputs = self._saved.pop((step, i.layers, i.micro))
        gradients = self._holding.use(step, "grad", i.layers[1] + 1, i.micro)
        known = [n for n in gradients if n in outputs and outputs[n].requires_grad]
        torch.autograd.backward([outputs[n] for n in known], [gradients[n] for n in known])
        if i.layers in self._stashes:
            self._stashes[i.layers].settle(step)
        if i.layers[0] > 0:
            self._holding.hold(step, "grad", i.layers[0], i.micro, {
                n: t.grad if t.grad is not None else torch.zeros_like(t)
                for n, t in inputs.items() if t.requires_grad
            })  # fmt: skip

    def _reduce(self, i: ins.Reduce, step: int) -> None:
        follows = i.replace and any(part.kind == "follow" for part in i.parts)
        own = self._followed(i.layers) if follows else self._gradients(i.layers)
        for part in i.parts:
            theirs = self._holding.use(step, part.kind, part.at, part.micro)
            if theirs.keys() != own.keys():
                odd = sorted(theirs.keys() ^ own.keys())[:3]
                raise WeftError(f"{part} of minibatch {step}: {', '.join(odd)} do not match")
            for name, gradient in own.items():
                if gradient.shape != theirs[name].shape:
                    raise WeftError(f"{part} of minibatch {step}: {name} has another shape")
                if i.replace:
                    gradient.copy_(theirs[name])
                else:
                    gradient.add_(theirs[name])
        if not i.replace:
            self._pack_sum(i, step, own)

    def _pack_sum(self, i: ins.Reduce, step: int, own: dict[str, Tensor]) -> None:
        """Coded once, for all who get it and for ourselves: coding it again gives other values."""
        specs, payload = self._sums[i.layers] = pack_tensors(own, i.codec)
        if i.codec != "none":
            total = ins.Tensor("wsum", i.layers[0], last=i.layers[1])
            to_ourselves = self._header(total, self.fabric.name, step, specs, len(payload))
            for name, rounded in unpack_tensors(to_ourselves, payload).items():
                own[name].copy_(rounded)

    def _gradients(self, layers: tuple[int, int]) -> dict[str, Tensor]:
        """The gradients of a segment's weights; zeros where nothing reached one."""
        found = {}
        runner = self.runners[layers]
        for name, info in runner.segment.state.items():
            if info.trainable:
                parameter = runner.state[name]
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                found[name] = parameter.grad
        return found

    def _followed(self, layers: tuple[int, int]) -> dict[str, Tensor]:
        """What a device that stands by needs: gradients, and buffers, which follow from none."""
        runner = self.runners[layers]
        buffers = {n: runner.state[n] for n, s in runner.segment.state.items() if not s.trainable}
        return {**self._gradients(layers), **buffers}

    def _update(self, i: ins.Update, step: int) -> None:
        optimizer = self.optimizers.get(i.layers)
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self._sums.pop(i.layers, None)
        self._holding.hold(step, "done", 0, 0, {})

    def _emit(self, i: ins.Emit, step: int) -> None:
        start = time.monotonic()
        self.emit(step, i.micro, self._holding.use(step, "act", i.at, i.micro))
        self._span("emit", start, step, i.micro, "")

    # --- what is told ---------------------------------------------------------------------------

    def _timed(
        self, instruction: ins.Instruction, do: Callable[..., None], step: int, pace: float
    ) -> None:
        """A compute instruction; where a slower device is emulated, it ends when its time is over."""
        start, cpu = time.monotonic(), time.thread_time()
        do(instruction, step)
        self.compute_cpu_s += time.thread_time() - cpu
        if self.job.pace:
            self._keep_pace(start, pace)
        layers = getattr(instruction, "layers", None)
        label = f"{layers[0]}-{layers[1]}" if layers else ""
        what = type(instruction).__name__.lower()
        self._span(what, start, step, getattr(instruction, "micro", 0), label)

    def _keep_pace(self, start: float, pace: float) -> None:
        if pace == 0.0:  # the loss: its time is part of the backward pass that follows
            self._unpaced = start
            return
        begin, self._unpaced = min(start, self._unpaced), math.inf
        if self.job.changes is not None:
            pace *= self.job.changes.slowdown(begin)
        end = begin + pace
        if time.monotonic() > end:
            self.overruns += 1
        sleep_until(end)

    def _span(self, what: str, start: float, step: int, micro: int, label: str) -> None:
        if self.job.record and len(self.spans) < MAX_SPANS:
            self.spans.append(
                Span(self.fabric.name, what, start, time.monotonic(), step, micro, label)
            )

    def _step_done(self, step: int, final: bool) -> None:
        self.done = step
        if step in self._losses:
            self._unreported.append((step, self._losses.pop(step)))
        if final or time.monotonic() - self._reported > REPORT_EVERY_S:
            self.tell()

    def tell(self) -> None:
        """How far it is, with the losses that nobody knows yet."""
        self.report(Progress(self.fabric.name, self.done, tuple(self._unreported)))
        self._reported, self._unreported = time.monotonic(), []

    def state(self) -> dict[str, Tensor]:
        return {n: t.detach() for r in self.runners.values() for n, t in r.state.items()}

    def optimizer_state(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for layers, optimizer in self.optimizers.items():
            found |= state_tensors(optimizer, self.runners[layers].state)
        return found

    def load_optimizer_state(self, saved: dict[str, Tensor]) -> None:
        for layers, optimizer in self.optimizers.items():
            load_state_tensors(optimizer, self.runners[layers].state, saved)


COMPUTE = (ins.Forward, ins.Loss, ins.Backward, ins.Update)


def _shape(shape: tuple[int, ...], batch_dim: int | None, samples: int) -> tuple[int, ...]:
    if batch_dim is None:
        return shape
    return (*shape[:batch_dim], samples, *shape[batch_dim + 1 :])


def _last_of_step(job: Job) -> int:
    """Index of the instruction after which a minibatch is done here."""
    most = max((i.lag for i in job.code), default=0)
    return max((k for k, i in enumerate(job.code) if i.lag == most), default=-1)
