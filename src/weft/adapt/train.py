"""Training on a fleet that changes: the call behind `weft.train` and `weft train`.

result = weft.train(model, "mnist5k", nn.CrossEntropyLoss(), fleet=fleet, strategy="edgemove+",
                    steps=400, local=True, trace=Trace.load("moving.json", fleet))
result.events

It takes the arguments of `weft.runtime.run.train.train`. With `adapt` the run watches itself and asks its
strategy for a new plan when the step time leaves its band, or a device is lost. Strategies that are
made of online decisions (EdgeMove and its baselines) always do; `adapt=False` keeps their first plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from weft.adapt.conduct import Adaptive
from weft.adapt.policies import has_policy, policy_steering
from weft.adapt.replan import Replanning
from weft.adapt.steer import Steering
from weft.errors import InputError
from weft.plans.plan import Plan
from weft.runtime.run.feeds import Data
from weft.runtime.run.results import TrainResult
from weft.runtime.run.train import train as run
from weft.runtime.run.trainee import Loss

LONG = 3000  # minibatches of a run that has time for the papers' cycles


def train(
    model: nn.Module,
    data: Data,
    loss: Loss,
    *,
    strategy: str = "chain",
    options: Mapping[str, object] | None = None,
    adapt: bool | None = None,
    look_every: int | None = None,
    keep_every: int = 100,
    seed: int = 0,
    **given: Any,
) -> TrainResult:
    """`look_every` minibatches lie between two looks: small values follow a changing fleet faster and
    measure less well. By default a run of fewer than 3,000 minibatches shortens its policy's cycles in
    proportion. `keep_every` is how often weights are collected where only one device has them: what
    a loss throws the run back to."""
    if look_every is not None and look_every < 2:
        raise InputError(f"look_every {look_every} is not allowed; it must be at least 2")
    if keep_every < 1:
        raise InputError(f"keep_every {keep_every} is not allowed; it must be at least 1")
    conductor = None
    scale = min(1.0, given["steps"] / LONG) if "steps" in given else 1.0
    if adapt or (adapt is None and has_policy(strategy)):

        def steering(plan: Plan) -> Steering:
            if has_policy(strategy):
                return policy_steering(strategy, plan, options or {}, look_every, seed, scale)
            return Replanning(strategy, plan, options=options, every=look_every or 50)

        conductor = Adaptive(steering, keep_every=keep_every)
    return run(
        model,
        data,
        loss,
        strategy=strategy,
        options=options,
        seed=seed,
        conductor=conductor,
        **given,
    )
