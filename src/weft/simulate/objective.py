"""What a plan is chosen for: its time, its energy, its money, or its memory.

worth(plan, price(plan), "energy")      # joules of a step, or of an answer

time     seconds
energy   joules: a device's `watts` while it computes or is busy with messages
money    `price_per_hour` of every device of the plan for as long as a step takes, and `price_per_gb` of
         what crosses links
memory   bytes of the device that needs the most
"""

from __future__ import annotations

from weft.errors import InputError
from weft.fleet.fleet import Fleet
from weft.plans.plan import Objective, Plan, Predicted


def worth(plan: Plan, predicted: Predicted, objective: Objective) -> float:
    """The number that is to be small."""
    if objective == "energy":
        return sum(seconds * _watts(plan.fleet, name) for name, seconds in predicted.busy.items())
    if objective == "money":
        rent = sum(plan.fleet.device(name).price_per_hour for name in plan.devices) / 3600
        return rent * predicted.seconds + _traffic(plan.fleet, predicted.transfer_bytes)
    if objective == "memory":
        return float(max(predicted.memory_bytes.values(), default=0))
    return predicted.seconds


def check_objective(fleet: Fleet, objective: Objective) -> None:
    """Raises InputError if the fleet file does not say what the objective counts."""
    if objective == "energy":
        for device in fleet.devices:
            _watts(fleet, device.name)
    prices = (
        *(device.price_per_hour for device in fleet.devices),
        *(link.price_per_gb for link in fleet.link),
        *(medium.price_per_gb for medium in fleet.medium),
    )
    if objective == "money" and not any(prices):
        raise InputError(
            "--objective money: the fleet has no prices; give its devices price_per_hour, or its links "
            "price_per_gb"
        )


def _watts(fleet: Fleet, name: str) -> float:
    watts = fleet.device(name).watts
    if watts is None:
        raise InputError(
            f"[[device]] {name}: watts is missing, so its energy is unknown; --objective energy needs it for "
            "every device"
        )
    return watts


def _traffic(fleet: Fleet, crossing: dict[str, int]) -> float:
    prices = {medium.name: medium.price_per_gb for medium in fleet.medium}
    for link in fleet.link:
        a, b = link.between
        prices |= {f"{a}>{b}": link.price_per_gb, f"{b}>{a}": link.price_per_gb}
    return sum(size / 1e9 * prices.get(channel, 0.0) for channel, size in crossing.items())
