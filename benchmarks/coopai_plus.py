"""What each part of coopai+ brings, in the simulator: seconds of one answer on physical links.

    python benchmarks/coopai_plus.py [network ...]

Ten Raspberry Pi 4 (13.6 GFLOPS) behind a gateway with 100 Mbps for all (fleets/gateway-wifi.toml), and
six unequal devices (13.6, 10, 10, 6.8, 6.8 and 6.8 GFLOPS). Every row is a plan of its own. sls and coopai
choose the number of devices by the paper's model; `best number` takes the one that the simulator finds best.
The last lines are of streams: seconds per frame of eight frames, several under way at once.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterator

from weft.api import load_model
from weft.errors import InputError
from weft.fleet.fleet import Fleet
from weft.graph.capture.module import capture
from weft.graph.network import Graph
from weft.papers.coopai.measured import cell
from weft.planning.task import make_task
from weft.plans.derive import derive_profile
from weft.plans.plan import Plan
from weft.plans.registry import make_plan
from weft.plans.task import Task
from weft.simulate.price import price

FLEETS = {
    "ten equal devices": cell(),
    "six unequal devices": cell(gflops=(13.6, 10.0, 10.0, 6.8, 6.8, 6.8)),
}
Options = dict[str, str]
RELAYS = {"gateway": "off"}  # as in the paper: the gateway computes nothing
ROWS: tuple[tuple[str, str, Options], ...] = (
    ("one device", "coopai", {"devices": "1"}),
    ("sls", "sls", {}),
    ("sls, overlapping", "sls", {"overlap": "on"}),
    ("coopai", "coopai", {}),
    ("coopai, overlapping", "coopai", {"overlap": "on"}),
    ("coopai+, even, no overlap", "coopai+", {**RELAYS, "overlap": "off", "shares": "even"}),
    ("coopai+, no overlap", "coopai+", {**RELAYS, "overlap": "off"}),
    ("coopai+, even", "coopai+", {**RELAYS, "shares": "even"}),
    ("coopai+, not polished", "coopai+", {**RELAYS, "polish": "1"}),
    ("coopai+", "coopai+", RELAYS),
    ("coopai+, the gateway too", "coopai+", {}),
)
FRAMES = 8


def task_of(graph: Graph, fleet: Fleet, batch: int = 1) -> Task:
    return make_task(derive_profile(graph, fleet), fleet, mode="infer", graph=graph, batch=batch)


def planned(task: Task, strategy: str, options: Options) -> tuple[Plan, float, float]:
    """The plan, its simulated seconds, and the processor's seconds of planning."""
    begin = time.process_time()
    plan = make_plan(strategy, dataclasses.replace(task, options=options))
    spent = time.process_time() - begin
    return plan, price(plan).seconds, spent


def best_number(task: Task, options: Options) -> tuple[Plan, float, float]:
    found = []
    for k in range(1, len(task.fleet.devices)):
        try:
            found.append(planned(task, "sls", {**options, "devices": str(k)}))
        except InputError:
            continue  # more devices than rows
    return min(found, key=lambda row: row[1])


def latencies(task: Task) -> Iterator[tuple[str, Plan, float, float]]:
    for title, strategy, options in ROWS:
        yield title, *planned(task, strategy, options)
    yield "sls, overlapping, best number", *best_number(task, {"overlap": "on"})


def streams(task: Task) -> Iterator[tuple[str, Plan, float, float]]:
    frames, through = {"micro_batches": str(FRAMES), "in_flight": "8"}, {"objective": "throughput"}
    for title, strategy, options in (
        ("stream: sls", "sls", frames),
        ("stream: coopai", "coopai", frames),
        ("stream: coopai+, one by one", "coopai+", RELAYS),
        ("stream: coopai+, frames cut", "coopai+", {**RELAYS, **through, "frames": "cut"}),
        ("stream: coopai+", "coopai+", {**RELAYS, **through}),
        ("stream: coopai+, gateway too", "coopai+", through),
    ):
        plan, seconds, spent = planned(task, strategy, options)
        yield title, plan, seconds / FRAMES, spent


def main() -> None:
    for name in sys.argv[1:] or ["alexnet", "vgg16", "vgg19", "yolov2"]:
        module, example = load_model(name, weights=False)
        graph = capture(module, example, name=name)
        for title, fleet in FLEETS.items():
            print(f"\n{name}, {title}")
            print(f"{'':30}{'devices':>8}{'rounds':>7}{'seconds':>9}{'saved':>8}{'planning':>10}")
            rows = {row[0]: row for row in latencies(task_of(graph, fleet))}
            first = rows["coopai"][2]
            rows |= {row[0]: row for row in streams(task_of(graph, fleet, FRAMES))}
            for row, plan, seconds, spent in rows.values():
                saved = "" if row.startswith("stream") else f"{1 - seconds / first:7.1%}"
                print(f"{row:30}{plan.decisions['devices']:8}{len(plan.rounds):7}{seconds:9.4f}"
                      f"{saved:>8}{spent:8.2f} s", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
