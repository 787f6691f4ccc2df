"""What the command line and `import weft` offer for planning: load, plan, compare.

    module, example = load_model("lenet5")
    plan(module, example, Fleet.load("fleet.toml"), strategy="chain", batch=64)

Nothing here imports torch before a network is touched: planning from a profile needs none.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from weft.errors import InputError, WeftError
from weft.fleet.fleet import Fleet
from weft.fleet.parse import dump_fleet, parse_fleet
from weft.graph.network import Graph
from weft.plans import registry
from weft.plans.derive import (
    check_profile,
    derive_profile,
    derive_times,
    graph_profile,
    layer_costs,
    measured_times,
)
from weft.plans.plan import Mode, Plan
from weft.plans.profile import DeviceTimes, Profile
from weft.plans.task import Task
from weft.program.lower.lower import lower
from weft.program.timeline import Timeline
from weft.program.validate import check_flow, validate
from weft.simulate.price import candidate_seconds, price_of
from weft.simulate.simulate import simulate

if TYPE_CHECKING:
    from torch import Tensor, nn

    from weft.zoo.loading import Example

BATCH: dict[Mode, int] = {"train": 32, "infer": 1}  # where the user gives none


class Row(Struct, frozen=True):
    """One line of a comparison: what a strategy's plan would take, or why it has none."""

    strategy: str
    mode: Mode
    seconds: float | None = None  # per step, or until the answer
    speedup: float | None = None  # over the slowest possible row of the comparison
    devices: tuple[str, ...] = ()
    why_not: str | None = None

    @property
    def valid(self) -> bool:
        return self.why_not is None


def load_model(
    text: str,
    input_shape: Sequence[int] | None = None,
    classes: int | None = None,
    *,
    weights: bool = True,
) -> tuple[nn.Module, Example]:
    """A network by its zoo name or `file.py:factory`, and an example of its input.

    `weights=False` leaves a zoo network's weights out: enough to plan, and much faster.
    """
    from weft.zoo.loading import load

    return load(text, input_shape, classes, weights=weights)


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
) -> Task:
    """The task for a network by name. With a profile the name is only a label."""
    if profile is not None:
        named = msgspec.structs.replace(profile, model=text)
        return make_task(named, fleet, batch=batch, mode=mode, options=options)
    from weft.graph.capture import capture
    from weft.zoo.loading import short_name

    module, example = load_model(text, input_shape, classes, weights=False)
    graph = capture(module, example, name=short_name(text))
    derived = derive_profile(graph, fleet)
    return make_task(derived, fleet, batch=batch, mode=mode, options=options, graph=graph)


def profile_model(
    text: str,
    *,
    device: str,
    batch: int = 32,
    gflops: float | None = None,
    input_shape: Sequence[int] | None = None,
    classes: int | None = None,
) -> Profile:
    """A network's costs: its times measured on this machine, or derived from `gflops`."""
    if batch < 1:
        raise InputError(f"batch {batch} is not allowed; it must be at least 1")
    if gflops is not None and not (math.isfinite(gflops) and gflops > 0):
        raise InputError(f"gflops {gflops} is not allowed; it must be a number above 0")
    from weft.graph.capture import capture
    from weft.zoo.loading import short_name

    module, example = load_model(text, input_shape, classes, weights=gflops is None)
    graph = capture(module, example, name=short_name(text))
    if gflops is not None:
        times = derive_times(layer_costs(graph), gflops)
    else:
        times = measure_here(module, graph, batch=batch)
    return graph_profile(graph, {device: times})


def joined(known: Profile, new: Profile) -> Profile:
    """One profile with the devices of both; a device in both is taken from the new one."""
    if known.layers != new.layers:
        raise InputError(
            f"the profile of {known.model} ({len(known.layers)} layers) is of another network than "
            f"{new.model} ({len(new.layers)} layers): their layers differ"
        )
    return msgspec.structs.replace(new, devices={**known.devices, **new.devices})


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
) -> Task:
    """What a strategy is asked. To it, a plan that does not fit costs infinitely much."""
    batch = BATCH[mode] if batch is None else batch
    if batch < 1:
        raise InputError(f"batch {batch} is not allowed; it must be at least 1")

    return Task(
        profile=profile,
        fleet=fleet,
        batch=batch,
        mode=mode,
        source=fleet.data_device() if source is None else source,
        price=candidate_seconds,
        options={key: str(value) for key, value in (options or {}).items()},
        graph=graph,
        optimizer=optimizer,
    )


