"""What the plan and its price would be if the fleet were a little different.

    answer = what_if(plan, Change(rates={"pi-nuc": 0.5}, gone=("cloud",)), "chain", {})

The plan's own profile, fleet and strategy are used. The answer has two prices: of the plan as it is on the
changed fleet, and of the plan that the strategy would make for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from weft.errors import InputError, WeftError
from weft.fleet.fleet import Device, Fleet, Link, Medium
from weft.graph.network import Graph
from weft.planning.decide import decide
from weft.planning.fallback import plan_that_fits, within
from weft.planning.task import make_task, named_graph
from weft.plans import registry
from weft.plans.plan import Plan
from weft.plans.profile import Profile
from weft.simulate.price import candidate_worth
from weft.web.planned import plan_part, predicted_part

NO_NETWORK = (
    "a run's folder holds no network: strategies that need it were not asked, batch norms not seen"
)
LEAST, MOST = 0.01, 100.0  # factors that make sense


class Change(Struct, frozen=True, forbid_unknown_fields=True):
    """How the fleet would differ. Factors: 0.5 is half as fast."""

    rates: dict[str, float] = {}  # of links ("pi-nuc") and media, by name
    speeds: dict[str, float] = {}  # of devices
    gone: tuple[str, ...] = ()


def link_name(link: Link) -> str:
    """By what a link is known in a `Change`."""
    return "-".join(link.between)


def changed_fleet(fleet: Fleet, change: Change) -> Fleet:
    """The fleet as the change says. InputError if it names what the fleet does not have."""
    known = {*map(link_name, fleet.link), *(m.name for m in fleet.medium)}
    _check("link or medium", change.rates, known)
    _check("device", dict.fromkeys(change.gone, 1.0) | change.speeds, set(fleet.names))
    slower = Fleet(
        tuple(_device(device, change) for device in fleet.devices),
        tuple(_link(link, change.rates.get(link_name(link), 1.0)) for link in fleet.link),
        tuple(_medium(medium, change.rates.get(medium.name, 1.0)) for medium in fleet.medium),
    )
    return slower.within([name for name in fleet.names if name not in change.gone])


def changed_profile(profile: Profile, change: Change) -> Profile:
    """The profile of those who are left, each with its speed."""
    left = within(profile, frozenset(profile.devices) - {*change.gone})
    devices = {n: t.scaled(1 / change.speeds.get(n, 1.0)) for n, t in left.devices.items()}
    return msgspec.structs.replace(left, devices=devices)


def what_if(
    plan: Plan, change: Change, strategy: str, options: Mapping[str, str]
) -> dict[str, Any]:
    """The document that the page shows. Raises WeftError if no plan is possible."""
    if strategy not in (registry.AUTO, *registry.names()):
        raise InputError(
            f"{strategy} is not one of Weft's strategies: code that a folder names is not run here"
        )
    fleet, profile = changed_fleet(plan.fleet, change), changed_profile(plan.profile, change)
    for source in plan.sources:
        if source in change.gone:
            raise InputError(f"{source} has the data: without it there is nothing to compute")
    kept, why_not = _kept(plan, fleet, profile, change)
    graph = _graph(plan, strategy)
    task = make_task(
        profile, fleet, batch=plan.batch, mode=plan.mode, options=options, graph=graph,
        source=plan.source, optimizer=plan.optimizer,
    )  # fmt: skip
    if plan.mode == "train" and registry.get(strategy).replan:
        new, words = plan_that_fits(strategy, task, lambda _: None)
    else:
        new, words = decide(strategy, task), ""
    if strategy == registry.AUTO and graph is None:
        words = f"{words}; {NO_NETWORK}"
    return {
        "before_s": plan.predicted.seconds if plan.predicted else None,
        "kept_s": kept,
        "kept_why_not": why_not,
        "note": words.lstrip("; "),
        "plan": plan_part(new),
        "predicted": predicted_part(new),
    }


def _kept(
    plan: Plan, fleet: Fleet, profile: Profile, change: Change
) -> tuple[float | None, str | None]:
    """Seconds of the plan as it is on the changed fleet, or why it cannot go on."""
    needed = [name for name in change.gone if name in plan.devices]
    if needed:
        return None, f"it needs {', '.join(needed)}"
    try:
        seconds = candidate_worth(msgspec.structs.replace(plan, fleet=fleet, profile=profile))
    except WeftError as error:
        return None, str(error)
    return (seconds, None) if math.isfinite(seconds) else (None, "a device lacks the memory")


def _graph(plan: Plan, strategy: str) -> Graph | None:
    """The network, where the strategy needs it. A folder has none, so it must be one of the zoo's."""
    if strategy != registry.AUTO and "graph" not in registry.get(strategy).needs:
        return None
    from weft.zoo.models import names as zoo_names  # imports torch, which takes seconds

    if plan.model in zoo_names():
        graph = named_graph(plan.model)
        planned = [layer.param_bytes for layer in plan.profile.layers]
        if [graph.param_bytes(i) for i in range(len(graph.layers))] == planned:
            return graph
    if strategy == registry.AUTO:
        return None
    raise InputError(
        f"{strategy} plans with the network itself, which a run's folder does not hold; only networks of "
        f"`weft models` with their usual sizes can be planned again here"
    )


def _check(what: str, factors: Mapping[str, float], known: set[str]) -> None:
    for name, factor in factors.items():
        if name not in known:
            raise InputError(
                f"the fleet has no {what} {name!r}; there are {', '.join(sorted(known))}"
            )
        if not LEAST <= factor <= MOST:
            raise InputError(f"factor {factor} of {name} is not allowed; give {LEAST} to {MOST:g}")


def _device(device: Device, change: Change) -> Device:
    factor = change.speeds.get(device.name, 1.0)
    if device.gflops is None or factor == 1.0:
        return device
    return msgspec.structs.replace(device, gflops=device.gflops * factor)


def _link(link: Link, factor: float) -> Link:
    return msgspec.structs.replace(
        link, up_mbps=link.up_mbps * factor, down_mbps=link.down_mbps * factor
    )


def _medium(medium: Medium, factor: float) -> Medium:
    return msgspec.structs.replace(medium, mbps=medium.mbps * factor)
