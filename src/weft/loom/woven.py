"""Executes a program in one process and one thread, with the nodes' interpreter and without a network.

    result = execute(program, graph, state, minibatch, steps=3, rule=Optimizer())
    result.state, result.answers, result.odd_bytes

Messages are packed, coded and unpacked as on a real link, and none is lost. This takes milliseconds, so far
more plans can be checked than by real runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from weft.codecs.registry import codec_named
from weft.errors import WeftError
from weft.graph.execute import TargetTotals
from weft.graph.network import Graph
from weft.graph.optimizers.optimizer import Optimizer
from weft.graph.optimizers.user_schedule import Timetable
from weft.graph.split.state import place_state, sliced_state
from weft.program.instructions import Instruction, Recv, Send, due
from weft.program.program import Program
from weft.runtime.node.interpreter import Interpreter
from weft.runtime.node.tensors import Values
from weft.runtime.run.jobs import Settings, job_of
from weft.runtime.wire.fabric import Fabric
from weft.runtime.wire.frames import Header, Key, Payload, whole
from weft.runtime.wire.mailbox import Letter, Mailbox
from weft.runtime.wire.messages import Job

BLOCK_BYTES = 8  # scale and offset of a block of coded numbers
Tensors = Tensor | Mapping[str, Tensor]  # several ones by their names in the graph
Minibatches = Callable[[int], tuple[Tensors, Tensors]]  # by their number


class Wire:
    """A device's end of a network that delivers at once. It has the methods of a Fabric that the interpreter
    uses."""

    def __init__(self, name: str, ends: dict[str, Wire]) -> None:
        self.name, self.ends = name, ends
        self.mailbox = Mailbox()
        self.counts: Counter[str] = Counter()
        self.radio = None
        self.there: set[Key] = set()  # keys of the letters that have arrived
        self.size = self.tensors = 0  # of the newest message that was sent

    def send(self, header: Header, payload: Payload, unless_waiting: bool = False) -> None:
        dest = self.ends[header.dest]
        dest.mailbox.put(Letter(header, whole(payload)))
        dest.there.add(header.key)
        self.size, self.tensors = len(payload), len(header.tensors)


@dataclass
class Executed:
    """The result, and the messages whose size was not as planned."""

    state: dict[str, Tensor] = field(default_factory=dict)
    memory: dict[str, Tensor] = field(default_factory=dict)  # the optimizers'
    losses: dict[int, float] = field(default_factory=dict)
    answers: dict[tuple[int, int], Values] = field(default_factory=dict)
    odd_bytes: list[str] = field(default_factory=list)
    unequal: list[str] = field(default_factory=list)  # weights that differ between their holders


@dataclass
class _Device:
    """One device: its interpreter, and the instructions that are left."""

    job: Job
    worker: Interpreter
    wire: Wire
    todo: list[tuple[Instruction, int]]
    place: int = 0

    def waits(self) -> bool:
        instruction, step = self.todo[self.place]
        if not isinstance(instruction, Recv) or instruction.late == "newest":
            return False
        t = instruction.tensor
        return (self.job.version, step, t.kind, t.at, t.micro, t.part) not in self.wire.there


def execute(
    program: Program,
    graph: Graph,
    state: Mapping[str, Tensor],
    data: Minibatches,
    steps: int,
    rule: Optimizer,
    seed: int = 0,
    timetable: Timetable | None = None,
) -> Executed:
    """Runs every device's loop in turn, each until it has to wait."""
    found = Executed()
    devices = _devices(program, graph, state, data, steps, rule, seed, found)
    for device in devices.values() if timetable else ():
        device.worker.updates.rates.take(timetable.between(0, steps) if timetable else (), 0)
    moved = True
    while moved:
        moved = False
        for device in devices.values():
            while device.place < len(device.todo) and not device.waits():
                _step(device, found)
                device.place, moved = device.place + 1, True
    stuck = [name for name, device in devices.items() if device.place < len(device.todo)]
    if stuck:
        raise WeftError(f"the program comes to a standstill at {', '.join(stuck)}")
    _gather(devices, state, found, swarm=program.plan.swarm is not None)
    return found


