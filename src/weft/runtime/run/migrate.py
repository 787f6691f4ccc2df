"""A live change of plan: between two minibatches, moving only what changes hands.

    move = change_over(run, new_plan)                  # nothing is in flight when this is called
    move = migrate(run, new_plan, gone={"edge1"})      # a holder is gone, and others hold all it held
    move = go_back(run, new_plan, copy, gone)          # all weights become those of an earlier minibatch

Devices that keep layers keep their weights and optimizer memory where they are. What changes hands goes from
its holder over this machine to its new place; where links are emulated, the time that it would take from
holder to holder is waited for. The units of a swarm and the networks of peers are handed out again: what
changes hands there are parts of layers, or means of what several have.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
from torch import Tensor

from weft.errors import LostDevice, WeftError
from weft.graph.network import Graph
from weft.graph.optimizers.versions import VERSION
from weft.graph.split.state import sliced_memory, sliced_state
from weft.plans.plan import Plan
from weft.program.instructions import Forward, Instruction, Update
from weft.program.lower.lower import lower
from weft.runtime.run.dispatch import Dispatch, State
from weft.runtime.run.workload.peer_networks import newcomer_state
from weft.runtime.wire import messages as msg

if TYPE_CHECKING:
    from weft.runtime.run.records.copies import Copy

ANSWER_S = 6.0  # a device that is at work on one instruction finishes it first
Names = frozenset[str]


class NobodyHolds(WeftError):
    """Weights were lost with the device that held them."""


@dataclass(frozen=True)
class Move:
    """What a change of plan moved."""

    bytes: int = 0  # that changed hands
    seconds: float = 0.0
    back_to: int | None = None  # the minibatch to go on with, where weights came from a copy
    taken: dict[str, tuple[str, ...]] = field(default_factory=dict)  # device -> from whom


def held_names(graph: Graph, code: Iterable[Instruction]) -> Names:
    """The weights and buffers that a device holds for its part of a program."""
    last = len(graph.layers) - 1
    names: set[str] = set()
    for first, end in {i.layers for i in code if isinstance(i, Forward | Update)}:
        names |= graph.segment(first, end, with_loss=end == last).state.keys()
    return frozenset(names)


def next_version(run: Dispatch, plan: Plan) -> Plan:
    """The plan with the version after the one that runs."""
    return msgspec.structs.replace(plan, version=run.plan.version + 1)


def change_over(run: Dispatch, plan: Plan) -> Move:
    """Takes a run to another plan while all devices are there."""
    if run.own:
        return _regroup(run, plan)
    return _hand_out_units(run, plan) if run.plan.swarm is not None else migrate(run, plan)


def _hand_out_units(run: Dispatch, plan: Plan) -> Move:
    """A swarm: every device gets the units that it has under the other plan."""
    begin = time.monotonic()
    state, memory = run.collect()
    before = run.plan.source
    run.adopt(next_version(run, plan))
    if run.plan.source != before:
        run.feed_from_here()
    run.initial = state
    run.prepare(memory)
    return Move(_bytes(state) + _bytes(memory), time.monotonic() - begin)


def _regroup(run: Dispatch, plan: Plan) -> Move:
    """Peers: each keeps its own network, and one that had no part gets the means of the others."""
    begin = time.monotonic()
    peers = run.working
    states = {d: state for d, (state, _) in run.states(peers).items()}
    run.adopt(next_version(run, plan))
    moved = welcome(run, [d for d in run.working if d not in peers], states)
    return Move(moved, time.monotonic() - begin)


def welcome(run: Dispatch, newcomers: Iterable[str], states: Mapping[str, State]) -> int:
    """Hands out the jobs of the plan, and to peers that had no part what the others have learned; returns
    how many bytes these got."""
    jobs = run.assign()
    moved = 0
    for device in newcomers:
        names = {n for segment in jobs[device].segments for n in segment.state}
        state = newcomer_state(device, run.own, states)
        mine = {n: t for n, t in state.items() if n in names}
        run.ship(device, mine, optimizer=False)
        moved += _bytes(mine)
    run.build()
    return moved


def migrate(run: Dispatch, plan: Plan, *, gone: Iterable[str] = ()) -> Move:
    """Takes a run to another plan. `gone` are devices that cannot be asked any more."""
    begin = time.monotonic()
    away = set(gone)
    held = {d: held_names(run.graph, run.program.code.get(d, ())) for d in _by_rank(run.plan)}
    plan = next_version(run, plan)
    needed = {d: held_names(run.graph, body) for d, body in lower(plan).code.items()}
    lost: LostDevice | None = None  # meanwhile
    while True:
        alive = {d: names for d, names in held.items() if d not in away}
        wanted = {d: names - alive.get(d, frozenset()) for d, names in needed.items()}
        try:
            sources = _sources(wanted, alive)
            pieces = {d: _fetch(run, d, names) for d, names in sources.items()}
            break
        except LostDevice as error:
            away.add(error.device)
            lost = error
        except NobodyHolds:
            if lost is None or gone:  # a recovery knows another way
                raise
            raise lost from None  # the run recovers from that
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


def go_back(run: Dispatch, plan: Plan, copy: Copy, gone: Iterable[str]) -> Move:
    """All weights become those before minibatch `copy.step`, under another plan.

    A device goes back to the copy that it keeps itself. What it needs beyond that comes from the copy
    here, as does everything for a device that keeps none.
    """
    begin = time.monotonic()
    code = {d: run.program.code.get(d, ()) for d in run.devices}
    held = {d: held_names(run.graph, body) for d, body in code.items()}
    # Who only stands by has no versions of weights that minibatches in flight have met.
    met = {d: held_names(run.graph, (i for i in code[d] if isinstance(i, Forward))) for d in code}
    went_back = _go_back_alone(run, copy.step, set(gone))
    others = {d: msg.End(run.run_id) for d in run.everyone if d not in went_back}
    run.tell(others, ANSWER_S)  # what they hold is of another minibatch
    run.adopt(next_version(run, plan))
    moved = 0
    taken: dict[str, tuple[str, ...]] = {}
    for device, job in run.assign().items():
        has, has_met = (
            names.get(device, frozenset()) if device in went_back else frozenset()
            for names in (held, met)
        )
        weights: State = {}
        memory: State = {}
        for segment in job.segments:
            weights |= {n: t for n, t in sliced_state(segment, copy.state).items() if n not in has}
            for full, tensor in sliced_memory(segment, copy.memory).items():
                name, _, what = full.rpartition("/")
                if name not in (has_met if what.startswith(VERSION) else has):
                    memory[full] = tensor
        run.ship(device, weights, optimizer=False)
        run.ship(device, memory, optimizer=True)
        moved += _bytes(weights) + _bytes(memory)
        if weights:
            taken[device] = ("copy",)
    run.build()
    return Move(moved, time.monotonic() - begin, copy.step, taken)


def _go_back_alone(run: Dispatch, step: int, gone: set[str]) -> set[str]:
    """Asks every device for its own copy; returns those that have taken it up again."""
    went_back = set()
    for device in run.devices:
        if device in gone or device not in run.crew.present:
            continue
        with contextlib.suppress(WeftError):  # it keeps none: it gets all from here
            run.crew.ask(device, msg.GoBack(run.run_id, step - 1), ANSWER_S)
            went_back.add(device)
    return went_back


def _by_rank(plan: Plan) -> tuple[str, ...]:
    """Who is asked first for what several hold: those who compute, then those who stand by."""
    return tuple(dict.fromkeys([s.device for s in (*plan.shards, *plan.standby)]))


def _sources(wanted: Mapping[str, Names], held: Mapping[str, Names]) -> dict[str, Names]:
    """Whom to ask for which names; NobodyHolds where somebody needs what nobody has."""
    left = set().union(*wanted.values()) if wanted else set()
    found: dict[str, Names] = {}
    for device, names in held.items():
        mine = frozenset(names & left)
        if mine:
            found[device] = mine
            left -= mine
    if left:
        raise NobodyHolds(f"nobody holds {', '.join(sorted(left)[:3])} any more")
    return found


def _fetch(run: Dispatch, device: str, names: Names) -> tuple[State, State]:
    state, memory = run.states([device], names)[device]
    if state.keys() != names:
        raise LostDevice(device, f"{device} no longer has all of its weights")
    return state, memory


def _pay_the_way(
    run: Dispatch,
    wanted: Mapping[str, Names],
    sources: Mapping[str, Names],
    pieces: Mapping[str, tuple[State, State]],
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
