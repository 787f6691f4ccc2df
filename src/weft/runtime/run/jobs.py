"""What each device is told of a plan: its part of the program and of the network, its roads, its pace."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from weft.fleet.trace import Trace
from weft.graph.network import Graph
from weft.graph.norms import synced_segment
from weft.graph.optimizers.optimizer import Optimizer
from weft.graph.optimizers.user_schedule import Timetable
from weft.plans.plan import Plan
from weft.program.cost import compute_seconds
from weft.program.instructions import Forward, Update
from weft.program.lower.swarm_units import swarm_segment
from weft.program.program import Program
from weft.program.segments import turn_segment
from weft.runtime.emulate.changes import changes_of
from weft.runtime.emulate.local import LocalFleet
from weft.runtime.emulate.roads import Shaping, roads_of
from weft.runtime.run.radio import rules_of
from weft.runtime.run.workload.networks import Own
from weft.runtime.wire import messages as msg


@dataclass(frozen=True)
class Settings:
    """How a plan is run; the defaults are for real devices."""

    optimizer: Optimizer = field(default_factory=Optimizer)
    timetable: Timetable | None = None  # the optimizer's settings by minibatch, where they change
    seed: int = 0
    deadline_s: float = 30.0  # raise it where one step or one transfer may take longer
    patience_s: float = 1.0  # without a heartbeat until a device counts as lost
    shaping: Shaping = "none"
    paced: frozenset[str] = frozenset()  # devices made as slow as the plan's profile says
    scratch: Path | None = None  # for the clocks of shared media
    machines: LocalFleet | None = None  # the processes of an emulated fleet
    trace: Trace | None = None  # emulated: how the fleet changes
    trace_start: float = math.inf  # when its time 0 is, on the machine's clock
    data: str | None = None  # a set of weft.data that the source device has; None: fed from here
    same_clock: bool = False  # all nodes on this machine
    record: bool = True
    keep_every: tuple[int, ...] = ()  # minibatches between copies of all that devices know
    go_back_every: int = 0  # and between those that the run goes back to; 0: none
    lineage: str = ""  # the same for a run and for a run that resumes it
    heir: str = ""  # the digest of the secret that only a run that resumes it knows


def data_of(plan: Plan, settings: Settings, device: str) -> msg.Data:
    """Where a device gets the samples that it loads."""
    data = msg.Data(name=settings.data, seed=settings.seed)
    if not plan.owners or device not in plan.sources:
        return data
    return msgspec.structs.replace(
        data,
        shares=tuple(owner.samples for owner in plan.owners),
        owner=plan.sources.index(device),
        first=plan.owned_by(device)[0],
    )


def job_of(
    run: str,
    program: Program,
    graph: Graph,
    settings: Settings,
    device: str,
    everyone: tuple[str, ...],
    own: Own | None = None,
) -> msg.Job:
    """The job of one device; `own` where it has a network of its own."""
    plan = program.plan
    graph = graph if own is None else own.graph
    last = len(graph.layers) - 1
    training = plan.mode == "train"
    code = program.code.get(device, ())
    spans = {(i.layers, 0) for i in code if isinstance(i, Update)}
    layers = sorted(spans | {(i.layers, i.part) for i in code if isinstance(i, Forward)})
    rounds = {r.layers: r for r in plan.rounds}
    synced = dict(plan.norms)
    kept = ((plan.swarm.every,) if plan.swarm else ()) + settings.keep_every
    segments = tuple(
        swarm_segment(graph, plan, device, span[0])
        if plan.swarm
        else turn_segment(graph, rounds[span], part)
        if part
        else synced_segment(graph, *span, with_loss=training and span[1] == last)
        if span[0] in synced
        else graph.segment(*span, with_loss=training and span[1] == last)
        for span, part in layers
    )
    return msg.Job(
        run=run,
        version=plan.version,
        mode=plan.mode,
        batch=plan.batch,
        layers=last + 1,
        code=code,
        segments=segments,
        inputs=tuple(graph.inputs),
        optimizer=settings.optimizer,
        roads=roads_of(
            plan.fleet,
            device,
            everyone,
            shaping=settings.shaping,
            cut_through=plan.route == "min",
            scratch=settings.scratch,
            best_effort=plan.swarm is not None,
        ),
        seed=settings.seed,
        pace=tuple(compute_seconds(plan.profile, device, i) for i in code)
        if device in settings.paced
        else (),
        changes=changes_of(settings.trace, plan.fleet, device, plan.source, settings.trace_start)
        if settings.trace is not None
        else None,
        deadline_s=settings.deadline_s,
        data=data_of(plan, settings, device) if own is None else own.data,
        groups={} if own is None or not code else dict(own.groups),
        tail=plan.peers.tail if plan.peers else 1,
        record=settings.record,
        radio=rules_of(plan, plan.fleet, emulated=settings.same_clock),
        keep_every=kept if training else (),
        go_back_every=settings.go_back_every if training else 0,
        lineage=settings.lineage,
        heir=settings.heir,
    )
