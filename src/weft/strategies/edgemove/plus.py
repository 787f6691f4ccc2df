"""edgemove+: server, cut, minibatches in flight and codec chosen together, by the pipeline's exact period.

    weft plan vgg16 --fleet F.toml -s edgemove+ --set in_flight=2 --set codecs=all

Candidates are all machines that the client can reach, the cloud too, and the client alone. On a shared medium
the simulator decides among the best choices, because the period is exact for links only. Among equally fast
choices the one with fewer minibatches in flight wins: it needs fewer versions of the weights, and
its gradients are newer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
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
    fixed = options.integer(task, "in_flight", 0)
    counts = [fixed] if fixed else list(range(1, MOST_IN_FLIGHT + 1))
    alone_s = Costs(task).total(task.source)
    decisions = {"worker": None, "cut": len(task.profile.layers), "in_flight": 1}
    whole = [task.source] * len(task.profile.layers)
    alone = layer_plan(task, "edgemove+", whole, decisions={**decisions, "model_s": alone_s})
    if task.fleet.medium:
        return _simulated(task, codecs, counts, alone)
    best: Choice | None = None
    for codec in codecs:
        choice = best_split(_coded(task, codec), codec, counts)
        # A codec changes the numbers that are trained with. Without a gain it is not used.
        if choice is not None and (best is None or choice.seconds < best.seconds):
            best = choice
    if best is None or (best.seconds >= alone_s and fits(alone)):
        return alone
    return _plan(task, best)


def _simulated(task: Task, codecs: Sequence[CodecName], counts: Sequence[int], alone: Plan) -> Plan:
    """The best of the candidates by the simulator. On a shared medium gradients wait behind the activations
    of later minibatches, which the formula of the period leaves out."""
    choices = [
        best_split(_coded(task, codec), codec, [count]) for codec in codecs for count in counts
    ]
    plans = [_plan(task, choice) for choice in choices if choice is not None]
    if fits(alone) or not plans:
        plans.insert(0, alone)
    return min(plans, key=task.price)  # the first of equal ones: alone, no codec, fewer in flight


def _coded(task: Task, codec: CodecName) -> Task:
    return dataclasses.replace(task, options={**task.options, "codec": codec})


def _plan(task: Task, choice: Choice) -> Plan:
    coded = _coded(task, choice.codec)
    plan = split_plan(coded, "edgemove+", Costs(coded), choice.worker, choice.cut, choice.in_flight)
    return plan.deciding(codec=choice.codec)


def best_split(task: Task, codec: CodecName, counts: Sequence[int]) -> Choice | None:
    """The best of all servers, cuts and counts in flight that fit into memory; None if none fits."""
    costs = Costs(task)
    choices = []
    for worker in workers(task, "edgemove+", keep=lambda tier: True):
        stages = fleet_stages(task, costs, worker)
        for count in counts:
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
