"""Takes a run up where its nodes are: their copies may be newer than the last save in the folder.

copy = newest_for(run, command, fleet_of(folder))      # None where the nodes have no whole copy

When a coordinator dies, its nodes stop and keep the copies of their state for a while. A run that is resumed
asks them. A copy counts if the devices that answer have all of the network's tensors of the same minibatch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from weft.errors import WeftError
from weft.graph.network import Graph, Segment
from weft.graph.network import State as Shape
from weft.graph.split.state import place_state
from weft.planning.decide import load_plan
from weft.runtime.run.dispatch import State
from weft.runtime.run.records.copies import Copy
from weft.runtime.run.records.plan_changes import PlanRecord
from weft.runtime.run.records.record import PLAN_FILE
from weft.runtime.run.run import Run
from weft.runtime.wire import messages as msg
from weft.runtime.wire.crew import Crew
from weft.stored import tensors_in

ASK_S = 10.0


class _Held:
    """What one device has of one minibatch."""

    def __init__(self) -> None:
        self.segments: tuple[Segment, ...] = ()
        self.state: State = {}
        self.memory: State = {}
        self.losses: dict[int, float] = {}

    def take(self, piece: msg.Kept) -> None:
        self.segments = piece.segments or self.segments
        self.losses |= piece.losses
        (self.memory if piece.optimizer else self.state).update(tensors_in(piece.data))


def fleet_of(folder: Path) -> frozenset[str]:
    """The devices that the plans in a run's folder speak of. Empty where the folder has no plan."""
    plans = []
    with contextlib.suppress(WeftError):
        plans.append(load_plan(folder / PLAN_FILE))
    with contextlib.suppress(WeftError):
        record = PlanRecord.load(folder)
        plans += [record.first, *(change.plan for change in record.changes)]
    return frozenset(name for plan in plans for name in plan.fleet.names)


def newest_for(run: Run, command: msg.GetCopies, among: Collection[str]) -> Copy | None:
    """The newest copy of a run's network, or of its peers' networks, among the nodes."""
    if run.own:
        return newest_of_peers(run.crew, command, {d: o.state for d, o in run.own.items()})
    return newest_copy(run.crew, command, run.graph, run.initial, among)


def newest_copy(
    crew: Crew,
    command: msg.GetCopies,
    graph: Graph,
    initial: Mapping[str, Tensor],
    among: Collection[str] = (),
) -> Copy | None:
    """The newest copy of the whole network among the nodes. What no layer reads is as in `initial`.

    Only devices `among` these are asked, if there are any: a member of another fleet file has no copy of
    the run, and could only make one up.
    """
    needed = graph.segment(0, len(graph.layers) - 1, with_loss=True).state
    held: dict[int, list[_Held]] = {}
    for device in crew.present:
        if among and device not in among:
            continue
        with contextlib.suppress(WeftError):  # it has none, or does not answer
            for step, part in _ask(crew, device, command).items():
                held.setdefault(step, []).append(part)
    for step in sorted(held, reverse=True):
        copy = _whole(step, held[step], needed)
        if copy is not None:
            return replace(copy, state={**initial, **copy.state})
    return None


def newest_of_peers(
    crew: Crew, command: msg.GetCopies, own: Mapping[str, Mapping[str, Tensor]]
) -> Copy | None:
    """The newest minibatch of which all peers have a copy, as a save has it: tensors under their devices'
    names. `own` are the weights that each peer begins with."""
    held: dict[int, dict[str, _Held]] = {}
    for device in own:
        with contextlib.suppress(WeftError):
            for step, part in _ask(crew, device, command).items():
                held.setdefault(step, {})[device] = part
    whole = [step for step, parts in held.items() if parts.keys() == own.keys()]
    if not whole:
        return None
    parts = held[max(whole)]
    state = {f"{d}/{n}": parts[d].state.get(n, t) for d in own for n, t in own[d].items()}
    memory = {f"{d}/{n}": t for d, part in parts.items() for n, t in part.memory.items()}
    losses = _losses(parts.values())
    means = {step: total / len(parts) for step, total in losses.items()}
    return Copy(max(whole) + 1, state, memory, means)


def _ask(crew: Crew, device: str, command: msg.GetCopies) -> dict[int, _Held]:
    copies: dict[int, _Held] = {}
    for piece in crew.ask(device, command, ASK_S):
        if isinstance(piece, msg.Kept) and piece.step >= 0:
            copies.setdefault(piece.step, _Held()).take(piece)
    return copies


def _whole(step: int, parts: Collection[_Held], needed: Mapping[str, Shape]) -> Copy | None:
    """The parts of a minibatch put together; None where something is missing. Parts of layers are not put
    together: whether all of a tensor is there could not be told."""
    if any(segment.picks for part in parts for segment in part.segments):
        return None
    state: State = {}
    memory: State = {}
    try:
        for part in parts:
            for segment in part.segments:
                place_state(segment, part.state, state)
                place_state(segment, part.memory, memory)
    except WeftError:
        return None
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    if any(shapes.get(name) != info.shape for name, info in needed.items()):
        return None
    return Copy(step + 1, state, memory, _losses(parts))


def _losses(parts: Collection[_Held]) -> dict[int, float]:
    """The sums of the devices' losses, of minibatches that all devices with losses remember."""
    told = [part.losses for part in parts if part.losses]
    steps = set.intersection(*(set(losses) for losses in told)) if told else set()
    return {step: sum(losses[step] for losses in told) for step in sorted(steps)}
