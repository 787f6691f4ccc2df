"""What is refused before a run starts, in words: combinations that would train something else."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn
from torch.nn import functional

from weft.errors import InputError
from weft.graph.network import Graph
from weft.graph.optimizers.optimizer import Optimizer
from weft.graph.optimizers.user_schedule import Timetable
from weft.planning.optimizers import check_optimizer
from weft.plans.plan import Plan
from weft.plans.protocols import CLONE, PEERS
from weft.plans.strategy import Strategy
from weft.program.instructions import Loss
from weft.program.lower.lower import lower


def check_loss(graph: Graph, plan: Plan) -> None:
    """InputError where the plan cuts minibatches and the loss, or the network, needs them whole."""
    loss = graph.loss
    if loss is None or plan.mode != "train" or plan.peers is not None:
        return
    if loss.over != "batch" and not graph.mixes:
        return
    pieces = {i.samples for code in lower(plan).code.values() for i in code if isinstance(i, Loss)}
    if all(samples == plan.batch for samples in pieces):
        return
    if graph.mixes:
        raise InputError(
            f"in {graph.name} the result of a sample depends on the other samples of its minibatch "
            f"({graph.mixes}), and the plan of {plan.strategy} cuts minibatches of {plan.batch} into pieces "
            f"of {', '.join(str(n) for n in sorted(pieces))} samples. Choose --set micro_batches=1 and a "
            "strategy that gives no device a share of the samples (such as chain), or compute each sample "
            "for itself"
        )
    raise InputError(
        f"the loss {loss.name} does not follow from sums over samples: {loss.why}. So the loss of a "
        "minibatch does not follow from those of its pieces. "
        f"The plan of {plan.strategy} cuts minibatches of {plan.batch} into pieces of "
        f"{', '.join(str(n) for n in sorted(pieces))} samples. Choose --set micro_batches=1 and a "
        "strategy that gives no device a share of the samples (such as chain), or a loss that is linear in "
        "sums over samples (means with class weights, ignored targets and masks are)"
    )


def check_rule(rule: Optimizer, plan: Plan, timetable: Timetable | None = None) -> None:
    """InputError where the optimizer would train something else under this plan than in one process."""
    check_optimizer(rule.name, plan)
    if plan.peers is not None and (timetable is not None or rule.ema):
        asked = "a schedule" if timetable is not None else f"ema {rule.ema}"
        raise InputError(
            f"{asked} is for one network, and with {plan.strategy} each device trains a network of its own: "
            "its rate falls to a tenth over the rounds, and means of weights are taken at every exchange; "
            "leave it out"
        )
    if plan.peers is not None and (rule.groups or rule.untouched):
        raise InputError(
            f"the optimizer has groups of weights, and with {plan.strategy} each device trains a network of "
            "its own, whose weights have other names; give one optimizer for all weights"
        )


def check_layers_whole(
    precision: str, strategy: Strategy, options: Mapping[str, object], plan: Plan | None
) -> None:
    """InputError where products are to be in bfloat16 and layers are taken apart by the plan."""
    if precision == "float32":
        return
    if strategy.workload == PEERS or strategy.recovery == CLONE:
        raise InputError(
            f"precision {precision} is for plans of whole layers, and {strategy.name} takes layers apart by "
            "classes or units; leave it out, or choose a strategy such as chain"
        )
    if str(options.get("sync_bn", "no")) == "yes" or (plan and plan.layering == "norms"):
        raise InputError(
            f"precision {precision} does not go with sync_bn=yes, which takes layers apart at batch norms; "
            "leave one of them out"
        )


def is_cross_entropy(loss: object) -> bool:
    """Whether a loss is cross-entropy as it is by default: the mean over samples, all classes alike."""
    if loss is functional.cross_entropy:
        return True
    if type(loss) is not nn.CrossEntropyLoss:
        return False
    given = (loss.weight, loss.reduction, loss.ignore_index, loss.label_smoothing)
    return given == (None, "mean", -100, 0.0)
