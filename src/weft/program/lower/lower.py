"""From a plan of whole layers to a program: who receives, computes and sends what, in which order.

    program = lower(plan)
    program.code["pi"]       # load, forward, send, recv, backward, update

Training, a phone with layers A and an edge server with layers B, two micro-batches, two in flight:

    phone | load 0  F 0  send a0+y0 | load 1  F 1  send a1+y1 | recv g0  B 0 | recv g1  B 1 | update A
    edge  | recv a0+y0  F 0  loss 0  B 0  send g0 | recv a1+y1  F 1  loss 1  B 1  send g1   | update B

Labels (y) ride with the activation that leaves the source; where the loss is computed further on they
follow it in a message of their own, which crosses while the next stage computes.
The turns come from `schedule`; this module only spells them out. In an inference the source feeds
`in_flight` micro-batches ahead and then waits for an answer before it feeds the next. In training
a source without layers is told when a minibatch is done, and stays `plan.ahead` minibatches ahead.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from weft.codecs.registry import CodecName, coded_bytes
from weft.errors import InputError
from weft.plans.plan import Part, Plan
from weft.program.instructions import (
    DONE,
    Backward,
    Emit,
    Forward,
    Instruction,
    Load,
    Loss,
    Recv,
    Send,
    Tensor,
    Update,
)
from weft.program.lower.lanes import has_lanes
from weft.program.lower.peers import lower_peers
from weft.program.lower.rounds import lower_rounds
from weft.program.lower.samples import lower_lanes
from weft.program.lower.schedule import forwards_ahead, micro_sizes, one_forward_one_backward
from weft.program.lower.swarm import lower_swarm
from weft.program.passes.stale import Stage, stale_lags, with_lags
from weft.program.passes.standby import with_standby
from weft.program.program import Program


def lower(plan: Plan) -> Program:
    """The program of a plan: of whole layers, lanes of samples, rounds of strips, lists of units, or
    of peers."""
    if plan.swarm:
        return lower_swarm(plan)
    if plan.peers is not None:
        return lower_peers(plan)
    if plan.rounds:
        return lower_rounds(plan)
    if has_lanes(plan):
        if plan.stale or plan.standby:
            raise InputError(
                f"plan: stale = {plan.stale}, standby = {len(plan.standby)} shards; "
                "neither is allowed where samples are split"
            )
        return lower_lanes(plan)
    writer = _Writer(plan)
    code = {device: tuple(writer.code(device)) for device in plan.devices}
    if plan.stale:
        code = with_lags(code, writer.stages, stale_lags(plan, writer.stages))
    return Program(plan=plan, code=with_standby(plan, code) if plan.standby else code)


def stages_of(plan: Plan) -> list[Stage]:
    """The stages of a plan; InputError where its shards do not tile the layers in order."""
    stages = [Stage(shard.device, *shard.layers) for shard in plan.shards]
    expected = 0
    for shard, stage in zip(plan.shards, stages, strict=True):
        if shard.part != Part():
            raise InputError(
                f"plan: shard {shard.device} layers {list(shard.layers)} has part {shard.part}; "
                "only whole layers (an empty part) can be lowered"
            )
        if stage.first != expected or stage.last < stage.first:
            raise InputError(
                f"plan: shard {shard.device} has layers {list(shard.layers)}; "
                f"the next shard must begin at layer {expected} and hold at least one"
            )
        if stage.device not in plan.profile.devices:
            raise InputError(
                f"profile: devices has no {stage.device!r}, which holds layers "
                f"{list(shard.layers)}; it has {', '.join(plan.profile.devices)}"
            )
        expected = stage.last + 1
    if expected != len(plan.profile.layers):
        raise InputError(
            f"plan: shards hold layers up to {expected - 1}; "
            f"the profile of {plan.model} has layers 0 to {len(plan.profile.layers) - 1}"
        )
    _check_counts(plan, stages)
    return stages


def _check_counts(plan: Plan, stages: list[Stage]) -> None:
    if not 1 <= plan.micro_batches <= plan.batch:
        raise InputError(
            f"plan: micro_batches = {plan.micro_batches}; 1 to batch = {plan.batch} are allowed"
        )
    if plan.in_flight < 1:
        raise InputError(f"plan: in_flight = {plan.in_flight}; at least 1 is allowed")
    if plan.ahead < 1:
        raise InputError(f"plan: ahead = {plan.ahead}; at least 1 is allowed")
    seen: set[str] = set()
    for stage in stages:
        if stage.device in seen and plan.micro_batches > 1:
            raise InputError(
                f"plan: device {stage.device} has several shards and micro_batches = "
                f"{plan.micro_batches}; join its shards or set micro_batches = 1"
            )
        seen.add(stage.device)


class _Writer:
    """Spells out the turns of each device. Every method yields the instructions of one turn."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.stages = stages_of(plan)
        self.sizes = micro_sizes(plan.batch, plan.micro_batches)
        self.train = plan.mode == "train"
        self.feeds_stage = self.stages[0].device != plan.source  # the input crosses a link
        # Nothing else comes back to a source without layers: it must be told when to go on.
        self.told = self.train and all(s.device != plan.source for s in self.stages)
        # The stage after which the labels leave the source, where it holds the first layers.
        self.label_stage: int | None = None
        if not self.feeds_stage:
            self.label_stage = next(
                (s - 1 for s, stage in enumerate(self.stages) if stage.device != plan.source), None
            )

        # The stage that gets the activation which leaves the source; its device may, later on or at
        # once, compute the loss as well.
        self.away = 0 if self.feeds_stage else (self.label_stage or 0) + 1
        self.labels_ride = (
            self.train
            and self.away < len(self.stages)
            and self.stages[-1].device == self.stages[self.away].device != plan.source
        )

    def code(self, device: str) -> Iterator[Instruction]:
        mine = [s for s, stage in enumerate(self.stages) if stage.device == device]
        if not self.train:
            yield from self.infer_code(device, mine)
            return
        yield from self.train_code(device, mine)
        for s in mine:
            yield Update(layers=(self.stages[s].first, self.stages[s].last))
        if self.told and self.stages[0].device == device:
            yield Send(DONE, self.plan.source, bytes=0)

    def train_code(self, device: str, mine: list[int]) -> Iterator[Instruction]:
        count = self.plan.micro_batches
        waiting: Iterator[int] = iter(())  # micro-batches to feed to another device's first stage
        if device == self.plan.source and self.feeds_stage:
            if self.told:
                yield Recv(DONE, self.stages[0].device, lag=self.plan.ahead)
            ahead = min(count, self.plan.in_flight) if mine else count
            for micro in range(ahead):
                yield from self.feed(micro)
            waiting = iter(range(ahead, count))
        if len(mine) > 1:  # one micro-batch, there and back again
            for s in mine:
                yield from self.forward(s, 0)
            for s in reversed(mine):
                yield from self.backward(s, 0)
            return
        for s in mine:
            ahead = forwards_ahead(s, len(self.stages), count, self.plan.in_flight)
            for what, micro in one_forward_one_backward(count, ahead):
                if what == "forward":
                    yield from self.forward(s, micro)
                else:
                    yield from self.backward(s, micro)
                    for following in waiting:
                        yield from self.feed(following)
                        break

    def infer_code(self, device: str, mine: list[int]) -> Iterator[Instruction]:
        count = self.plan.micro_batches
        if device != self.plan.source:
            for micro in range(count):
                for s in mine:
                    yield from self.forward(s, micro)
            return
        begin = [s for s in mine if s == 0]
        for what, micro in one_forward_one_backward(count, min(count, self.plan.in_flight)):
            if what == "forward":
                if not begin:
                    yield from self.feed(micro)
                for s in begin:
                    yield from self.forward(s, micro)
            else:
                for s in mine[len(begin) :]:
                    yield from self.forward(s, micro)
                yield from self.answer(micro)

    def load(self, micro: int) -> Load:
        first = sum(self.sizes[:micro])
        return Load(micro=micro, samples=(first, first + self.sizes[micro]))

    def feed(self, micro: int) -> Iterator[Instruction]:
        """The source's turn where another device holds the first layer."""
        yield self.load(micro)
        yield from self.leave(0, micro, self.stages[0].device)

    def leave(self, at: int, micro: int, dest: str) -> Iterator[Instruction]:
        """An activation leaves the source, with its labels where they go the same way."""
        end = self.stages[-1].device
        act, labels = self.send("act", at, micro, dest), self.send("target", 0, micro, end)
        if self.labels_ride:
            yield msgspec.structs.replace(act, bytes=act.bytes + labels.bytes, also=labels.tensor)
            return
        yield act
        if self.train and end != self.plan.source:
            yield labels

    def arrive(self, s: int, micro: int, source: str) -> Recv:
        """The other end of `leave`, or of any other activation's way."""
        rides = s == self.away and self.labels_ride
        also = Tensor("target", 0, micro) if rides else None
        return Recv(tensor=Tensor("act", self.stages[s].first, micro), source=source, also=also)

    def forward(self, s: int, micro: int) -> Iterator[Instruction]:
        device, first, last = self.stages[s]
        before = self.plan.source if s == 0 else self.stages[s - 1].device
        final = s + 1 == len(self.stages)
        if s == 0 and not self.feeds_stage:
            yield self.load(micro)
        if before != device:
            yield self.arrive(s, micro, before)
        yield Forward(layers=(first, last), micro=micro, samples=self.sizes[micro])
        after = self.plan.source if final else self.stages[s + 1].device
        if after != device and not (final and self.train):
            if s == self.label_stage:
                yield from self.leave(last + 1, micro, after)
            else:
                yield self.send("act", last + 1, micro, after)
        if final and self.train:
            if device != self.plan.source and not self.labels_ride:
                yield Recv(tensor=Tensor("target", 0, micro), source=self.plan.source)
            yield Loss(micro=micro, samples=self.sizes[micro])

    def backward(self, s: int, micro: int) -> Iterator[Instruction]:
        device, first, last = self.stages[s]
        if s + 1 < len(self.stages) and self.stages[s + 1].device != device:
            yield Recv(tensor=Tensor("grad", last + 1, micro), source=self.stages[s + 1].device)
        yield Backward(layers=(first, last), micro=micro, samples=self.sizes[micro])
        if s > 0 and self.stages[s - 1].device != device:  # the samples need no gradient
            yield self.send("grad", first, micro, self.stages[s - 1].device)

    def answer(self, micro: int) -> Iterator[Instruction]:
        end = self.stages[-1]
        if end.device != self.plan.source:
            yield Recv(tensor=Tensor("act", end.last + 1, micro), source=end.device)
        yield Emit(at=end.last + 1, micro=micro)

    def send(self, kind: str, at: int, micro: int, dest: str) -> Send:
        profile, samples = self.plan.profile, self.sizes[micro]
        if kind == "target":
            return Send(Tensor("target", at, micro), dest, samples * profile.target_bytes)
        if kind == "grad":
            tensor, raw = Tensor("grad", at, micro), samples * profile.gradient_bytes(at)
        else:
            tensor, raw = Tensor("act", at, micro), samples * profile.cut_bytes(at)
        codec: CodecName = self.plan.codec if at > 0 else self.plan.input_codec
        return Send(tensor, dest, coded_bytes(raw, codec), codec)
