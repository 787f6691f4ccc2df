"""Makes the task that a strategy gets.

    task = ask("lenet5", fleet, batch=64)          # a network by name
    task = make_task(profile, fleet, batch=64)     # from a profile

Torch is imported only if a network is loaded: planning from a profile does not need it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from weft.errors import InputError
from weft.fleet.fleet import Fleet
from weft.fleet.owners import owners_of
from weft.graph.capture.cache import graph_key, load_graph, store_graph
from weft.graph.network import Graph
from weft.planning.norms import enough_for_norms, has_narrow_norm
from weft.plans.derive import derive_profile
from weft.plans.plan import Mode, Objective, Plan
from weft.plans.profile import Profile
from weft.plans.task import Task
from weft.simulate.objective import check_objective
from weft.simulate.price import candidate_worth

BATCH: dict[Mode, int] = {"train": 32, "infer": 1}  # used if the user gives none
LARGEST_BATCH = 1_000_000  # searches count samples one by one


def ask(
    text: str,
    fleet: Fleet,
    *,
    batch: int | None = None,
    mode: Mode = "train",
    profile: Profile | None = None,
    options: Mapping[str, object] | None = None,
    input_shape: Sequence[int] | None = None,
    classes: int | None = None,
    objective: Objective = "time",
) -> Task:
    """The task for a network by name. With a profile the name is only a label."""
    if profile is not None:
        named = msgspec.structs.replace(profile, model=text)
        return make_task(named, fleet, batch=batch, mode=mode, options=options, objective=objective)
    graph = named_graph(text, input_shape, classes, mode)
    derived = derive_profile(graph, fleet)
    return make_task(
        derived, fleet, batch=batch, mode=mode, options=options, graph=graph, objective=objective
    )


def named_graph(
    text: str,
    input_shape: Sequence[int] | None = None,
    classes: int | None = None,
    mode: Mode = "train",
) -> Graph:
    """A network's graph by its name. A zoo network's graph is kept for the next command, since it is the same
    in both modes."""
    key = graph_key(text, input_shape, classes)
    graph = load_graph(key) if key is not None else None
    if graph is None:
        from weft.graph.capture.module import capture
        from weft.zoo.loading import load, short_name

        module, example = load(text, input_shape, classes, weights=False)
        graph = capture(module, example, name=short_name(text), mode=None if key else mode)
        if key is not None:
            store_graph(key, graph)
    return graph


def make_task(
    profile: Profile,
    fleet: Fleet,
    *,
    batch: int | None = None,
    mode: Mode = "train",
    options: Mapping[str, object] | None = None,
    graph: Graph | None = None,
    source: str | None = None,
    optimizer: str = "sgd",
    objective: Objective = "time",
) -> Task:
    """The task from a profile. A plan that does not fit into memory has an infinite price."""
    check_objective(fleet, objective)
    batch = BATCH[mode] if batch is None else batch
    if batch < 1:
        raise InputError(f"batch {batch} is not allowed; it must be at least 1")
    if batch > LARGEST_BATCH:
        raise InputError(f"batch {batch} is not allowed; it must be at most {LARGEST_BATCH}")
    source = fleet.data_device() if source is None else source
    shared = mode == "train" and source == fleet.data_device()
    return Task(
        profile=profile,
        fleet=fleet,
        batch=batch,
        mode=mode,
        source=source,
        price=partial(
            seconds, graph=graph if has_narrow_norm(graph) else None, objective=objective
        ),
        objective=objective,
        simulated=True,
        options={key: str(value) for key, value in (options or {}).items()},
        graph=graph,
        optimizer=optimizer,
        owners=owners_of(fleet, batch) if shared else (),
    )


def seconds(candidate: Plan, graph: Graph | None = None, objective: Objective = "time") -> float:
    """Seconds per step or answer, by the simulator, or what else the objective counts. Infinite if the plan
    cannot be run: a device lacks the memory, or a norm has too few values."""
    if not enough_for_norms(candidate, graph):
        return math.inf
    return candidate_worth(candidate, objective)
