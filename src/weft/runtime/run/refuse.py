"""What a strategy cannot do is refused before anything starts, in words."""

from __future__ import annotations

from torch import nn
from torch.nn import functional

from weft.errors import InputError
from weft.plans.protocols import Feature
from weft.plans.strategy import Strategy


def refuse(strategy: Strategy, wanted: dict[Feature, bool]) -> None:
    """InputError for the first wanted feature that the strategy's record refuses."""
    for feature, is_wanted in wanted.items():
        why = strategy.refuses.get(feature)
        if is_wanted and why is not None:
            raise InputError(f"strategy {strategy.name} cannot do this ({feature}): {why}")


def is_cross_entropy(loss: object) -> bool:
    """Whether a loss is cross-entropy as it is by default: the mean over samples, all classes alike."""
    if loss is functional.cross_entropy:
        return True
    if type(loss) is not nn.CrossEntropyLoss:
        return False
    given = (loss.weight, loss.reduction, loss.ignore_index, loss.label_smoothing)
    return given == (None, "mean", -100, 0.0)
