"""Really runs a draw on emulated devices of this machine, and checks the result.

run_and_check(draw)      # an Outcome, as for a draw that is only planned
"""

from __future__ import annotations

import contextlib
import gc
import math
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from weft.adapt.serve import serve
from weft.adapt.train import train as train_on_fleet
from weft.api import plan as plan_network
from weft.codecs.base import Codec
from weft.codecs.registry import codec_named
from weft.errors import InputError, WeftError
from weft.fleet.faults import Faults
from weft.fleet.trace import Trace
from weft.loom.draw import Draw
from weft.loom.leftovers import Here, own_folder
from weft.loom.networks import graph_of, loss_of, minibatch, module_of
from weft.loom.planned import Outcome, Violation, where
from weft.loom.reference import (
    Mathematics,
    answers_alone,
    differs,
    mathematics,
    rule_of,
    trained_differs,
)
from weft.loom.settings import fitting
from weft.loom.woven import BLOCK_BYTES
from weft.plans import registry
from weft.plans.plan import Plan
from weft.plans.protocols import GO_BACK
from weft.program.instructions import Send, Stitch
from weft.program.lower.lower import lower
from weft.program.timeline import Timeline
from weft.runtime.emulate.forked import CannotFork, get_server
from weft.runtime.emulate.local import LocalFleet
from weft.runtime.run.results import TrainResult
from weft.runtime.run.serving.attendants import NobodyLeft

DEADLINE_S = 20.0
SET = "digits"  # a data set that every device can open, which peers need


@dataclass
class Ran:
    """The result of a real run."""

    plan: Plan
    state: dict[str, Tensor] = field(default_factory=dict)
    answers: list[Tensor] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    timeline: Timeline | None = None
    # A run that was resumed: the plans of its parts by their first minibatch. Speeds are measured anew, so
    # they may differ.
    plans: dict[int, Plan] = field(default_factory=dict)
    changed: bool = False  # the plan of some part changed after its first minibatch

    @property
    def first(self) -> int:
        """The first minibatch of the last part."""
        return max(self.plans, default=0)


def run_and_check(draw: Draw) -> Outcome:
    """Runs a draw and compares it with one process, with its plan, and with the state of this machine
    before."""
    with own_folder():
        return _checked(draw)


def _checked(draw: Draw) -> Outcome:
    with contextlib.suppress(CannotFork):
        get_server()  # stays for the next run
    before = Here.now()
    try:
        ran = _infer(draw) if draw.mode == "infer" else _train(draw)
    except WeftError as error:
        return _refused_or_failed(draw, error, before)
    except Exception as error:
        return Outcome(violations=(Violation("exception", where(error)),))
    violations = [
        Violation(name, says)
        for name, check in (("result", _result), ("bytes", _bytes))
        for says in check(draw, ran)
    ]
    violations += [Violation("left behind", says) for says in before.left_behind()]
    return Outcome(plan=ran.plan, ran=True, violations=tuple(violations))


def _refused_or_failed(draw: Draw, error: WeftError, before: Here) -> Outcome:
    """A refusal must come before anything starts. A run that has started must end, unless a device died; one
    that answers goes on without it."""
    frames = {frame.name for frame in traceback.extract_tb(error.__traceback__)}
    started = "prepare" in frames or "steps" in frames or "conduct" in frames
    found = [Violation("left behind", says) for says in before.left_behind()]
    if draw.kill and (draw.mode == "train" or isinstance(error, NobodyLeft)):
        return Outcome(refused=f"a device died: {error}", violations=tuple(found), ran=True)
    if started or not isinstance(error, InputError):
        found.append(Violation("run failed", where(error)))
    return Outcome(refused=str(error), violations=tuple(found))


# --- running ------------------------------------------------------------------------------------


def _train(draw: Draw) -> Ran:
    peers = fitting(registry.get(draw.strategy)) == "peers"

    def data(step: int) -> tuple[Tensor, Tensor]:
        return minibatch(draw.net, draw.loss, draw.batch, draw.seed, step)

    given: dict[str, Any] = {
        "fleet": draw.fleet, "strategy": draw.strategy, "options": draw.options,
        "batch": draw.batch, "optimizer": rule_of(draw), "seed": draw.seed, "local": True,
        "deadline": DEADLINE_S, "adapt": draw.feature == "adapt",
    }  # fmt: skip
    if draw.feature == "adapt":
        given["look_every"] = 2
    if draw.trace:
        given["trace"] = Trace(draw.trace)
    if draw.kill:
        given["faults"] = Faults().kill(draw.kill, step=0)  # when the first minibatch is done
    samples: Any = SET if peers else data

    def train(**more: Any) -> TrainResult:
        model = module_of(draw.net)
        return train_on_fleet(
            model, samples, loss_of(draw.loss), **{**given, "steps": draw.steps, **more}
        )

    parts: list[TrainResult] = []
    if draw.feature == "plan file":
        result = train(plan=_plan_file(draw))
    elif draw.feature == "resume" and draw.steps > 1:
        middle = draw.steps // 2
        with tempfile.TemporaryDirectory(prefix="loom-") as folder:
            parts.append(train(steps=middle, out=folder))
            result = train(out=folder, resume=True)
    else:
        result = train()
    state = {n: t.detach().clone() for n, t in result.model.state_dict().items()}
    parts.append(result)
    return Ran(
        result.plan, state, [], result.losses, result.timeline,
        {part.first: part.plan for part in parts}, any(_changed(part) for part in parts),
    )  # fmt: skip


def _changed(part: TrainResult) -> bool:
    """Whether the plan changed on the way. A live policy may choose another one before it begins."""
    return any("moved_bytes" in event and event["step"] > part.first for event in part.events)