def decide(strategy: str, task: Task) -> Plan:
    """The strategy's plan with its price; WeftError where the fleet lacks the memory for it."""
    found = registry.make_plan(strategy, task)
    program = lower(found)
    validate(program)
    return msgspec.structs.replace(found, predicted=price_of(program))


def plan(
    model: nn.Module,
    example_input: Tensor | Sequence[Tensor],
    fleet: Fleet,
    *,
    strategy: str = "chain",
    batch: int | None = None,
    mode: Mode | None = None,
    profile: Profile | None = None,
    options: Mapping[str, object] | None = None,
    name: str = "",
    source: str | None = None,
    optimizer: str = "sgd",
) -> Plan:
    """Decide how to split a network over a fleet, and what that will cost.

    `example_input` has its samples along dimension 0; `batch` (32 to train, 1 to infer, where not
    given) is what the plan is for. `profile` holds measured times; without it they are derived from
    the fleet's gflops. `options` are the strategy's own, as after `--set`. `source` is the device
    with the data, where it is not the one that the fleet file names.
    """
    from weft.graph.capture import capture

    graph = capture(model, example_input, name=name)
    task = make_task(
        derive_profile(graph, fleet) if profile is None else profile,
        fleet,
        batch=batch,
        mode=mode or registry.get(strategy).modes[0],
        options=options,
        graph=graph,
        source=source,
        optimizer=optimizer,
    )
    return decide(strategy, task)


def compare(task: Task, strategies: Iterable[str] | None = None) -> list[Row]:
    """Plans and prices several strategies (all for the mode): best first, impossible ones last.

    Speedups are over the slowest possible row. Every strategy gets those of the task's options that
    it knows; one that none of them knows is an InputError.
    """
    names = list(dict.fromkeys(registry.names() if strategies is None else strategies))
    chosen = [registry.get(name) for name in names]
    if strategies is None:
        chosen = [strategy for strategy in chosen if task.mode in strategy.modes]
    for key, value in task.options.items():
        known = sorted({k for strategy in chosen for k in strategy.options})
        if key not in known:
            raise InputError(
                f"--set {key}={value}: none of the compared strategies has an option {key!r}; "
                f"they have: {', '.join(known)}"
            )
    rows = [try_strategy(strategy, task) for strategy in chosen]
    slowest = max((row.seconds for row in rows if row.seconds is not None), default=0.0)
    return sorted((with_speedup(row, slowest) for row in rows), key=rank)


def try_strategy(strategy: registry.Strategy, task: Task) -> Row:
    options = {key: value for key, value in task.options.items() if key in strategy.options}
    own = dataclasses.replace(task, options=options)
    try:
        found = decide(strategy.name, own)
    except WeftError as error:
        return Row(strategy.name, task.mode, why_not=str(error))
    assert found.predicted is not None
    return Row(strategy.name, task.mode, found.predicted.seconds, devices=found.devices)


def with_speedup(row: Row, slowest: float) -> Row:
    if row.seconds is None:
        return row
    speedup = slowest / row.seconds if row.seconds else 1.0
    return Row(row.strategy, row.mode, row.seconds, speedup, row.devices)


def rank(row: Row) -> float:
    return math.inf if row.seconds is None else row.seconds


def simulate_plan(path: str | Path, steps: int = 6) -> tuple[Plan, Timeline]:
    """A plan file and its predicted timeline. A file may be written by hand, so it is checked."""
    if steps < 1:
        raise InputError(f"steps {steps} is not allowed; it must be at least 1")
    found = Plan.load(path)
    where = f"plan file {path}"
    check_profile(found.profile, found.fleet, where)
    # A fleet inside a plan is held to what a fleet file is held to.
    parse_fleet(dump_fleet(found.fleet), f"{where}, fleet")
    for device in found.devices:
        found.fleet.device(device)
    program = lower(found)
    check_flow(program)
    return found, simulate(program, steps)


def measure_here(model: nn.Module, graph: Graph, *, batch: int, repeats: int = 7) -> DeviceTimes:
    """A network's times on this machine, by CPU time of one thread."""
    from weft.graph.capture import state_of
    from weft.graph.measure import measure

    return measured_times(measure(graph, state_of(model), batch=batch, repeats=repeats))
