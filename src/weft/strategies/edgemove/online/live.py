"""The policies of EdgeMove and its baselines for a live run.

    online = registry.get("edgemove+").make_online(OnlineRequest(plan, options={"in_flight": 2}))

A policy's costs are those of one server, the reference. Measurements of other servers are multiples of
it. `every` or `scale` shorten the papers' cycles, because a live run has hundreds of minibatches and the
papers have ten thousands. A layer-by-layer profile is shortened in the same way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast, get_args

from weft.codecs.registry import CODECS, CodecName
from weft.errors import InputError
from weft.fleet.fleet import Tier
from weft.plans.online import Labels, Online, OnlineRequest, Policy, Setting
from weft.plans.plan import Plan
from weft.plans.split import plan_for
from weft.program.memory import fits
from weft.strategies.edgemove.model import SplitCosts, split_costs
from weft.strategies.edgemove.online.baselines import PROFILED, DeviceCloud, PipeDreamE
from weft.strategies.edgemove.online.edgemove import EdgeMove
from weft.strategies.edgemove.online.plus import EdgeMovePlus

CYCLE = 500  # minibatches of the paper's training cycle
LEAST_LOOKED = 10  # minibatches between two decisions: the mean of fewer is too noisy


def edgemove(request: OnlineRequest) -> Online:
    """The policy of `edgemove` for a live run."""

    def policy(costs: SplitCosts, settings: dict[str, Any]) -> Policy:
        return EdgeMove(costs, seed=request.seed, codec=request.plan.codec, **settings)

    return _online(request, policy, ("edge",))


def edgemove_plus(request: OnlineRequest) -> Online:
    """The policy of `edgemove+` for a live run. Like the planner, it may use every machine in reach."""
    codecs: tuple[CodecName, ...] = (request.plan.codec,)
    if request.options.get("codecs") == "all":
        codecs = tuple(CODECS)

    def policy(costs: SplitCosts, settings: dict[str, Any]) -> Policy:
        return EdgeMovePlus(costs, codecs=codecs, **settings)

    return _online(request, policy, get_args(Tier))


def pipedream_e(request: OnlineRequest) -> Online:
    """The policy of `pipedream-e` for a live run."""
    seed = int(str(request.options.get("seed", request.seed)))

    def policy(costs: SplitCosts, settings: dict[str, Any]) -> Policy:
        return PipeDreamE(costs, seed=seed, codec=request.plan.codec, **settings)

    return _online(request, policy, ("edge",))


def device_cloud(request: OnlineRequest) -> Online:
    """The policy of `device-cloud` for a live run."""

    def policy(costs: SplitCosts, settings: dict[str, Any]) -> Policy:
        return DeviceCloud(costs, codec=request.plan.codec, **settings)

    return _online(request, policy, ("cloud",))


def _online(
    request: OnlineRequest,
    make: Callable[[SplitCosts, dict[str, Any]], Policy],
    tiers: tuple[Tier, ...],
) -> Online:
    plan, scale, labels = request.plan, request.scale, _labels(request)
    servers = [d.name for d in plan.fleet.devices if d.tier in tiers and d.name != plan.source]
    if not servers:
        raise InputError(
            f"strategy {plan.strategy} needs a device of tier {' or '.join(map(repr, tiers))} "
            "beside the source"
        )
    costs = split_costs(plan.profile, plan.source, servers[0], plan.batch, labels)
    settings: dict[str, Any] = {} if request.every is None else {"every": request.every}
    if "in_flight" in request.options:
        settings["in_flight"] = int(str(request.options["in_flight"]))
    if any(device.memory_mb is not None for device in plan.fleet.devices):
        settings["fits"] = functools.cache(functools.partial(_fits, plan, labels))
    policy = make(costs, settings)
    if request.every is None:
        policy.every = min(policy.every, max(LEAST_LOOKED, round(policy.every * scale)))
    else:
        scale = request.every / CYCLE
    return Online(
        policy,
        servers[0],
        standby=_standby(request),
        labels=labels,
        profiled=max(1, round(PROFILED * scale)),
    )


def _fits(plan: Plan, labels: Labels, setting: Setting) -> bool:
    """Whether client and worker have enough memory for a setting, counted as in planning."""
    return fits(plan_for(setting, plan, labels=labels))


def _labels(request: OnlineRequest) -> Labels:
    labels = str(request.options.get("labels", "worker"))
    if labels not in get_args(Labels):
        raise InputError(f"--set labels={labels} is not allowed; it must be worker or home")
    return cast(Labels, labels)


def _standby(request: OnlineRequest) -> str:
    standby = str(request.options.get("standby", "auto"))
    if standby not in ("auto", "none"):
        request.plan.fleet.device(standby)
    return standby
