"""The runs of a folder for Prometheus: `/metrics` of `weft web`. docs/web.md has the names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from weft.runtime.node import metrics
from weft.runtime.node.metrics import Sample
from weft.web.folder import RunFolder

HELP = {
    "weft_run_info": "1; the labels say what the run is and its state",
    "weft_run_minibatches_done": "Minibatches that all devices have done",
    "weft_run_minibatches_asked": "Minibatches that were asked for",
    "weft_run_loss": "Training loss of the newest minibatch",
    "weft_run_test": "Newest evaluation, by metric",
    "weft_run_step_seconds": "Seconds of a minibatch, measured over the newest ones",
    "weft_run_predicted_step_seconds": "Seconds of a minibatch that the plan promises",
    "weft_run_events_total": "Events so far, by kind",
    "weft_device_up": "1 if the device is there, 0 if it is lost or silent",
    "weft_device_minibatches_done": "Minibatches that the device has done",
    "weft_device_cpu_share": "Share of one core that its node uses",
    "weft_link_bytes_per_second": "Bytes per second that crossed a link lately, by direction",
}


def exposition(runs: Iterable[RunFolder]) -> str:
    """The text that Prometheus reads, one block for each name."""
    return metrics.exposition(HELP, (sample for run in runs for sample in samples(run)))


def samples(run: RunFolder) -> Iterator[Sample]:
    """All that is known of a run. What is not known has no sample."""
    parts, label = run.parts, {"run": run.name}
    about = parts.get("run", {})
    if "model" not in about:
        return
    words = {key: str(about[key]) for key in ("model", "strategy", "state")}
    yield "weft_run_info", {**label, **words}, 1.0
    for name, key in (
        ("weft_run_minibatches_done", "done"), ("weft_run_minibatches_asked", "steps"),
        ("weft_run_loss", "loss"), ("weft_run_step_seconds", "step_s"),
        ("weft_run_predicted_step_seconds", "predicted_s"),
    ):  # fmt: skip
        if about[key] is not None:
            yield name, label, float(about[key])
    for metric, rows in parts["curves"]["tests"].items():
        yield "weft_run_test", {**label, "metric": metric}, rows[-1][1]
    for kind, count in sorted(run.event_counts().items()):
        yield "weft_run_events_total", {**label, "kind": kind}, float(count)
    for device in parts["fleet"]["devices"]:
        named = {**label, "device": device["name"]}
        yield "weft_device_up", named, float(device["state"] in ("works", "idle"))
        if device["done"] is not None:
            yield "weft_device_minibatches_done", named, float(device["done"])
        if device["cpu_share"] is not None:
            yield "weft_device_cpu_share", named, device["cpu_share"]
    for link in parts["fleet"]["links"]:
        ends = link["between"]
        for (first, second), used in ((ends, link["up_used"]), (ends[::-1], link["down_used"])):
            if used is not None:
                way = {**label, "from": first, "to": second}
                yield "weft_link_bytes_per_second", way, used * 1e6 / 8
