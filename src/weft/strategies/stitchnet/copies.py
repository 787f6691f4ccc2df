"""A swarm's plan for answering in which the most important units are computed by several devices.

    plan = copied(plan, importance(weights))        # as many as `plan.swarm.copied` percent says

A message costs the same however much it carries, and devices that share a layer speak to the same readers:
copies among them take computing, but no packet. A reader that does not hear a unit's owner takes the unit
from the first device that it hears (`stitchnet_copies`).
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
    """The plan with copies by what its units weigh; without any where it asks for none."""
    swarm = plan.swarm
    if swarm is None or not swarm.copied or plan.mode != "infer":
        return plan
    spread, names = spread_of(plan), plan.fleet.names
    found = []
    for layer, holds in enumerate(with_copies(spread, importance, swarm.copied / 100)):
        for device in np.flatnonzero(holds.any(axis=1)).tolist():
            units = np.flatnonzero(holds[device] & (spread.owners[layer] != device))
            if len(units):
                found.append(Copy(names[device], layer, tuple(units.tolist())))
    return msgspec.structs.replace(plan, swarm=msgspec.structs.replace(swarm, copies=tuple(found)))