def _plan_file(draw: Draw) -> Plan:
    """Saves the plan to a file and runs the file."""
    example = minibatch(draw.net, draw.loss, 2, draw.seed, 0)[0]
    plan = plan_network(
        module_of(draw.net), example, draw.fleet, strategy=draw.strategy, batch=draw.batch,
        mode=draw.mode, options=draw.options, optimizer=draw.optimizer,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="loom-") as folder:
        path = Path(folder) / "plan.json"
        plan.save(path)
        return Plan.load(path)


def _infer(draw: Draw) -> Ran:
    module = module_of(draw.net).eval()
    batches = [
        minibatch(draw.net, draw.loss, draw.batch, draw.seed, n)[0] for n in range(draw.steps)
    ]
    plan = _plan_file(draw) if draw.feature == "plan file" else None
    with serve(
        module, torch.zeros(2, *draw.net.shape), draw.fleet, strategy=draw.strategy, plan=plan,
        batch=draw.batch, options=draw.options, local=True, deadline=DEADLINE_S, adapt=False,
    ) as net:  # fmt: skip
        first = net.plan
        answers = [net(batches[0])]
        if draw.kill:
            fleet_of_this_run().kill(draw.kill)
        answers += net.stream(batches[1:]) if len(batches) > 1 else []
        plans = {0: first, 1: net.plan}
        return Ran(net.plan, answers=answers, timeline=net.timeline()[0], plans=plans)


def fleet_of_this_run() -> LocalFleet:
    """The emulated fleet that the current run has started."""
    return next(
        thing
        for thing in gc.get_objects()
        if isinstance(thing, LocalFleet) and not thing.crew.session.is_closed()
    )


# --- checking -----------------------------------------------------------------------------------


def _result(draw: Draw, ran: Ran) -> Iterator[str]:
    """Weights or answers equal those of one process."""
    if draw.mode == "infer":
        yield from _answers(draw, ran)
        return
    if not all(math.isfinite(loss) for loss in ran.losses):
        yield f"losses are {ran.losses}"
    strategy = registry.get(draw.strategy)
    if draw.kill and strategy.recovery != GO_BACK:
        return
    plans, module = ran.plans.values(), module_of(draw.net)
    in_flight = any(plan.stale for plan in plans) or strategy.online is not None
    watched = ran.changed or draw.feature == "adapt" or bool(draw.kill)
    if in_flight and watched and draw.options.get("in_flight") != "1":
        return  # how old the weights were depends on when a plan changed or the pipeline ran empty
    hows = {mathematics(plan, module) for plan in plans}
    if ran.changed and any(isinstance(m, nn.BatchNorm2d) for m in module.modules()):
        hows = {"ends"}  # two plans cut the minibatches in different pieces
    how: Mathematics = next(h for h in ("ends", "near", "exact") if h in hows)
    if how != "ends" and len(ran.losses) != draw.steps - ran.first:
        yield f"{len(ran.losses)} losses came home of {draw.steps - ran.first} minibatches"
    if ran.plan.peers is not None:
        return
    text = trained_differs(draw, ran.state, ran.plans, graph_of(draw.net), draw.steps, how)
    if text:
        yield text


def _answers(draw: Draw, ran: Ran) -> Iterator[str]:
    hows = {mathematics(plan, module_of(draw.net)) for plan in ran.plans.values()}
    how: Mathematics = next(h for h in ("ends", "near", "exact") if h in hows)
    for n, (found, wanted) in enumerate(
        zip(ran.answers, answers_alone(draw, draw.steps), strict=True)
    ):
        if found.shape != wanted.shape:
            yield f"answer {n} has shape {tuple(found.shape)}, not {tuple(wanted.shape)}"
            return
        text = differs({"answer": found}, {"answer": wanted}, how, 0.0, adam=False)
        if text:
            yield f"{n}: {text}"
            return


def _in_blocks(codec: Codec) -> bool:
    """Whether several tensors take more bytes than one of the same size. A plan knows only the size of a
    cut."""
    return 2 * codec.payload_bytes(1, 4) != codec.payload_bytes(2, 4)


def _bytes(draw: Draw, ran: Ran) -> Iterator[str]:
    """The bytes on each channel are those that were planned."""
    plan = ran.plan
    if plan.swarm or plan.peers or plan.version or draw.kill or ran.timeline is None:
        return
    if draw.feature == "adapt":  # probes use the links too
        return
    planned: Counter[str] = Counter()
    slack: Counter[str] = Counter()
    for device, code in lower(plan).code.items():
        values = {i.into: len({p.value for p in i.pieces}) for i in code if isinstance(i, Stitch)}
        for i in code:
            if isinstance(i, Send):
                codec = codec_named(i.codec)
                # Each value of a message has a header of its own, which is not in the payload.
                headers = codec.wire_bytes(0) * values.get(i.tensor, 1)
                for hop in plan.fleet.route(device, i.dest):
                    planned[hop.channel] += i.bytes - headers
                    slack[hop.channel] += BLOCK_BYTES * _in_blocks(codec)
    crossed: Counter[str] = Counter()
    for span in ran.timeline.spans:
        if span.what == "transfer":
            crossed[span.where] += span.bytes
    steps = len({span.step for span in ran.timeline.spans})
    wanted = Counter({channel: size * steps for channel, size in planned.items() if size})
    if any(abs(crossed[c] - wanted[c]) > steps * slack[c] for c in crossed.keys() | wanted.keys()):
        yield f"{dict(+crossed)} bytes crossed, {dict(wanted)} were planned for {steps} minibatches"
