"""CoopAI and its baseline, really run: latency of sliced inference through a gateway.

    python benchmarks/coopai.py [network ...]

Ten emulated Raspberry Pi 4 (13.6 GFLOPS) behind a gateway with 100 Mbps for all. Two cores cannot be
ten Pis, so everything is SCALE times slower, speeds and links alike: times come out SCALE times longer
and are printed divided by it, ratios are the same. Each row is a fleet of real node processes; every
answer is compared with the whole network's, and the bytes on the wire with the plan's count.
"""

from __future__ import annotations

import sys
from collections import Counter

import torch
from torch import nn

import weft
from weft import api
from weft.fleet.fleet import Device, Fleet, Medium
from weft.graph.capture import capture
from weft.plan.derive import derive_profile
from weft.plan.plan import Plan
from weft.program.timeline import Timeline
from weft.runtime.serve import latency_s

SCALE = {"alexnet": 12, "vgg16": 16, "vgg19": 16, "yolov2": 24}
FRAMES = 3  # the first one warms up
ROWS: list[tuple[str, str, dict[str, str]]] = [
    ("one device", "coopai", {"devices": "1"}),
    ("sls", "sls", {}),
    ("sls, overlapping", "sls", {"overlap": "on"}),
    ("coopai", "coopai", {}),
    ("coopai+", "coopai+", {}),
]


def fleet(scale: float, devices: int = 10) -> Fleet:
    names = tuple(f"rpi{n}" for n in range(1, devices + 1))
    return Fleet(
        (Device("gw", tier="edge", gflops=13.6 / scale, data=True),
         *(Device(name, gflops=13.6 / scale) for name in names)),
        medium=(Medium("wifi", "gw", names, 100.0 / scale),),
    )  # fmt: skip


def plans(model: nn.Module, x: torch.Tensor, name: str, scale: float) -> dict[str, Plan]:
    """By row. The profile is FLOPs over speed, as the paper counts; nodes are paced by it."""
    cell = fleet(scale)
    graph = capture(model, x, name=name)
    profile = derive_profile(graph, cell)
    found: dict[str, Plan] = {}
    for row, strategy, options in ROWS:
        task = api.make_task(profile, cell, batch=1, mode="infer", options=options, graph=graph)
        found[row] = api.decide(strategy, task)
    return found


def wire_bytes(timeline: Timeline) -> set[int]:
    sent: Counter[int] = Counter()
    for span in timeline.spans:
        if span.what == "transfer":
            sent[span.step] += span.bytes
    return set(sent.values())


def run(model: nn.Module, x: torch.Tensor, plan: Plan) -> tuple[float, float, set[int]]:
    """(median latency, largest difference from the whole network's answer, bytes per frame)."""
    with weft.serve(model, x, plan.fleet, plan=plan, local=True, deadline=120.0) as net:
        answers = net.stream([x] * FRAMES)
        timeline, _ = net.timeline()
    with torch.no_grad():
        whole = model(x)
    far = max(float((a - whole).abs().max() / whole.abs().max()) for a in answers)
    return latency_s(timeline), far, wire_bytes(timeline)


def main() -> None:
    torch.set_num_threads(1)
    for name in sys.argv[1:] or ["alexnet", "vgg16", "yolov2"]:
        torch.manual_seed(0)
        scale = SCALE.get(name, 16)
        model, example = api.load_model(name)
        model.eval()
        x = torch.rand(1, *example.shape[1:])
        found = plans(model, x, name, scale)
        print(f"\n{name}: times divided by {scale}; the wire carries what the plan says")
        print(f"{'':18} {'devices':>7} {'rounds':>6} {'predicted':>10} {'measured':>10} "
              f"{'ratio':>6} {'saved':>7} {'MB':>7} {'far':>8}")  # fmt: skip
        first = 0.0
        for row, plan in found.items():
            seconds, far, sent = run(model, x, plan)
            first = first or seconds
            assert plan.predicted is not None
            predicted = plan.predicted.seconds
            planned = sum(plan.predicted.transfer_bytes.values())
            if sent != {planned}:
                print(f"{row}: {sorted(sent)} bytes on the wire, {planned} planned")
            print(
                f"{row:18} {len(plan.devices) - 1:7} {len(plan.rounds):6} "
                f"{predicted / scale:9.3f}s {seconds / scale:9.3f}s "
                f"{seconds / predicted:6.3f} {1 - seconds / first:7.2%} "
                f"{planned / 1e6:7.2f} {far:8.1e}", flush=True,
            )  # fmt: skip


if __name__ == "__main__":
    main()
