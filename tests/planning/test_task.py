"""A task: to its strategy, a plan that does not fit has no finite price."""

from __future__ import annotations

import msgspec

from weft.fleet.parse import parse_fleet
from weft.planning.decide import decide
from weft.plans.task import Task


def test_a_plan_too_large_for_the_fleet_costs_infinitely_much(task: Task) -> None:
    plan = decide("all-device", task)
    tiny = parse_fleet(
        '[[device]]\nname = "phone"\ngflops = 2\nmemory_mb = 0.01\n'
        '[[device]]\nname = "server"\ntier = "edge"\ngflops = 50\n'
        '[[link]]\nbetween = ["phone", "server"]\nmbps = 20'
    )
    small = msgspec.structs.replace(plan, fleet=tiny)
    assert task.price(plan) < float("inf")
    assert task.price(small) == float("inf")
