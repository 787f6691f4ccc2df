"""From a plan to a program: what each device receives, computes and sends, in which order.

    program = lower(plan)
    program.code["pi"]       # load, forward, send, recv, backward, update

Each way to deliver values has its own file. The table below names them.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.errors import InputError
from weft.plans.plan import Plan
from weft.program.lower.layers import lower_layers
from weft.program.lower.peers import lower_peers
from weft.program.lower.rounds import lower_rounds
from weft.program.lower.swarm import lower_swarm
from weft.program.lower.synced import lower_synced
from weft.program.passes.clip import check_clip
from weft.program.program import Program

# Fields of a plan besides its shards, and the function that lowers such a plan. A plan without these fields
# is a plan of layers and samples.
DELIVERIES: dict[str, Callable[[Plan], Program]] = {
    "swarm": lower_swarm,
    "peers": lower_peers,
    "rounds": lower_rounds,
    "norms": lower_synced,
}


def lower(plan: Plan) -> Program:
    """The program of a plan. Raises InputError if the plan contradicts itself."""
    check_clip(plan)
    for field, lower_field in DELIVERIES.items():
        if getattr(plan, field):
            if plan.stale or plan.standby:
                raise InputError(
                    f"plan: stale = {plan.stale}, standby = {len(plan.standby)} shards; "
                    f"neither is allowed in a plan with {field}"
                )
            return lower_field(plan)
    return lower_layers(plan)
