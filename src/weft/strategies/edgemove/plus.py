"""edgemove+: server, cut, minibatches in flight and codec chosen together, by the pipeline's exact period.

    weft plan vgg16 --fleet F.toml -s edgemove+ --set in_flight=2 --set codecs=all

Candidates are all machines that the client can reach, the cloud too, and the client alone. Among equally
fast choices the one with fewer minibatches in flight wins: it needs fewer versions of the weights, and
its gradients are newer.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from weft.codecs.registry import CODECS, CodecName
from weft.errors import InputError
from weft.plans import options
from weft.plans.plan import Plan
from weft.plans.strategy import strategy
from weft.plans.task import Task
from weft.program.memory import fits
from weft.strategies.common.costs import Costs
from weft.strategies.common.stages import layer_plan
from weft.strategies.edgemove.model import period
from weft.strategies.edgemove.strategy import (
    IN_FLIGHT,
    LIVE,
    ONLINE,
    cuts_of,
    cuttable,
    fits_split,
    fleet_stages,
    split_plan,
    workers,
)

MOST_IN_FLIGHT = 4  # up to 4, plain SGD needs no more iterations
CHOOSE_CODEC = {
    "codecs": "none | all: whether it may also choose a codec for activations and gradients"
}


class Choice(NamedTuple):
    """A choice. The fields are in the order of preference: faster, then fewer in flight."""

    seconds: float
    in_flight: int
    worker: str
    cut: int
    codec: CodecName


@strategy(
    "edgemove+",
    "server, cut and minibatches in flight chosen together",
    ("train",),
    {**IN_FLIGHT, **CHOOSE_CODEC},
    online=f"{LIVE}:edgemove_plus",
    **ONLINE,
)
def edgemove_plus(task: Task) -> Plan:
    """The plan whose server, cut, count in flight and codec have the shortest period."""
    choose = options.choice(task, "codecs", ("none", "all"), "none") == "all"
    if choose and "codec" in task.options:
        raise InputError(
            f"--set codec={task.options['codec']} says which codec, --set codecs=all leaves the choice to "
            "edgemove+; give one of them"
        )
    codecs: tuple[CodecName, ...] = tuple(CODECS) if choose else (options.codec(task),)
    cuttable(task, "edgemove+", may_stay_alone=True)
    best: Choice | None = None
    for codec in codecs:
        coded = dataclasses.replace(task, options={**task.options, "codec": codec})
        choice = best_split(coded, codec)
        # A codec changes the numbers that are trained with. Without a gain it is not used.
        if choice is not None and (best is None or choice.seconds < best.seconds):
            best = choice
    alone_s = Costs(task).total(task.source)
    decisions = {"worker": None, "cut": len(task.profile.layers), "in_flight": 1}
    whole = [task.source] * len(task.profile.layers)
    alone = layer_plan(task, "edgemove+", whole, decisions={**decisions, "model_s": alone_s})
    if best is None or (best.seconds >= alone_s and fits(alone)):
        return alone
    coded = dataclasses.replace(task, options={**task.options, "codec": best.codec})
    plan = split_plan(coded, "edgemove+", Costs(coded), best.worker, best.cut, best.in_flight)
    return plan.deciding(codec=best.codec)


def best_split(task: Task, codec: CodecName) -> Choice | None:
    """The best of all servers, cuts and counts that fit into memory; None if none fits."""
    costs = Costs(task)
    fixed = options.integer(task, "in_flight", 0)
    choices = []
    for worker in workers(task, "edgemove+", keep=lambda tier: True):
        stages = fleet_stages(task, costs, worker)
        for count in [fixed] if fixed else range(1, MOST_IN_FLIGHT + 1):
            periods = period(stages, count)
            choices += [
                Choice(float(periods[cut - 1]), count, worker, cut, codec)
                for cut in cuts_of(task, costs)
            ]
    choices.sort(key=lambda choice: (_rounded(choice.seconds), choice.in_flight))
    fitting = (c for c in choices if fits_split(task, costs, c.worker, c.cut, c.in_flight))
    return next(fitting, None)


def _rounded(seconds: float) -> float:
    """Seconds without the last digits: rounding must not cost one more version of the weights."""
    return float(f"{seconds:.9g}")
