"""One strategy's plan, checked and priced; a plan file, checked and simulated.

plan = decide("chain", task)
plan, timeline = simulate_plan("plan.json")
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from weft.errors import InputError
from weft.fleet.parse import dump_fleet, parse_fleet
from weft.planning.norms import check_asked, check_norms
from weft.planning.optimizers import check_optimizer
from weft.plans import registry
from weft.plans.derive import check_profile
from weft.plans.plan import Plan
from weft.plans.task import Task
from weft.program.lower.lower import lower
from weft.program.timeline import Timeline
from weft.program.validate import check_flow, validate
from weft.simulate.price import price_of
from weft.simulate.simulate import simulate


def decide(strategy: str, task: Task) -> Plan:
    """The strategy's plan with its price. Its program is validated here; a strategy's other candidates are
    only priced. Raises WeftError if the fleet lacks the memory for the plan."""
    check_asked(task)
    plan = registry.make_plan(strategy, task)
    check_norms(plan, task.graph)
    check_optimizer(plan.optimizer.split()[0], plan)
    program = lower(plan)
    validate(program)
    return msgspec.structs.replace(plan, predicted=price_of(program))


def simulate_plan(path: str | Path, steps: int = 6) -> tuple[Plan, Timeline]:
    """A plan file and its predicted timeline. A file may be written by hand, so it is checked."""
    if steps < 1:
        raise InputError(f"steps {steps} is not allowed; it must be at least 1")
    plan = load_plan(path)
    program = lower(plan)
    check_flow(program)
    return plan, simulate(program, steps)


def load_plan(path: str | Path) -> Plan:
    """A plan file. Raises InputError if its fleet, profile and devices do not match."""
    plan = Plan.load(path)
    where = f"plan file {path}"
    check_profile(plan.profile, plan.fleet, where)
    # The fleet in a plan is checked like a fleet file.
    parse_fleet(dump_fleet(plan.fleet), f"{where}, fleet")
    for device in plan.devices:
        plan.fleet.device(device)
    return plan
