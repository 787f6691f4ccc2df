"""The memory that a plan is predicted to need beside the peak memory of real nodes.

    python benchmarks/memory.py [CASE ...]

Every case runs emulated nodes, one process per device, unpaced, for a few minibatches. `predicted` is
`weft.program.memory`'s need less the weights that a prepared node holds already; `measured` is the peak
resident memory (VmHWM) of the node's process above its resident memory when it was prepared. The nodes
work as on a machine that is short of memory: they return large free blocks to the system
(`runtime/node/memory.py`). With --room they work as on this machine: with plenty of memory they keep what
was freed. `code` are pages of the libraries that the node ran for the first time (RssFile): they are shared
with all processes that run the same code, and no plan decides about them. The samples come from this
process, a few minibatches ahead (`fed`, at the source); they are no part of the plan and are added to
its need.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from weft import zoo
from weft.fleet.fleet import Device, Fleet, Link, Medium
from weft.graph.capture.module import capture, capture_loss, state_of
from weft.graph.optimizers.optimizer import Optimizer
from weft.planning.decide import decide
from weft.planning.task import make_task
from weft.plans.derive import derive_profile
from weft.plans.plan import Part, Plan, Shard
from weft.program.liveness import resting
from weft.program.lower.lower import lower
from weft.program.memory import memory_of
from weft.runtime.emulate.local import LocalFleet
from weft.runtime.node import memory
from weft.runtime.run.feeder import FEED_BYTES, LEAST
from weft.runtime.run.jobs import Settings
from weft.runtime.run.run import Run

MB = 1e6
STEPS = 8
NAMES = ("a", "b", "c")
FLEET = Fleet(
    tuple(Device(name, gflops=10.0, data=name == "a") for name in NAMES),
    tuple(Link((x, y), 4000.0, 4000.0, 0.1) for x in NAMES for y in NAMES if x < y),
)
STAR = Fleet(
    tuple(Device(name, gflops=10.0, data=name == "a") for name in NAMES),
    (),
    (Medium("wifi", gateway="a", members=("b", "c"), mbps=4000.0),),
)


@dataclass(frozen=True)
class Case:
    network: str
    shape: tuple[int, ...]
    classes: int
    batch: int
    shards: Callable[[int, int], tuple[Shard, ...]]  # of the last layer and the batch
    fields: dict[str, Any]
    what: str


def stages(*cuts: int) -> Callable[[int, int], tuple[Shard, ...]]:
    """Devices a, b, c with cuts between them."""

    def shards(last: int, _: int) -> tuple[Shard, ...]:
        bounds = [0, *cuts, last + 1]
        return tuple(Shard(NAMES[n], (x, y - 1)) for n, (x, y) in enumerate(pairwise(bounds)))

    return shards


def lanes(cut_s: int, cut_l: int) -> Callable[[int, int], tuple[Shard, ...]]:
    """HierTrain: a the first layers of a third of the samples, b more layers of a third, c the rest."""

    def shards(last: int, batch: int) -> tuple[Shard, ...]:
        third = batch // 3
        s, o, more = Part(third, 0), Part(batch - 2 * third, third), Part(third, batch - third)
        return (
            Shard("a", (0, cut_s - 1), s), Shard("c", (cut_s, last), s), Shard("c", (0, last), o),
            Shard("b", (0, cut_l - 1), more), Shard("c", (cut_l, last), more),
        )  # fmt: skip

    return shards


CASES = {
    "chain": Case("vgg16", (3, 64, 64), 100, 16, stages(3, 10), {}, "three stages"),
    "pipeline": Case("resnet18", (3, 112, 112), 100, 16, stages(5, 11),
                     {"micro_batches": 4, "in_flight": 3, "optimizer": "adam"}, "1F1B, adam"),
    "lanes": Case("alexnet", (3, 128, 128), 100, 24, lanes(2, 4), {}, "shares of samples"),
    "eager": Case("vgg-small", (3, 96, 96), 10, 48, lanes(2, 3),
                  {"schedule": "eager", "micro_batches": 6, "optimizer": "momentum"}, "eager pieces"),
    "stale": Case("resnet34", (3, 64, 64), 100, 16, stages(12),
                  {"stale": 2, "optimizer": "momentum"}, "three minibatches in flight"),
    "transformer": Case("transformer", (1, 28, 28), 10, 2048, stages(3),
                        {"micro_batches": 2, "in_flight": 2, "optimizer": "adamw"}, "two stages"),
    "infer": Case("vgg16", (3, 128, 128), 100, 16, stages(4, 10),
                  {"mode": "infer", "micro_batches": 2, "in_flight": 2}, "inference"),
    "rounds": Case("vgg16", (3, 128, 128), 100, 8, stages(), {"mode": "infer"}, "coopai+"),
}  # fmt: skip


def plan_of(case: Case, graph: Any) -> Plan:
    profile = derive_profile(graph, FLEET)
    if case.what == "coopai+":
        task = make_task(derive_profile(graph, STAR), STAR, batch=case.batch, mode="infer",
                             graph=graph)  # fmt: skip
        return decide("coopai", task)
    last = len(graph.layers) - 1
    fields = {"mode": "train", **case.fields}
    return Plan(
        strategy="by hand", model=case.network, batch=case.batch, source="a", fleet=FLEET,
        profile=profile, shards=case.shards(last, case.batch), **fields,
    )  # fmt: skip


def resident(pid: int, key: str) -> float:
    """VmRSS, VmHWM or RssFile of a process in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return float(line.split()[1]) * 1024 / MB
    raise RuntimeError(f"/proc/{pid}/status has no {key}")


