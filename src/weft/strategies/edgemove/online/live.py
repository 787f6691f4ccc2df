"""The policies of EdgeMove and its baselines for a live run.

    online = registry.get("edgemove+").make_online(OnlineRequest(plan, options={"in_flight": 2}))

A policy's costs are those of one server, the reference; what is measured of the others is told in
multiples of it. `every` or `scale` shorten the papers' cycles: a live run has hundreds of minibatches
where they have ten thousands, and a layer-by-layer profile is shortened alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast, get_args

from weft.codecs.registry import CODECS, CodecName
from weft.errors import InputError
from weft.fleet.fleet import Tier
from weft.plans.online import Labels, Online, OnlineRequest, Policy
from weft.strategies.edgemove.model import SplitCosts, split_costs
from weft.strategies.edgemove.online.baselines import PROFILED, DeviceCloud, PipeDreamE
from weft.strategies.edgemove.online.edgemove import EdgeMove
from weft.strategies.edgemove.online.plus import EdgeMovePlus

CYCLE = 500  # minibatches of the paper's training cycle
LEAST_LOOKED = 10  # minibatches: fewer are measured badly


def edgemove(request: OnlineRequest) -> Online:
    def policy(costs: SplitCosts, given: dict[str, Any]) -> Policy:
        return EdgeMove(costs, seed=request.seed, **given)

    return _online(request, policy)


def edgemove_plus(request: OnlineRequest) -> Online:
    codecs: tuple[CodecName, ...] = ("none",)
    if request.options.get("codecs") == "all":
        codecs = tuple(CODECS)

    def policy(costs: SplitCosts, given: dict[str, Any]) -> Policy:
        return EdgeMovePlus(costs, codecs=codecs, **given)

    return _online(request, policy)


def pipedream_e(request: OnlineRequest) -> Online:
    seed = int(str(request.options.get("seed", request.seed)))

    def policy(costs: SplitCosts, given: dict[str, Any]) -> Policy:
        return PipeDreamE(costs, seed=seed, **given)

    return _online(request, policy)


def device_cloud(request: OnlineRequest) -> Online:
    def policy(costs: SplitCosts, given: dict[str, Any]) -> Policy:
        return DeviceCloud(costs, **given)

    return _online(request, policy, tier="cloud")


def _online(
    request: OnlineRequest,
    make: Callable[[SplitCosts, dict[str, Any]], Policy],
    tier: Tier = "edge",
) -> Online:
    plan, scale = request.plan, request.scale
    servers = [d.name for d in plan.fleet.devices if d.tier == tier and d.name != plan.source]
    if not servers:
        raise InputError(
            f"strategy {plan.strategy} needs a device of tier {tier!r} beside the source"
        )
    costs = split_costs(plan.profile, plan.source, servers[0], plan.batch).coded(plan.codec)
    given: dict[str, Any] = {} if request.every is None else {"every": request.every}
    if "in_flight" in request.options:
        given["in_flight"] = int(str(request.options["in_flight"]))
    policy = make(costs, given)
    if request.every is None:
        policy.every = min(policy.every, max(LEAST_LOOKED, round(policy.every * scale)))
    else:
        scale = request.every / CYCLE
    return Online(
        policy,
        servers[0],
        standby=_standby(request),
        labels=_labels(request),
        profiled=max(1, round(PROFILED * scale)),
    )


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
