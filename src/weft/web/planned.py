"""A plan as the page shows it. Nothing here imports torch, so that the planning process starts quickly."""

from __future__ import annotations

from typing import Any

from weft.plans.plan import Plan
from weft.program.lower.lower import lower
from weft.report.words import part_words
from weft.simulate.simulate import simulate
from weft.web.gantt import MINIBATCHES, gantt

Part = dict[str, Any]


def plan_part(plan: Plan) -> Part:
    """Which device holds what, and what the plan should cost."""
    predicted = plan.predicted
    return {
        "strategy": plan.strategy,
        "version": plan.version,
        "devices": list(plan.devices),
        "layers": [layer.name for layer in plan.profile.layers],
        "shards": [
            {"device": s.device, "layers": list(s.layers), "part": part_words(s.part, plan.batch)}
            for s in plan.shards
        ],
        "standby": [{"device": s.device, "layers": list(s.layers)} for s in plan.standby],
        "batch": plan.batch,
        "micro_batches": plan.micro_batches,
        "in_flight": max(plan.in_flight, plan.stale + 1),
        "codec": plan.codec,
        "seconds": predicted.seconds if predicted else None,
        "per": "minibatch" if plan.mode == "train" else "answer",
        "memory_bytes": dict(predicted.memory_bytes) if predicted else {},
        "transfer_bytes": dict(predicted.transfer_bytes) if predicted else {},
    }


def predicted_part(plan: Plan) -> Part:
    """The simulator's timeline of a plan, in the steady state."""
    steps = max(2 * MINIBATCHES, 16 * (plan.stale + 1))  # the first ones fill the pipeline
    document = gantt(simulate(lower(plan), steps), MINIBATCHES)
    if plan.predicted is not None:
        document["step_s"] = plan.predicted.seconds
    return document