def _devices(
    program: Program, graph: Graph, state: Mapping[str, Tensor], data: Minibatches, steps: int,
    rule: Optimizer, seed: int, found: Executed,
) -> dict[str, _Device]:  # fmt: skip
    ends: dict[str, Wire] = {}
    everyone = tuple(program.code)
    ends |= {name: Wire(name, ends) for name in everyone}
    # `same_clock`: losses are told, so that no device uses the clock.
    settings = Settings(optimizer=rule, seed=seed, deadline_s=1.0, same_clock=True, record=False)
    loss = graph.loss
    totals = TargetTotals(loss, state) if loss and loss.cut else None

    class Feed:
        """The samples of one device: all of them, or its share of the minibatch."""

        def __init__(self, device: str) -> None:
            plan = program.plan
            self.own = slice(*plan.owned_by(device)) if device in plan.sources else slice(None)

        def minibatch(self, step: int) -> tuple[dict[str, Tensor], dict[str, Tensor] | None]:
            x, y = data(step)
            inputs = {n: t[self.own] for n, t in _named(x, graph.inputs[0]).items()}
            whole = _named(y, "target")
            targets = {n: t[self.own] for n, t in whole.items()}
            if totals is not None:
                targets |= totals(whole)
            return inputs, targets if program.plan.mode == "train" else None

    def answer(step: int, micro: int, values: Values) -> None:
        found.answers[step, micro] = values

    devices = {}
    for name in everyone:
        job = job_of("woven", program, graph, settings, name, everyone)
        mine: dict[str, Tensor] = {}
        for segment in job.segments:
            mine |= {n: t.detach().clone() for n, t in sliced_state(segment, state).items()}
        wire = ends[name]
        worker = Interpreter(job, mine, cast(Fabric, wire), Feed(name), answer)
        lag = max((i.lag for i in job.code), default=0)
        todo = [
            (i, tick - i.lag)
            for tick in range(steps + lag)
            for i in job.code
            if 0 <= tick - i.lag < steps and due(i, tick - i.lag)
        ]
        devices[name] = _Device(job, worker, wire, todo)
    return devices


def _named(tensors: Tensors, name: str) -> Mapping[str, Tensor]:
    return {name: tensors} if isinstance(tensors, Tensor) else tensors


def _step(device: _Device, found: Executed) -> None:
    """Executes one instruction. For a message, checks whether it has the planned size."""
    instruction, step = device.todo[device.place]
    device.worker.do[type(instruction)](instruction, step)
    if isinstance(instruction, Send):
        codec = codec_named(instruction.codec)
        planned = instruction.bytes - codec.wire_bytes(0)  # scales are in the header
        # A message with several tensors is planned as one tensor of their total size.
        rounding = 0 if codec.wire_bytes(4) == 4 else BLOCK_BYTES * device.wire.tensors
        if abs(device.wire.size - planned) > rounding and instruction.tensor.kind != "whole":
            found.odd_bytes.append(
                f"{device.wire.name} sends {instruction.tensor} to {instruction.dest} in "
                f"{device.wire.size} bytes; {planned} are planned ({instruction.codec})"
            )


def _gather(
    devices: Mapping[str, _Device], state: Mapping[str, Tensor], found: Executed, swarm: bool
) -> None:
    found.state = {name: tensor.detach().clone() for name, tensor in state.items()}
    held: dict[str, tuple[str, Tensor]] = {}
    for name, device in devices.items():
        for step, loss in device.worker.losses.items():
            found.losses[step] = found.losses.get(step, 0.0) + loss
        found.memory |= device.worker.updates.memory()
        for runner in device.worker.trained.values():
            part = {n: t.detach() for n, t in runner.state.items()}
            place_state(runner.segment, part, found.state)
            for key, tensor in part.items():
                if swarm or not runner.segment.state[key].trainable:
                    continue
                first, other = held.setdefault(key, (name, tensor))
                if not torch.equal(other, tensor):
                    found.unequal.append(f"{key} is not the same at {first} and {name}")
