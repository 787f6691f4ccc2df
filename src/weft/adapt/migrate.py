"""A live change of plan: between two minibatches, moving only what changes hands.

    move = migrate(run, new_plan)                      # nothing is in flight when this is called
    move = migrate(run, new_plan, gone={"edge1"})      # recovery: the same, with a holder gone

Devices that keep layers keep their weights and optimizer memory where they are. What changes hands
goes from its holder over the coordinator to its new place; where links are emulated the way from
holder to holder is paid in time. What no survivor holds comes from what was last collected; then all
weights go back to that moment, since layers of different moments do not belong together.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec
from safetensors.torch import load as load_safetensors
from torch import Tensor

from weft.errors import LostDevice, WeftError
from weft.graph.network import Graph
from weft.plans.plan import Plan
from weft.program.instructions import Forward, Instruction, Update
from weft.program.lower.lower import lower
from weft.runtime.run.coordinator import Coordinator
from weft.runtime.wire import messages as msg

FETCH_S = 5.0  # for a holder to answer, besides the time that its bytes take
BYTES_PER_S = 1e6  # at the very least


@dataclass(frozen=True)
class Saved:
    """All weights and the optimizer's memory as they were before minibatch `step`."""

    step: int
    state: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]


@dataclass(frozen=True)
class Move:
    """What a change of plan moved."""

    bytes: int = 0  # that changed hands
    seconds: float = 0.0
    back_to: int | None = (
        None  # the minibatch to go on with, where weights had to come from `Saved`
    )
    taken: dict[str, tuple[str, ...]] = field(default_factory=dict)  # device -> from whom


def held_names(graph: Graph, code: Iterable[Instruction]) -> frozenset[str]:
    """The weights and buffers that a device holds for its part of a program."""
    last = len(graph.layers) - 1
    names: set[str] = set()
    for first, end in {i.layers for i in code if isinstance(i, Forward | Update)}:
        names |= graph.segment(first, end, with_loss=end == last).state.keys()
    return frozenset(names)


def migrate(
    run: Coordinator, plan: Plan, *, gone: Iterable[str] = (), saved: Saved | None = None
) -> Move:
    """Takes a run to another plan. `gone` are devices that cannot be asked any more."""
    begin = time.monotonic()
    away = set(gone)
    before = run.plan
    held = {d: held_names(run.graph, run.program.code.get(d, ())) for d in _by_rank(before)}
    plan = msgspec.structs.replace(plan, version=before.version + 1)
    code = lower(plan).code
    needed = {d: held_names(run.graph, body) for d, body in code.items()}
    while True:
        alive = {d: names for d, names in held.items() if d not in away}
        wanted = {d: names - alive.get(d, frozenset()) for d, names in needed.items()}
        sources = _sources(wanted, alive)
        if sources is None:
            run.adopt(plan)
            return _go_back(run, needed, saved, begin)
        try:
            pieces = {d: _fetch(run, d, names) for d, names in sources.items()}
            break
        except LostDevice as error:
            away.add(error.device)
    _pay_the_way(run, wanted, sources, pieces)
    run.adopt(plan)
    run.assign()
    moved = 0
    for device, names in wanted.items():
        for holder, (state, memory) in pieces.items():
            mine = {n: t for n, t in state.items() if n in names and n in sources[holder]}
            own = {k: t for k, t in memory.items() if k.rpartition("/")[0] in mine}
            run.ship(device, mine, optimizer=False)
            run.ship(device, own, optimizer=True)
            moved += _bytes(mine) + _bytes(own)
    run.build()
    taken = {
        d: tuple(h for h in sources if sources[h] & names) for d, names in wanted.items() if names
    }
    return Move(moved, time.monotonic() - begin, None, taken)


def _by_rank(plan: Plan) -> tuple[str, ...]:
    """Who is asked first for what several hold: those who compute, then those who stand by."""
    return tuple(dict.fromkeys([s.device for s in (*plan.shards, *plan.standby)]))


def _sources(
    wanted: Mapping[str, frozenset[str]], held: Mapping[str, frozenset[str]]
) -> dict[str, frozenset[str]] | None:
    """Whom to ask for which names; None where somebody needs what nobody has."""
    left = set().union(*wanted.values()) if wanted else set()
    found: dict[str, frozenset[str]] = {}
    for device, names in held.items():
        mine = frozenset(names & left)
        if mine:
            found[device] = mine
            left -= mine
    return None if left else found


def _fetch(
    run: Coordinator, device: str, names: frozenset[str]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    size = sum(run.graph.state[n].bytes for n in names)
    replies = run.crew.ask(
        device, msg.GetState(run.run, tuple(sorted(names))), FETCH_S + 4 * size / BYTES_PER_S
    )
    state: dict[str, Tensor] = {}
    memory: dict[str, Tensor] = {}
    for piece in replies:
        assert isinstance(piece, msg.StatePiece)
        (memory if piece.optimizer else state).update(load_safetensors(piece.data))
    if state.keys() != names:
        raise LostDevice(device, f"{device} no longer has all of its weights")
    return state, memory


def _go_back(
    run: Coordinator, needed: Mapping[str, frozenset[str]], saved: Saved | None, begin: float
) -> Move:
    """All weights from the last collection: every device begins anew."""
    if saved is None:
        raise WeftError(
            "weights were lost with the device that held them, and nothing had been collected; "
            "give a standby (--set standby=auto) or --save-every"
        )
    run.release()
    run.assign()
    moved = 0
    for device, names in needed.items():
        mine = {n: saved.state[n] for n in names}
        own = {k: t for k, t in saved.optimizer.items() if k.rpartition("/")[0] in names}
        run.ship(device, mine, optimizer=False)
        run.ship(device, own, optimizer=True)
        moved += _bytes(mine) + _bytes(own)
    run.build()
    return Move(moved, time.monotonic() - begin, saved.step, {d: ("collection",) for d in needed})


def _pay_the_way(
    run: Coordinator,
    wanted: Mapping[str, frozenset[str]],
    sources: Mapping[str, frozenset[str]],
    pieces: Mapping[str, tuple[dict[str, Tensor], dict[str, Tensor]]],
) -> None:
    """Weights go beside emulated links: wait as long as they would take from holder to holder."""
    settings = run.settings
    if settings.shaping != "fabric":
        return
    fleet = run.plan.fleet
    if settings.trace is not None:
        fleet = settings.trace.fleet(fleet, time.monotonic() - settings.trace_start)
    longest = 0.0
    for device, names in wanted.items():
        for holder, (state, memory) in pieces.items():
            size = _bytes({n: t for n, t in state.items() if n in names & sources[holder]})
            size += _bytes({k: t for k, t in memory.items() if k.rpartition("/")[0] in names})
            if size and holder in fleet.names and fleet.connected(holder, device):
                way = size / fleet.path_rate(holder, device) + fleet.path_latency(holder, device)
                longest = max(longest, way)
    time.sleep(longest)


def _bytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())
