"""What the devices of a swarm must know of the radio that they send by: taken from plan and fleet."""

from __future__ import annotations

from weft.draws import TESTING, TRAINING
from weft.fleet.fleet import Fleet
from weft.fleet.radio import fleet_delivery
from weft.plans.delivery import drills_of
from weft.plans.plan import Plan
from weft.runtime.wire.radio import RadioRules


def rules_of(plan: Plan, fleet: Fleet, emulated: bool) -> RadioRules | None:
    """The rules of a plan that spreads a network over radio; None for any other."""
    swarm = plan.swarm
    if swarm is None:
        return None
    delivery: tuple[tuple[float, ...], ...] = ()
    if emulated:
        delivery = tuple(tuple(float(p) for p in row) for row in fleet_delivery(fleet))
    drills = drills_of(plan)
    return RadioRules(
        devices=fleet.names,
        slots=swarm.slots,
        attempts=swarm.attempts,
        seed=swarm.seed,
        stream=TRAINING if plan.mode == "train" else TESTING,
        delivery=delivery,
        slot_s=swarm.slot_ms / 1e3,
        drill=drills.percent,
        workers=drills.workers,
    )
