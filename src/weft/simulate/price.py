"""The predicted cost of a plan.

    price(plan).step_s        # seconds per minibatch in the steady state
    priced(plan).predicted    # the same, kept in the plan
    candidate_worth(plan)     # only the seconds, infinite if the plan does not fit: for planners

A planner compares hundreds of candidates: their programs are not validated (`weft.program.validate`), the
winner's is.

`price` also works for a plan that does not fit into memory. `weft.program.memory.fits` tells whether it fits.
"""

from __future__ import annotations

import math
import statistics

import msgspec

from weft.plans.plan import Objective, Plan, Predicted
from weft.plans.profile import crowded_s
from weft.program.lower.lower import lower
from weft.program.memory import lacking, memory_of
from weft.program.program import Program
from weft.simulate.compiled import Compiled, compile_program
from weft.simulate.objective import worth
from weft.simulate.simulate import run

STEPS = 8  # the first ones fill the pipeline; the later half gives the period
ROUNDS = 4  # of minibatches that end in an exchange


def price(plan: Plan) -> Predicted:
    """Seconds per minibatch (training) or until the answer (inference), and the compute time, bytes and
    memory."""
    return price_of(lower(plan))


def candidate_worth(plan: Plan, objective: Objective = "time") -> float:
    """Seconds of a planner's candidate, or what else the objective counts; infinite if a device has too
    little memory for it."""
    program = lower(plan)
    limited = any(plan.fleet.device(name).memory_mb is not None for name in program.code)
    if limited and lacking(plan, memory_of(program)):
        return math.inf
    if objective != "time":
        return worth(plan, price_of(program), objective)
    return _seconds(program, compile_program(program, words=False))


def price_of(program: Program) -> Predicted:
    """The price of a plan that is lowered already."""
    compiled = compile_program(program, words=False)
    seconds, training = _seconds(program, compiled), program.plan.mode == "train"
    return Predicted(
        compute_s=compiled.seconds,
        transfer_bytes=compiled.bytes,
        memory_bytes=memory_of(program),
        step_s=seconds if training else None,
        latency_s=None if training else seconds,
        messages_s=compiled.messages_s,
    )


def _seconds(program: Program, compiled: Compiled) -> float:
    """Seconds per minibatch in the steady state, or until the answer."""
    plan = program.plan
    if plan.peers is not None and plan.peers.late == "newest":
        # Peers do not wait for each other: half of the devices are at least as fast as this.
        alone = statistics.median_low(list(compiled.seconds.values()))
        return max(alone, crowded_s(plan.profile.devices, compiled.busy_s))
    crowded = crowded_s(plan.profile.devices, compiled.busy_s)
    if plan.mode == "infer":
        answer = run(compiled, plan.route == "min", 1, spans=False).step_ends[0]
        return max(answer, *compiled.busy_s.values(), crowded)
    beat = program.beat
    steps = STEPS + max(compiled.lags, default=0)
    if plan.stale:  # the pattern of minibatches in flight takes a few rounds to settle
        steps = 16 * (plan.stale + 1)
    elif beat > 1:
        steps = max(steps, ROUNDS * beat)
    timeline = run(compiled, plan.route == "min", steps, spans=False)
    step_s = msgspec.structs.replace(timeline, beat=max(2, beat)).step_s
    if compiled.slotted_s:
        return step_s
    # A few minibatches may end sooner one after the other than they can in the long run: a queue fills at
    # first. In the long run no minibatch is faster than the busiest device, channel or host.
    busiest = max([*compiled.busy_s.values(), *compiled.occupied_s.values(), crowded])
    return busiest if busiest > step_s * (1 + 1e-9) else step_s


def priced(plan: Plan) -> Plan:
    """The plan with its price."""
    return msgspec.structs.replace(plan, predicted=price(plan))
