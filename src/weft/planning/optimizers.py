"""Optimizers that a plan cannot have.

check_optimizer("adafactor", plan)     # InputError where the plan spreads weights over devices
"""

from __future__ import annotations

from weft.errors import InputError
from weft.graph.optimizers.words import WHOLE_WEIGHTS
from weft.plans.plan import Plan


def check_optimizer(name: str, plan: Plan) -> None:
    """Raises InputError if the optimizer needs whole weights and devices hold only units of them: it would
    train something else than in one process."""
    if plan.mode == "train" and plan.swarm is not None and name in WHOLE_WEIGHTS:
        raise InputError(
            f"optimizer {name} looks at each weight as a whole, and the plan of {plan.strategy} spreads "
            "weights over devices by units; choose one that looks at each number alone, such as adamw"
        )
