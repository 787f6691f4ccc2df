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
from safetensors.torch import save as save_safetensors
from torch import Tensor

from weft.errors import WeftError
from weft.graph.execute import Runner
from weft.graph.optimizer import load_state_tensors, state_tensors
from weft.program import instructions as ins
from weft.program.timeline import Span
from weft.runtime.codec import TensorSpec
from weft.runtime.fabric import Fabric
from weft.runtime.groups import Groups
from weft.runtime.holding import Holding, Values
from weft.runtime.leg import Leg
from weft.runtime.mailbox import Cancelled, Name, nothing_missing
from weft.runtime.messages import Finished, Job, Kept, Progress, Report
from weft.runtime.samples import Samples
from weft.runtime.shaping import sleep_until
from weft.runtime.slots import Slots
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
        self.runners = {(s.first, s.last): Runner(s, state) for s in job.segments if not s.part}
        self.turns = {((s.first, s.last), s.part): Runner(s, state) for s in job.segments if s.part}
        # What is trained here, by layers: all of them, or this device's part of each.
        self._trained = self.runners
        if self.training:
            self._trained = {**self.runners, **{at: r for (at, _), r in self.turns.items()}}
        self.optimizers = {
            layers: job.optimizer.build(runner.parameters)
            for layers, runner in self._trained.items()
            if self.training and runner.parameters
        }
        self._stashes = stashes(self.runners, job.code) if self.training else {}
        self.leg = Leg(max((i.lag for i in job.code), default=0))
        self.done = -1  # the newest minibatch that is all done here
        self.slots = Slots(job.radio, fabric.mailbox, fabric.counts, job.deadline_s)
        self._void: set[int] = set()  # minibatches that somebody has lost a part of
        self.groups = Groups(job.groups, state)
        for i in job.code:
            if isinstance(i, ins.Recv) and i.late == "newest":
                fabric.mailbox.keep_newest(self._name(i.tensor))
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
            ins.Reduce: self._reduce, ins.Update: self._update, ins.Stitch: self._stitch,
            ins.Emit: self._emit, ins.Share: self._share, ins.Blend: self._blend,
            ins.Keep: self._keep, ins.Miss: self._miss,
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
        if i.late in ("zero", "own", "skip"):
            self._recv_or_not(i, step, start)
            return
        if i.late == "newest":
            letter = self.fabric.mailbox.newest(self._name(t))
            if letter is None:
                return
        else:
            letter = self.fabric.mailbox.take(
                (self.job.version, step, t.kind, t.at, t.micro, t.part),
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
        if t.kind == "whole" and not tensors[t.kind].item():
            self._void.add(step)
        self._holding.hold(step, t.kind, t.at, t.micro, tensors, t.part)
        self._span("wait", start, step, t.micro, str(t))

    def _recv_or_not(self, i: ins.Recv, step: int, start: float) -> None:
        """A message that may be lost: the slot's end, or the word that it is lost, ends the wait."""
        t, own = i.tensor, i.own
        mine = self._holding.use(step, own.kind, own.at, own.micro, own.part) if own else None
        key = (self.job.version, step, t.kind, t.at, t.micro, t.part)
        letter = self.slots.take(key, i, step)
        if letter is None and i.late == "skip":
            self._void.add(step)
        values = self.slots.values(letter, i, mine)
        self._holding.hold(step, t.kind, t.at, t.micro, values, t.part)
        self._span("wait", start, step, t.micro, str(t))

    def _miss(self, i: ins.Miss, step: int) -> None:
        t, own = i.tensor, i.own
        mine = self._holding.use(step, own.kind, own.at, own.micro, own.part) if own else None
        if i.late == "skip":
            self._void.add(step)
        self._holding.hold(step, t.kind, t.at, t.micro, self.slots.values(None, i, mine), t.part)

    def _send(self, i: ins.Send, step: int) -> None:
        t = i.tensor
        if t.kind == "wsum":
            specs, payload = self._sums[t.at, t.last]
        elif t.kind == "whole":
            specs, payload = pack_tensors({t.kind: torch.tensor(float(step not in self._void))})
        elif t.kind == "wgrad":
            specs, payload = pack_tensors(self._gradients((t.at, t.last)), i.codec)
        elif t.kind == "follow":
            specs, payload = pack_tensors(self._followed((t.at, t.last)), i.codec)
        else:
            tensors = self._holding.use(step, t.kind, t.at, t.micro, t.part)
            if i.also is not None:
                (labels,) = self._holding.use(step, i.also.kind, i.also.at, i.also.micro).values()
                tensors = {**tensors, RIDING: labels}
            specs, payload = pack_tensors(tensors, i.codec)
        header = self._header(t, i.dest, step, specs, len(payload))
        if i.radio is not None and self.fabric.radio is not None:
            self.fabric.radio.send(header, payload, i.radio)
        else:
            self.fabric.send(header, payload, unless_waiting=i.late == "newest")

    def _name(self, t: ins.Tensor) -> Name:
        return self.job.version, t.kind, t.at, t.micro, t.part

    def _header(
        self, t: ins.Tensor, dest: str, step: int, specs: tuple[TensorSpec, ...], size: int
    ) -> Header:
        return Header(self.job.run, self.job.version, step, t.kind, t.at, t.micro,
                      self.fabric.name, dest, size, specs, part=t.part)  # fmt: skip

    def _forward(self, i: ins.Forward, step: int) -> None:
        runner = self.turns[i.layers, i.part] if i.part else self.runners[i.layers]
        kind = "in" if i.part else "act"
        held = self._holding.use(step, kind, i.layers[0], i.micro, i.part)
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
        self._holding.hold(step, "act", i.layers[1] + 1, i.micro, outputs, i.part)

    def _stitch(self, i: ins.Stitch, step: int) -> None:
        found: dict[str, list[Tensor]] = {}
        dims: dict[str, int] = {}
        for piece in i.pieces:
            t = piece.tensor
            held = self._holding.use(step, t.kind, t.at, t.micro, t.part).get(piece.value)
            if held is None or held.dim() <= piece.dim or held.shape[piece.dim] < piece.last:
                has = "nothing" if held is None else f"shape {tuple(held.shape)}"
                raise WeftError(
                    f"{t} of minibatch {step} has {has} of {piece.value}; places {piece.first} to "
                    f"{piece.last} of dimension {piece.dim} are needed"
                )
            strip = held.narrow(piece.dim, piece.first, piece.last - piece.first)
            found.setdefault(piece.value, []).append(strip)
            dims[piece.value] = piece.dim
        self._holding.hold(step, i.into.kind, i.into.at, i.into.micro, {
            value: strips[0] if len(strips) == 1
            else torch.stack(strips).sum(0) if i.add
            else torch.cat(strips, dims[value])
            for value, strips in found.items()
        }, i.into.part)  # fmt: skip

    def _loss(self, i: ins.Loss, step: int) -> None:
        runner = next(r for r in self._trained.values() if r.segment.loss is not None)
        record = runner.segment.loss
        assert record is not None
        held = self._holding.use(step, "act", self.job.layers, i.micro, i.part)
        output = held[record.inputs[0]]
        target = self._holding.use(step, "target", 0, i.micro)["target"]
        leaf = output.detach().requires_grad_()
        share = i.samples / self.job.batch if record.reduction == "mean" else 1.0
        with torch.enable_grad():
            loss = runner.loss(leaf, target, i.samples) * share
        (gradient,) = torch.autograd.grad(loss, leaf)
        self._losses[step] = self._losses.get(step, 0.0) + loss.item()
        found = {record.inputs[0]: gradient}
        self._holding.hold(step, "grad", self.job.layers, i.micro, found, i.part)

    def _backward(self, i: ins.Backward, step: int) -> None:
        inputs, outputs = self._saved.pop((step, i.layers, i.micro))
        gradients = self._holding.use(step, "grad", i.layers[1] + 1, i.micro, i.part)
        known = [n for n in gradients if n in outputs and outputs[n].requires_grad]
        torch.autograd.backward([outputs[n] for n in known], [gradients[n] for n in known])
        if i.layers in self._stashes:
            self._stashes[i.layers].settle(step)
        if i.layers[0] > 0:
            self._holding.hold(step, "back" if i.part else "grad", i.layers[0], i.micro, {
                n: t.grad if t.grad is not None else torch.zeros_like(t)
                for n, t in inputs.items() if t.requires_grad
            }, i.part)  # fmt: skip

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
            if self.job.optimizer.rounds:
                for group in optimizer.param_groups:
                    group["lr"] = self.job.optimizer.rate(step)
            if step not in self._void:
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self._sums.pop(i.layers, None)
        self._holding.hold(step, "done", 0, 0, {})

    def _share(self, i: ins.Share, step: int) -> None:
        t = i.into
        values = self.groups.share_row(i.group, i.scale) if i.row else self.groups.share(i.group)
        self._holding.hold(step, t.kind, t.at, t.micro, values, t.part)

    def _blend(self, i: ins.Blend, step: int) -> None:
        own, came = i.own, []
        for t, weight in zip(i.parts, i.weights, strict=True):
            values = self._holding.maybe(step, t.kind, t.at, t.micro, t.part)
            if values is not None:
                came.append((weight, values))
            elif i.total:
                own += weight
        self.groups.blend(i.group, own, came, i.total)

    def _keep(self, i: ins.Keep, step: int) -> None:
        t = i.part
        values = self._holding.maybe(step, t.kind, t.at, t.micro, t.part)
        if values is not None:
            self.groups.keep(i.group, values)

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
            self._keep_pace(start, pace, isinstance(instruction, ins.Loss))
        layers = getattr(instruction, "layers", None)
        label = f"{layers[0]}-{layers[1]}" if layers else ""
        what = type(instruction).__name__.lower()
        self._span(what, start, step, getattr(instruction, "micro", 0), label)

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
        sleep_until(end)

    def _span(self, what: str, start: float, step: int, micro: int, label: str) -> None:
        if self.job.record and len(self.spans) < MAX_SPANS:
            self.spans.append(
                Span(self.fabric.name, what, start, time.monotonic(), step, micro, label)
            )

    def _leave_out(self, step: int, final: bool) -> None:
        """A minibatch whose time was over: as if it had never been."""
        self.fabric.counts["left_out"] += 1
        self._losses.pop(step, None)
        self._holding.forget(step)
        self._saved = {key: kept for key, kept in self._saved.items() if key[0] != step}
        for optimizer in self.optimizers.values():
            optimizer.zero_grad(set_to_none=True)
        self._step_done(step, final)

    def _step_done(self, step: int, final: bool) -> None:
        self.done = step
        loss = self._losses.pop(step, None)
        if loss is not None and step not in self._void:
            self._unreported.append((step, loss))
        self._void.discard(step)
        self.slots.forget(step)
        if self.job.keep_every and (step + 1) % self.job.keep_every == 0:
            kept = save_safetensors(self.state()), save_safetensors(self.optimizer_state())
            self.report(Kept(self.fabric.name, step, *kept))
        if final or time.monotonic() - self._reported > REPORT_EVERY_S:
            self.tell()

    def tell(self) -> None:
        """How far it is, with the losses that nobody knows yet."""
        self.report(Progress(self.fabric.name, self.done, tuple(self._unreported)))
        self._reported, self._unreported = time.monotonic(), []

    def state(self) -> dict[str, Tensor]:
        found = {n: t.detach() for r in self._trained.values() for n, t in r.state.items()}
        return {**found, **self.groups.kept}

    def optimizer_state(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for layers, optimizer in self.optimizers.items():
            found |= state_tensors(optimizer, self._trained[layers].state)
        return found

    def load_optimizer_state(self, saved: dict[str, Tensor]) -> None:
        for layers, optimizer in self.optimizers.items():
            load_state_tensors(optimizer, self._trained[layers].state, saved)


COMPUTE = (ins.Forward, ins.Loss, ins.Backward, ins.Update)


def _shape(shape: tuple[int, ...], batch_dim: int | None, samples: int) -> tuple[int, ...]:
    if batch_dim is None:
        return shape
    return (*shape[:batch_dim], samples, *shape[batch_dim + 1 :])


def _last_of_step(job: Job) -> int:
    """Index of the instruction after which a minibatch is done here."""
    most = max((i.lag for i in job.code), default=0)
    return max((k for k, i in enumerate(job.code) if i.lag == most), default=-1)