def measure(case: Case) -> list[tuple[str, float, float, float]]:
    """(device, predicted, measured, of which library code) in MB above the prepared node."""
    torch.manual_seed(0)
    module = zoo.build(case.network, case.shape, case.classes)
    graph = capture(module, torch.zeros(2, *case.shape))
    if case.fields.get("mode") != "infer":
        graph = capture_loss(graph, nn.CrossEntropyLoss(), torch.zeros(2, dtype=torch.long))
    plan = plan_of(case, graph)
    program = lower(plan)
    need, rests = memory_of(program), resting(program)
    x = torch.randn(case.batch, *case.shape)
    y = torch.randint(0, case.classes, (case.batch,))

    def feed(step: int) -> tuple[dict[str, Tensor], Tensor | None]:
        return {graph.inputs[0]: x}, y if plan.mode == "train" else None

    minibatch = case.batch * plan.profile.input_bytes
    ahead = max(LEAST + program.max_lag, FEED_BYTES // minibatch)
    fed = {plan.source: min(STEPS, ahead) * minibatch - minibatch}
    with LocalFleet(NAMES) as local:
        local.crew.wait_for(local.names, 120.0)
        settings = Settings(
            Optimizer(plan.optimizer, lr=1e-4),
            scratch=local.scratch,
            same_clock=True,
            deadline_s=120.0,
        )
        with Run(local.crew, plan, graph, state_of(module), settings, feed) as run:
            run.prepare()
            pids = {name: local.processes[name].pid for name in plan.devices}
            before = {name: resident(pid, "VmRSS") for name, pid in pids.items()}
            code = {name: resident(pid, "RssFile") for name, pid in pids.items()}
            for pid in pids.values():
                Path(f"/proc/{pid}/clear_refs").write_text("5")
            run.steps(0, STEPS)
            peaks = {name: resident(pid, "VmHWM") for name, pid in pids.items()}
            code = {name: resident(pid, "RssFile") - code[name] for name, pid in pids.items()}
    return [
        (
            name,
            (need[name] - rests[name] + fed.get(name, 0)) / MB,
            peaks[name] - before[name],
            code[name],
        )
        for name in pids
    ]


def main() -> None:
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    if "--room" not in sys.argv:
        mapped, trim = map(str, memory.SAVING)
        os.environ |= {"MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": trim,
                       "MALLOC_MMAP_THRESHOLD_": mapped}  # fmt: skip
    print(
        "| case | network | device | predicted MB | measured MB | of it code MB | ratio | without code |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name in words or CASES:
        case = CASES[name]
        for device, predicted, measured, code in measure(case):
            ratios = (predicted / max(growth, 0.1) for growth in (measured, measured - code))
            print(f"| {name}: {case.what} | {case.network} | {device} | {predicted:.1f} | {measured:.1f} | "
                  f"{code:.1f} | {' | '.join(f'{ratio:.2f}' for ratio in ratios)} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
