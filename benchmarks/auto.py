"""Is the plan that `--strategy auto` takes really the fastest of the table? Run on three example fleets.

    python benchmarks/auto.py [FLEET ...]      names in examples/fleets; default: first, demo, three-tier

All strategies are priced for LeNet-5, with times that are measured here and stretched to the fleet file's
speeds, as `weft train --local --strategy auto` does it. The four fastest plans that compute what one process
computes are then run, and so is the plan of `auto`: real node processes, shaped links, MNIST images. They
take turns, three times each; a figure is the median of the medians. `auto` takes one place where a split
gains less than 5%, so it is called right if nothing measured is more than 5% faster.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

import torch
from torch import nn

from weft.adapt.train import train
from weft.fleet.fleet import Fleet
from weft.graph.capture.module import capture, capture_loss, state_of
from weft.planning.advise import LIMIT_S
from weft.planning.compare import compare
from weft.planning.decide import decide
from weft.planning.one_place import WORTH
from weft.planning.task import make_task
from weft.plans.plan import Plan
from weft.runtime.run.pace import emulation
from weft.zoo.loading import load

FLEETS = Path(__file__).resolve().parent.parent / "examples" / "fleets"
BATCH, STEPS, TURNS, BEST = 64, 24, 3, 4


def main(names: list[str]) -> int:
    torch.set_num_threads(1)
    wrong = 0
    for name in names or ["first", "demo", "three-tier"]:
        plans = plans_of(Fleet.load(FLEETS / f"{name}.toml"))
        taken: dict[str, list[float]] = {label: [] for label in plans}
        for _ in range(TURNS):
            for label, plan in plans.items():
                taken[label].append(step_s(plan))
        measured = {label: statistics.median(times) for label, times in taken.items()}
        best = min(measured, key=lambda label: measured[label])
        off = measured["auto"] / measured[best] - 1
        wrong += off > WORTH
        for label, plan in plans.items():
            assert plan.predicted is not None
            expected, took = plan.predicted.seconds * 1e3, measured[label] * 1e3
            words = f"{expected:8.1f} ms predicted{took:8.1f} ms measured"
            print(f"{name:12}{label:28}{words}  {', '.join(plan.devices)}", flush=True)
        print(f"{name:12}auto is {off:+.1%} against the best measured plan, {best}")
    return 1 if wrong else 0


def plans_of(fleet: Fleet) -> dict[str, Plan]:
    """The plan of `auto` and the best exact ones of the table, by the names of their rows."""
    module, example = load("lenet5")
    graph = capture(module, example, name="lenet5")
    graph = capture_loss(graph, nn.CrossEntropyLoss(), torch.zeros(2, dtype=torch.long))
    stretched = emulation(graph, state_of(module), fleet, batch=BATCH, training=True)
    task = make_task(stretched.profile, fleet, batch=BATCH, graph=graph)
    rows = [row for row in compare(task, limit_s=LIMIT_S) if row.exact and not row.peers]
    best = {row.label: row.plan for row in rows[:BEST] if row.plan is not None}
    return {"auto": decide("auto", task), **best}


def step_s(plan: Plan) -> float:
    """The median step of a real run."""
    module, _ = load("lenet5")
    result = train(
        module, "mnist5k", nn.CrossEntropyLoss(), fleet=plan.fleet, plan=plan, steps=STEPS,
        batch=BATCH, local=True, adapt=False,
    )  # fmt: skip
    return result.step_s


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
