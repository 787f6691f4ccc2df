"""The documents that `--json` prints. Scripts rely on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec

from weft.plans.plan import Mode, Plan
from weft.program.copies import copies_of, keeps_copies
from weft.program.timeline import Timeline

if TYPE_CHECKING:
    from weft.planning.advise import Best
    from weft.planning.compare import Row

Document = dict[str, Any]


def seconds_key(mode: Mode) -> str:
    """The key of a plan's time: per step in training, until the answer in inference."""
    return "step_s" if mode == "train" else "latency_s"


def plan_document(plan: Plan) -> Document:
    """A plan without the fleet and the profile that a plan file carries."""
    document: Document = msgspec.to_builtins(plan)
    for key in ("fleet", "profile", "version"):
        document.pop(key, None)
    if plan.predicted is not None and keeps_copies(plan):
        document["copies"] = asdict(copies_of(plan))
    return document


def compare_document(
    model: str, batch: int, rows: Sequence[Row], best: Best | None = None, why_none: str = ""
) -> Document:
    """The document of `weft compare --json`."""
    advice = None
    if best is not None:
        advice = {
            "strategy": best.strategy,
            "seconds": best.seconds,
            "against_one_machine": best.against_one_machine,
            "splits": best.splits,
            "devices": list(best.plan.devices),
            "why": best.why,
        }
    # One row for a strategy, so that scripts find it by its name. Rows with a setting of ours stand apart.
    return {
        "model": model,
        "batch": batch,
        "best": advice,
        "why_no_best": None if best is not None else why_none,
        "rows": [row_document(row) for row in rows if not row.setting],
        "variants": [row_document(row) for row in rows if row.setting],
    }


def row_document(row: Row) -> Document:
    """One strategy's row of that document."""
    return {
        "strategy": row.strategy,
        "setting": row.setting or None,
        seconds_key(row.mode): row.seconds,
        "speedup": row.speedup,
        "devices": list(row.devices),
        "exact": row.exact if row.valid else None,
        "differs": row.differs or None,
        "valid": row.valid,
        "why_not": row.why_not,
        "note": row.note or None,
    }


def timeline_document(plan: Plan, timeline: Timeline) -> Document:
    """How long steps take, and how long each device and channel is busy in total."""
    places = dict.fromkeys(span.where for span in timeline.spans)
    seconds = timeline.step_s if plan.mode == "train" else min(timeline.step_ends, default=0.0)
    return {
        "strategy": plan.strategy,
        "model": plan.model,
        "batch": plan.batch,
        "steps": len(timeline.step_ends),
        seconds_key(plan.mode): seconds,
        "makespan_s": timeline.makespan,
        "step_ends_s": list(timeline.step_ends),
        "busy_s": {place: timeline.busy(place) for place in places},
        "source": timeline.source,
    }
