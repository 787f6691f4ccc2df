"""Which strategies decide while they run, and how a live run asks them.

    steering = policy_steering("edgemove+", plan, options={"in_flight": 2}, every=20, seed=0)

The policies' costs are those of one server, the reference; what is measured of the others is told in
multiples of it. `every` or `scale` shorten the papers' cycles: a live run has hundreds of minibatches
where they have ten thousands, and a layer-by-layer profile is shortened alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from weft.adapt.steer import Labels, PolicySteering
from weft.codecs.registry import CODECS, CodecName
from weft.errors import InputError
from weft.plans.plan import Plan
from weft.strategies.edgemove.model import SplitCosts, split_costs
from weft.strategies.edgemove.online.baselines import PROFILED, DeviceCloud, PipeDreamE
from weft.strategies.edgemove.online.edgemove import EdgeMove
from weft.strategies.edgemove.online.plus import EdgeMovePlus
from weft.strategies.edgemove.online.policy import Policy

Kind = Literal["edgemove", "edgemove+", "pipedream-e", "device-cloud"]
NAMES: tuple[str, ...] = get_args(Kind)
CYCLE = 500  # minibatches of the paper's training cycle
LEAST_LOOKED = 10  # minibatches: fewer are measured badly


def has_policy(strategy: str) -> bool:
    return strategy in NAMES


def policy_steering(
    strategy: str,
    plan: Plan,
    options: Mapping[str, object],
    every: int | None,
    seed: int,
    scale: float = 1.0,
) -> PolicySteering:
    """Who steers a live run of one of the strategies above. Without `every` a cycle is the policy's
    own times `scale`."""
    tier = "cloud" if strategy == "device-cloud" else "edge"
    servers = [d.name for d in plan.fleet.devices if d.tier == tier and d.name != plan.source]
    if not servers:
        raise InputError(f"strategy {strategy} needs a device of tier {tier!r} beside the source")
    reference = servers[0]
    costs = split_costs(plan.profile, plan.source, reference, plan.batch).coded(plan.codec)
    policy = _policy(strategy, costs, options, every, seed)
    if every is None:
        policy.every = min(policy.every, max(LEAST_LOOKED, round(policy.every * scale)))
    else:
        scale = every / CYCLE
    labels = str(options.get("labels", "worker"))
    if labels not in get_args(Labels):
        raise InputError(f"--set labels={labels} is not allowed; it must be worker or home")
    standby = str(options.get("standby", "auto"))
    if standby not in ("auto", "none"):
        plan.fleet.device(standby)
    profiled = max(1, round(PROFILED * scale))
    return PolicySteering(
        policy, reference, standby=standby, labels="home" if labels == "home" else "worker",
        profiled=profiled,
    )  # fmt: skip


def _policy(
    strategy: str, costs: SplitCosts, options: Mapping[str, object], every: int | None, seed: int
) -> Policy:
    given: dict[str, Any] = {} if every is None else {"every": every}
    if "in_flight" in options:
        given["in_flight"] = int(str(options["in_flight"]))
    if strategy == "edgemove+":
        codecs: tuple[CodecName, ...] = ("none",)
        if options.get("codecs") == "all":
            codecs = tuple(CODECS)
        return EdgeMovePlus(costs, codecs=codecs, **given)
    if strategy == "device-cloud":
        return DeviceCloud(costs, **given)
    if strategy == "pipedream-e":
        return PipeDreamE(costs, seed=int(str(options.get("seed", seed))), **given)
    return EdgeMove(costs, seed=seed, **given)
