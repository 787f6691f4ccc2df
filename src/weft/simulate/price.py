"""What a plan will cost, before anything runs.

    price(plan).step_s        # seconds per minibatch in the steady state
    priced(plan).predicted    # the same, kept in the plan

A plan that does not fit into memory has a price too; `weft.program.memory.fits` tells them apart.
"""

from __future__ import annotations

import statistics

import msgspec

from weft.plans.plan import Plan, Predicted
from weft.program.lower.lower import lower
from weft.program.memory import memory_bytes
from weft.program.validate import check_flow
from weft.simulate.compiled import compile_program
from weft.simulate.simulate import run

STEPS = 8  # the first ones fill the pipeline; the later half tells the period
ROUNDS = 4  # of minibatches that end in an exchange


def price(plan: Plan) -> Predicted:
    """Seconds per minibatch (training) or until the answer (inference), and what it takes where."""
    program = lower(plan)
    check_flow(program)
    compiled = compile_program(program)
    training = plan.mode == "train"
    steps = STEPS + program.max_lag if training else 1
    if training and plan.stale:  # the pattern of minibatches in flight takes a few rounds to settle
        steps = 16 * (plan.stale + 1)
    elif training and program.beat > 1:
        steps = max(steps, ROUNDS * program.beat)
    timeline = run(compiled, plan.route == "min", steps, spans=False)
    timeline = msgspec.structs.replace(timeline, beat=max(2, program.beat))
    step_s = timeline.step_s
    if plan.peers is not None and plan.peers.late == "newest":
        # Nobody waits: half of the devices are at least as fast as this.
        step_s = statistics.median_low(list(compiled.seconds.values()))
    return Predicted(
        compute_s=compiled.seconds,
        transfer_bytes=compiled.bytes,
        memory_bytes=memory_bytes(plan),
        step_s=step_s if training else None,
        latency_s=None if training else timeline.step_ends[0],
    )


def priced(plan: Plan) -> Plan:
    """The plan with its price."""
    return msgspec.structs.replace(plan, predicted=price(plan))
