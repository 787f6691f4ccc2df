"""A swarm's plan for inference in which several devices compute the most important units.

    plan = copied(plan, importance(weights))        # `plan.swarm.copied` is the percentage

A message costs the same however much it carries, and devices that share a layer send to the same
receivers. So copies on these devices cost computing but no packets. If a receiver does not hear a unit's
owner, it takes the unit from the first device that it hears (`stitchnet_copies`).
"""

from __future__ import annotations

import msgspec
import numpy as np

from weft.plans.plan import Plan
from weft.plans.swarm import Copy
from weft.strategies.stitchnet.holders import with_copies
from weft.strategies.stitchnet.importance import Importance
from weft.strategies.stitchnet.swarm import spread_of


def copied(plan: Plan, importance: Importance) -> Plan:
    """The plan with copies of its most important units; unchanged if it asks for no copies."""
    swarm = plan.swarm
    if swarm is None or not swarm.copied or plan.mode != "infer":
        return plan
    spread, names = spread_of(plan), plan.fleet.names
    copies = []
    for layer, holds in enumerate(with_copies(spread, importance, swarm.copied / 100)):
        for device in np.flatnonzero(holds.any(axis=1)).tolist():
            units = np.flatnonzero(holds[device] & (spread.owners[layer] != device))
            if len(units):
                copies.append(Copy(names[device], layer, tuple(units.tolist())))
    return msgspec.structs.replace(plan, swarm=msgspec.structs.replace(swarm, copies=tuple(copies)))
