"""The result of a run, as the document that `--json` prints and as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Group, RenderableType

from weft.program.lower.lower import lower
from weft.report.tables import list_table, strategy_words, timeline_table
from weft.report.words import seconds
from weft.runtime.run.workload.peer_timeline import assembled
from weft.simulate.simulate import simulate

# Counters of a swarm: sent; lost on a link; received in time or not; received too late; minibatches left out.
RADIO = ("messages", "packets", "packets_lost", "heard", "unheard", "late", "left_out")

if TYPE_CHECKING:
    from weft.runtime.run.inference import InferResult
    from weft.runtime.run.results import TrainResult


def train_document(result: TrainResult) -> dict[str, Any]:
    """The document of `weft train --json`."""
    return {
        "strategy": result.plan.strategy,
        "model": result.plan.model,
        "batch": result.plan.batch,
        "steps": result.steps,
        "seconds": result.seconds,
        "step_s": result.step_s,
        "predicted_step_s": result.predicted_step_s,
        "final_loss": result.losses[-1] if result.losses else None,
        "test_accuracy": result.test_accuracy,
        "events": result.events,
        **_evaluation_document(result),
        "out": str(result.out) if result.out else None,
        **({"network": result.network} if result.network else {}),
        **({"radio": {key: result.radio[key] for key in RADIO}} if result.radio else {}),
    }


def _evaluation_document(result: TrainResult) -> dict[str, Any]:
    """What was evaluated while the run went on; nothing where nothing was asked for."""
    document: dict[str, Any] = {}
    if result.evaluations:
        document["evaluations"] = [{"step": e.step, **e.values} for e in result.evaluations]
    if result.best is not None:
        document["best"] = {"step": result.best.step, **result.best.values}
    if result.stopped:
        document["stopped"] = result.stopped
    return document


def train_table(result: TrainResult) -> RenderableType:
    """The table that `weft train` prints."""
    document = train_document(result)
    ratio = result.step_s / result.predicted_step_s if result.predicted_step_s else 0.0
    count = result.steps - result.first
    rows = [
        ("strategy", f"{strategy_words(result.plan)} on {', '.join(result.plan.devices)}"),
        ("steps", f"{count} of {result.plan.batch} samples in {seconds(result.seconds)}"),
        ("step", f"{seconds(result.step_s)} measured, {seconds(result.predicted_step_s)} predicted "
                 f"(measured / predicted = {ratio:.2f})"),
        ("loss", f"{document['final_loss']:.4f}" if result.losses else "-"),
    ]  # fmt: skip
    if result.network:
        rows.append(("network", result.network))
    for event in result.events:
        rows.append((f"step {event['step']}", event_words(event)))
    if result.test_accuracy is not None:
        rows.append(("test accuracy", f"{result.test_accuracy:.1%}"))
    if result.evaluations:
        last = result.evaluations[-1]
        rows.append((f"evaluated at {last.step}", str(last)))
    if result.best is not None:
        rows.append((f"best, at {result.best.step}", str(result.best)))
    if result.radio:
        rows.append(("radio", _radio_words(result.radio, count)))
    if result.out:
        rows.append(("folder", str(result.out)))
    peers = result.plan.peers
    predicted = simulate(lower(result.plan), steps=min(max(result.steps, 2), 6))
    if peers is not None:  # predicted and measured are both the pace of the same peer
        paced = assembled(list(predicted.spans), peers)
        predicted = msgspec.structs.replace(paced, source=predicted.source)
    return Group(list_table(("", "trained"), rows), timeline_table(predicted, result.timeline))


def event_words(event: Mapping[str, Any]) -> str:
    """An event of a run in a line: why it happened, else who and what it was about."""
    if "why" in event:
        return f"{event['kind']}: {event['why']}"
    about = {k: v for k, v in event.items() if k not in ("step", "kind", "at_s")}
    return f"{event['kind']}: {', '.join(f'{key} {value}' for key, value in about.items())}"


def _radio_words(radio: Counter[str], steps: int) -> str:
    """A swarm's messages and packets per step, and the share that did not arrive in time."""
    asked = radio["heard"] + radio["unheard"]
    share = radio["unheard"] / asked if asked else 0.0
    words = f"{radio['messages'] / steps:.1f} messages and {radio['packets'] / steps:.1f} packets "
    return words + f"a step; {share:.1%} not heard in time"


def infer_document(result: InferResult) -> dict[str, Any]:
    """The document of `weft infer --json`."""
    predicted = result.plan.predicted
    return {
        "strategy": result.plan.strategy,
        "model": result.plan.model,
        "batch": result.plan.batch,
        "repeat": result.repeat,
        "latency_s": result.latency_s,
        "predicted_latency_s": predicted.latency_s if predicted else None,
        "max_difference": result.max_difference,
        "devices": list(result.plan.devices),
        "events": result.events,
    }


def infer_table(result: InferResult) -> RenderableType:
    """The table that `weft infer` prints."""
    assert result.plan.predicted is not None
    rows = [
        ("strategy", f"{strategy_words(result.plan)} on {', '.join(result.plan.devices)}"),
        ("latency", f"{seconds(result.latency_s)} (median of {result.repeat}), "
                    f"{seconds(result.plan.predicted.seconds)} predicted"),
        ("difference", f"{result.max_difference:.2g} at most from the whole network's output"),
    ]  # fmt: skip
    for event in result.events:
        rows.append((f"answer {event['step']}", f"{event['kind']}: {event.get('why', '')}"))
    predicted = simulate(lower(result.plan), steps=2)
    return Group(list_table(("", "answered"), rows), timeline_table(predicted, result.timeline))
