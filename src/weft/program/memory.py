"""The memory that a plan needs on each device, and whether the fleet has it.

    memory_bytes(plan)["pi"]     # weights, gradients, optimizer state, activations, messages
    memory_of(program)           # the same for a plan that is lowered already
    check_memory(plan)           # WeftError that says which device lacks how much, and what to try

The count is the same for every kind of plan: the bytes that are alive at the worst moment of the program
(`liveness`). A megabyte of a fleet file's `memory_mb` is a million bytes.
"""

from __future__ import annotations

from weft.errors import InputError, WeftError
from weft.graph.optimizers.words import slots_of
from weft.plans.plan import Plan
from weft.program.liveness import peaks
from weft.program.lower.lower import lower
from weft.program.program import Program

BYTES_PER_MB = 1e6


def memory_bytes(plan: Plan) -> dict[str, int]:
    """Bytes at the worst moment of a step, for every device with work."""
    return memory_of(lower(plan))


def memory_of(program: Program) -> dict[str, int]:
    """The same for a plan that is lowered already."""
    plan = program.plan
    if plan.mode == "train":
        _slots(plan)
    return peaks(program)


def _slots(plan: Plan) -> int:
    try:
        return slots_of(plan.optimizer)
    except InputError as error:
        raise InputError(f"plan: {error}") from None


def fits(plan: Plan) -> bool:
    """Whether every device has the memory that the plan needs."""
    return not lacking(plan, memory_bytes(plan))


def check_memory(plan: Plan) -> None:
    """Raises WeftError if a device has too little memory for its part of the plan."""
    check_need(plan, memory_bytes(plan))


def check_need(plan: Plan, need: dict[str, int]) -> None:
    """The same if the need is known already."""
    short = lacking(plan, need)
    if not short:
        return
    tries = ["give its layers to a larger device", f"a batch smaller than {plan.batch}"]
    if plan.micro_batches > 1 and plan.in_flight > 1:
        tries.append(f"in_flight below {plan.in_flight}")
    elif plan.micro_batches < plan.batch:
        tries.append(f"more than {plan.micro_batches} micro-batches")
    if plan.mode == "train" and _slots(plan) > 0:
        tries.append(f"sgd in place of {plan.optimizer}")
    lacks = "; ".join(
        f"device {name} needs {need / BYTES_PER_MB:.5g} MB, has {has / BYTES_PER_MB:.5g} MB "
        f"(memory_mb), {(need - has) / BYTES_PER_MB:.5g} MB too little"
        for name, need, has in short
    )
    raise WeftError(f"the plan does not fit: {lacks}. Try: {', or '.join(tries)}")


def lacking(plan: Plan, needs: dict[str, int]) -> list[tuple[str, int, float]]:
    """(device, bytes needed, bytes available) of every device with too little memory."""
    short = []
    for name, need in needs.items():
        limit = plan.fleet.device(name).memory_mb
        if limit is not None and need > limit * BYTES_PER_MB:
            short.append((name, need, limit * BYTES_PER_MB))
    return short
