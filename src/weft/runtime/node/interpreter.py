"""What each instruction does: one method for each instruction.

`Worker` runs the instructions in the order of the program. This module says what an instruction does with the
tensors that a device holds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from weft.codecs.tensors import TensorSpec
from weft.errors import WeftError
from weft.graph.accelerator import PLAIN, Compute
from weft.graph.loss.totals import TOTAL
from weft.program import instructions as ins
from weft.runtime.node.groups import Groups
from weft.runtime.node.pooling import Pools
from weft.runtime.node.samples import Samples, by_name
from weft.runtime.node.slots import Slots
from weft.runtime.node.stash import stashes
from weft.runtime.node.stitching import stitched
from weft.runtime.node.tensors import HeldTensors, Values, sized
from weft.runtime.node.updates import Updates
from weft.runtime.wire.fabric import Fabric
from weft.runtime.wire.frames import (
    BadMessage,
    Header,
    Payload,
    Views,
    pack_tensors,
    unpack_tensors,
    view_tensors,
    whole,
)
from weft.runtime.wire.ledger import SPANS
from weft.runtime.wire.mailbox import Name, nothing_missing
from weft.runtime.wire.messages import Job
from weft.runtime.wire.span_ring import SpanRing

RIDING = "@also"  # prefix for the second tensor of a message; no value has such a name


class Interpreter:
    """A device's weights, its optimizers, and the tensors that it holds at the moment."""

    def __init__(
        self,
        job: Job,
        state: Mapping[str, Tensor],
        fabric: Fabric,
        samples: Samples | None,
        emit: Callable[[int, int, Values], None],
        compute: Compute = PLAIN,
    ) -> None:
        self.job = job
        self.fabric = fabric
        self.samples = samples
        self.emit = emit
        self.training = job.mode == "train"
        made = {((s.first, s.last), s.part): compute.runner(s, state) for s in job.segments}
        self.runners = {layers: runner for (layers, part), runner in made.items() if not part}
        self.turns = {key: runner for key, runner in made.items() if key[1]}
        self.trained = self.runners  # by layers: all of a layer, or this device's part
        if self.training:
            self.trained = {**self.runners, **{at: r for (at, _), r in self.turns.items()}}
        self.updates = Updates(job.optimizer, self.trained if self.training else {})
        self.mailbox = fabric.mailbox  # of this plan; a later one has its own
        self.slots = Slots(job.radio, self.mailbox, fabric.counts, job.deadline_s)
        self.groups = Groups(job.groups, state)
        for i in job.code:
            if isinstance(i, ins.Recv) and i.late == "newest":
                self.mailbox.keep_newest(self._name(i.tensor))
        self.spans = SpanRing(SPANS[job.mode])
        self.compute_cpu_s = 0.0
        self.held = HeldTensors(job)
        self.pools = Pools(self.runners, self.held)
        self.void: set[int] = set()  # minibatches that somebody has lost a part of
        self.updated = -1  # the newest minibatch that has changed a weight or a buffer
        self._buffered = {  # segments that a forward pass may change
            layers
            for layers, runner in self.trained.items()
            if not all(info.trainable for info in runner.segment.state.values())
        }
        self.losses: dict[int, float] = {}
        self.saved: dict[tuple[int, tuple[int, int], int], tuple[Values, Values]] = {}
        self._stashes = stashes(self.runners, job.code) if self.training else {}
        self._sums: dict[tuple[int, int], tuple[tuple[TensorSpec, ...], bytes]] = {}  # to be sent
        self.do: dict[type, Callable[..., None]] = {
            ins.Load: self._load, ins.Recv: self._recv, ins.Send: self._send,
            ins.Forward: self._forward, ins.Loss: self._loss, ins.Backward: self._backward,
            ins.Reduce: self._reduce, ins.Update: self._update, ins.Stitch: self._stitch,
            ins.Emit: self._emit, ins.Share: self._share, ins.Blend: self._blend,
            ins.Keep: self._keep, ins.Miss: self._miss, ins.Pool: self._pool,
            ins.Squares: self._squares, ins.Clip: self._clip,
        }  # fmt: skip

    def _load(self, i: ins.Load, step: int) -> None:
        assert self.samples is not None
        start, cpu = time.monotonic(), time.thread_time()
        inputs, target = self.samples.minibatch(step)
        a, b = i.samples
        own = slice(a - self.job.data.first, b - self.job.data.first)
        self.held.hold(step, "act", 0, i.micro, {n: x[own] for n, x in inputs.items()})
        if target is not None:
            labels = {n: t if n.startswith(TOTAL) else t[own] for n, t in by_name(target).items()}
            self.held.hold(step, "target", 0, i.micro, labels)
        self.compute_cpu_s += time.thread_time() - cpu
        self.span("load", start, step, i.micro, f"{a}-{b}")

    def _recv(self, i: ins.Recv, step: int) -> None:
        t = i.tensor
        start = time.monotonic()
        if i.late in ("zero", "own", "skip"):
            self._recv_or_not(i, step, start)
            return
        if i.late == "newest":
            letter = self.mailbox.newest(self._name(t))
            if letter is None:
                return
        else:
            letter = self.mailbox.take(
                (self.job.version, step, t.kind, t.at, t.micro, t.part),
                self.job.deadline_s,
                lambda: f"{t} of minibatch {step} from {i.source}",
                i.source,
            )
        try:
            tensors = unpack_tensors(letter.header, letter.payload)
        except BadMessage as error:
            raise WeftError(
                f"{t} of minibatch {step} from {i.source} is damaged: {error}"
            ) from None
        if i.also is not None:
            labels = {n: tensors.pop(n) for n in list(tensors) if n.startswith(RIDING)}
            if not labels:
                raise WeftError(f"{t} of minibatch {step} from {i.source} came without {i.also}")
            # Older versions send one tensor without a name of its own.
            named = {n.removeprefix(RIDING) or i.also.kind: label for n, label in labels.items()}
            self.held.hold(step, i.also.kind, i.also.at, i.also.micro, named)
        if t.kind == "whole" and not tensors[t.kind].item():
            self.void.add(step)
        self.held.hold(step, t.kind, t.at, t.micro, tensors, t.part)
        self.span("wait", start, step, t.micro, str(t))

    def _recv_or_not(self, i: ins.Recv, step: int, start: float) -> None:
        """Receives a message that may be lost. It waits for the slot's end, or the notice of a loss."""
        t, own = i.tensor, i.own
        mine = self.held.use(step, own.kind, own.at, own.micro, own.part) if own else None
        key = (self.job.version, step, t.kind, t.at, t.micro, t.part)
        letter = self.slots.take(key, i, step)
        if letter is None and i.late == "skip":
            self.void.add(step)
        values = self.slots.values(letter, i, mine, step)
        self.held.hold(step, t.kind, t.at, t.micro, values, t.part)
        self.span("wait", start, step, t.micro, str(t))

    def _miss(self, i: ins.Miss, step: int) -> None:
        t, own = i.tensor, i.own
        mine = self.held.use(step, own.kind, own.at, own.micro, own.part) if own else None
        if i.late == "skip":
            self.void.add(step)
        values = self.slots.values(None, i, mine, step)
        self.held.hold(step, t.kind, t.at, t.micro, values, t.part)

    def _send(self, i: ins.Send, step: int) -> None:
        t = i.tensor
        specs, payload = self._sums[t.at, t.last] if t.kind == "wsum" else self._viewed(i, step)
        header = self._header(t, i.dest, step, specs, len(payload))
        if i.radio is not None and self.fabric.radio is not None:
            self.fabric.radio.send(header, whole(payload), i.radio)
        else:
            self.fabric.send(header, payload, unless_waiting=i.late == "newest")

    def _viewed(self, i: ins.Send, step: int) -> tuple[tuple[TensorSpec, ...], Payload]:
        """The tensors of a message, in their own memory. It is sent before they change."""
        t = i.tensor
        if t.kind == "whole":
            specs, views = view_tensors({t.kind: torch.tensor(float(step not in self.void))})
        elif t.kind == "wgrad":
            specs, views = view_tensors(self._gradients((t.at, t.last)), i.codec)
        elif t.kind == "follow":
            specs, views = view_tensors(self._followed((t.at, t.last), step), i.codec)
        else:
            tensors = self.held.use(step, t.kind, t.at, t.micro, t.part)
            specs, views = view_tensors(tensors, i.codec)
            if i.also is not None:  # labels are never coded
                labels = self.held.use(step, i.also.kind, i.also.at, i.also.micro)
                label_specs, label_views = view_tensors({RIDING + n: t for n, t in labels.items()})
                specs, views = specs + label_specs, views + label_views
        return specs, Views(views)

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
        held = self.held.use(step, kind, i.layers[0], i.micro, i.part)
        if runner.segment.norms:
            held = {**held, **self.pools.totals(step, i.layers[0])}
        problem = nothing_missing(
            dict(held),
            {n: sized(v.shape, v.batch_dim, i.samples) for n, v in runner.segment.inputs.items()},
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
        if i.layers in self._buffered:
            self.updated = max(self.updated, step)
        with torch.set_grad_enabled(self.training):
            outputs = runner.forward(inputs, training=self.training, seed=seed)
        if self.training:
            self.saved[step, i.layers, i.micro] = (inputs, outputs)
        self.held.hold(step, "act", i.layers[1] + 1, i.micro, outputs, i.part)

    def _stitch(self, i: ins.Stitch, step: int) -> None:
        def use(t: ins.Tensor) -> Values:
            return self.held.use(step, t.kind, t.at, t.micro, t.part)

        made = stitched(i, step, use, lambda t: self.slots.heard(step, t))
        self.held.hold(step, i.into.kind, i.into.at, i.into.micro, made, i.into.part)

    def _loss(self, i: ins.Loss, step: int) -> None:
        runner = next(r for r in self.trained.values() if r.segment.loss is not None)
        record = runner.segment.loss
        assert record is not None
        held = self.held.use(step, "act", self.job.layers, i.micro, i.part)
        labels = self.held.use(step, "target", 0, i.micro)
        problem = nothing_missing(
            dict(labels),
            {n: sized(v.shape, v.batch_dim, i.samples) for n, v in record.targets.items()},
        )
        if problem:
            raise WeftError(f"targets of minibatch {step}: {problem}")
        leaves = {n: held[n].detach() for n in record.reads}
        wanted = {n: t.requires_grad_() for n, t in leaves.items() if t.is_floating_point()}
        share = i.samples / self.job.batch if record.reduction == "mean" else 1.0
        outputs, targets = list(leaves.values()), [labels[n] for n in record.targets]
        with torch.enable_grad():
            if record.cut is None or i.samples == self.job.batch:
                loss = runner.loss(outputs, targets, i.samples) * share
            else:
                totals = [labels[n] for n in record.cut.totals]
                loss = runner.piece_loss(outputs, targets, totals, i.samples)
        found = torch.autograd.grad(loss, list(wanted.values()), materialize_grads=True)
        self.losses[step] = self.losses.get(step, 0.0) + loss.item()
        gradients = dict(zip(wanted, found, strict=True))
        self.held.hold(step, "grad", self.job.layers, i.micro, gradients, i.part)

    def _backward(self, i: ins.Backward, step: int) -> None:
        inputs, outputs = self.saved.pop((step, i.layers, i.micro))
        gradients = self.held.use(step, "grad", i.layers[1] + 1, i.micro, i.part)
        known = [n for n in gradients if n in outputs and outputs[n].requires_grad]
        torch.autograd.backward([outputs[n] for n in known], [gradients[n] for n in known])
        if i.layers in self._stashes:
            self._stashes[i.layers].settle(step)
        if i.layers[0] > 0:
            gradients = {
                n: t.grad if t.grad is not None else torch.zeros_like(t)
                for n, t in inputs.items() if t.requires_grad
            }  # fmt: skip
            if not i.part and self.runners[i.layers].segment.norms:
                gradients = self.pools.after_backward(step, i.layers[0], i.micro, inputs, gradients)
            self.held.hold(
                step, "back" if i.part else "grad", i.layers[0], i.micro, gradients, i.part
            )

    def _pool(self, i: ins.Pool, step: int) -> None:
        start, cpu = time.monotonic(), time.thread_time()
        self.pools.pool(i, step)
        self.compute_cpu_s += time.thread_time() - cpu
        self.span("pool", start, step, 0, str(i.into))

    def _squares(self, i: ins.Squares, step: int) -> None:
        start = time.monotonic()
        total = self.updates.squares(i.segments)
        self.held.hold(step, "gnorm", 0, i.into.micro, {"gnorm": total}, i.into.part)
        self.span("squares", start, step, 0, str(i.into))

    def _clip(self, i: ins.Clip, step: int) -> None:
        start = time.monotonic()
        parts = [self.held.use(step, t.kind, t.at, t.micro, t.part)["gnorm"] for t in i.parts]
        total = torch.stack(parts).sum()
        self.updates.clip(i.segments, total)
        self.held.hold(step, "gnorm", 0, i.into.micro, {"gnorm": total}, i.into.part)
        self.span("clip", start, step, 0, str(i.into))

    def _reduce(self, i: ins.Reduce, step: int) -> None:
        follows = i.replace and any(part.kind == "follow" for part in i.parts)
        own = self._followed(i.layers, step) if follows else self._gradients(i.layers)
        if follows:  # buffers are taken over here, before the update
            self.updated = max(self.updated, step)
        for part in i.parts:
            theirs = self.held.use(step, part.kind, part.at, part.micro)
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
        """Codes the sum once, for all receivers and for this device: a second time differs."""
        specs, payload = self._sums[i.layers] = pack_tensors(own, i.codec)
        if i.codec != "none":
            total = ins.Tensor("wsum", i.layers[0], last=i.layers[1])
            to_ourselves = self._header(total, self.fabric.name, step, specs, len(payload))
            for name, rounded in unpack_tensors(to_ourselves, payload).items():
                own[name].copy_(rounded)

    def _gradients(self, layers: tuple[int, int]) -> dict[str, Tensor]:
        """The gradients of a segment's weights; zeros for a weight without a gradient."""
        found = {}
        runner = self.runners[layers]
        for name, info in runner.segment.state.items():
            if info.trainable:
                parameter = runner.state[name]
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                found[name] = parameter.grad
        return found

    def _followed(self, layers: tuple[int, int], step: int) -> dict[str, Tensor]:
        """What a standby needs: gradients, and the buffers after a minibatch, which cannot be computed."""
        runner = self.runners[layers]
        buffers = {n: runner.state[n] for n, s in runner.segment.state.items() if not s.trainable}
        if layers in self._stashes:  # later minibatches have changed them already
            buffers |= self._stashes[layers].met(step + 1)
        return {**self._gradients(layers), **buffers}

    def _update(self, i: ins.Update, step: int) -> None:
        if i.layers in self.updates:
            if step not in self.void:
                self.updated = max(self.updated, step)
                self.updates.step(i.layers, step)
            self.updates.forget_gradients(i.layers)
        self._sums.pop(i.layers, None)
        if i.layers in self._stashes:
            self._stashes[i.layers].end(step)
        self.held.hold(step, "done", 0, 0, {})

    def _share(self, i: ins.Share, step: int) -> None:
        t = i.into
        if i.row:
            values = self.groups.share_row(i.group, i.scale)
        else:
            values = self.groups.share(i.group, i.codec)
        self.held.hold(step, t.kind, t.at, t.micro, values, t.part)

    def _blend(self, i: ins.Blend, step: int) -> None:
        own, came = i.own, []
        for t, weight in zip(i.parts, i.weights, strict=True):
            values = self.held.maybe(step, t.kind, t.at, t.micro, t.part)
            if values is not None:
                came.append((weight, values))
            elif i.total:
                own += weight
        self.groups.blend(i.group, own, came, i.total)

    def _keep(self, i: ins.Keep, step: int) -> None:
        t = i.part
        values = self.held.maybe(step, t.kind, t.at, t.micro, t.part)
        if values is not None:
            self.groups.keep(i.group, values)

    def _emit(self, i: ins.Emit, step: int) -> None:
        start = time.monotonic()
        self.emit(step, i.micro, self.held.use(step, "act", i.at, i.micro))
        self.span("emit", start, step, i.micro, "")

    def span(self, what: str, start: float, step: int, micro: int, label: str) -> None:
        if self.job.record:
            end = time.monotonic()
            self.spans.add(self.fabric.name, what, start, end, step, micro, label)
