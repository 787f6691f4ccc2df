"""EdgeMove for real: a phone, four edge servers and a cloud machine, emulated here, on recorded walks.

    python benchmarks/edgemove_run.py [steps] [rounds]

LeNet-5 on MNIST images, each strategy with its default settings on each of examples/traces/city-*.json
(walks through the simulated city, whose seeds are 1, 2, 3), beside training in one process. The
strategies take turns, trace by trace and round by round; every round has its own seed: of weights,
samples and random servers. Told are median and range, and in how many of the walks the expected order
holds: edgemove+ before edgemove before pipedream-e.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

from weft import zoo
from weft.adapt.train import train
from weft.data import batch_indices, load
from weft.fleet.fleet import Fleet
from weft.fleet.trace import Trace
from weft.runtime.run.feeds import accuracy
from weft.runtime.run.results import TrainResult

HERE = Path(__file__).resolve().parent.parent / "examples"
TRACES = ("city-1", "city-2", "city-3")
STRATEGIES = ("all-device", "device-cloud", "pipedream-e", "edgemove", "edgemove+")
ORDER = ("edgemove+", "edgemove", "pipedream-e")
BATCH, LR = 32, 0.05


def one_process(steps: int, seed: int) -> float:
    """The test accuracy of plain training on the same minibatches."""
    data = load("mnist5k")
    torch.manual_seed(seed)
    module = zoo.build("lenet5")
    optimizer = torch.optim.SGD(module.parameters(), LR)
    for step in range(steps):
        index = batch_indices(len(data.train_x), BATCH, step, seed)
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(data.train_x[index]), data.train_y[index]).backward()
        optimizer.step()
    return accuracy(module, (data.test_x, data.test_y))


def run(strategy: str, steps: int, seed: int, fleet: Fleet, trace: Trace) -> TrainResult:
    torch.manual_seed(seed)
    return train(
        zoo.build("lenet5"), "mnist5k", nn.CrossEntropyLoss(), fleet=fleet, strategy=strategy,
        steps=steps, batch=BATCH, optimizer="sgd", lr=LR, local=True, trace=trace, name="lenet5",
        seed=seed,
    )  # fmt: skip


def main(steps: int = 300, rounds: int = 2) -> None:
    torch.set_num_threads(1)
    fleet = Fleet.load(HERE / "fleets" / "city.toml")
    traces = {name: Trace.load(HERE / "traces" / f"{name}.json", fleet) for name in TRACES}
    seconds: dict[tuple[str, str], list[float]] = {}
    print(f"{'trace':<8} {'strategy':<12} {'seconds':>8} {'accuracy':>9} {'load':>5}  events")
    for seed in range(rounds):
        for name, trace in traces.items():
            for strategy in STRATEGIES:
                if strategy == "all-device" and seed:
                    continue  # it meets neither servers nor chance
                result = run(strategy, steps, seed, fleet, trace)
                seconds.setdefault((name, strategy), []).append(result.seconds)
                counts = Counter(event["kind"] for event in result.events)
                told = ", ".join(f"{n} {kind}" for kind, n in counts.items()) or "-"
                print(f"{name:<8} {strategy:<12} {result.seconds:>8.1f} {result.test_accuracy:>9.1%} "
                      f"{os.getloadavg()[0]:>5.1f}  {told}", flush=True)  # fmt: skip
        print(f"one process {one_process(steps, seed):>27.1%}        (seed {seed})", flush=True)
    summary(seconds)


def summary(seconds: dict[tuple[str, str], list[float]]) -> None:
    """Median, range and speedup of every strategy, by trace; then how often the order holds."""
    print(f"\n{'strategy':<12} " + " ".join(f"{name:>26}" for name in TRACES))
    for strategy in STRATEGIES:
        cells = []
        for name in TRACES:
            found = seconds[name, strategy]
            middle = statistics.median(found)
            speedup = statistics.median(seconds[name, "all-device"]) / middle
            cells.append(f"{middle:5.1f} ({min(found):.1f}-{max(found):.1f}) s {speedup:4.2f}x")
        print(f"{strategy:<12} " + " ".join(f"{cell:>26}" for cell in cells))
    for first, second in pairwise(ORDER):
        pairs = [
            (name, number, mine, other)
            for name in TRACES
            for number, (mine, other) in enumerate(
                zip(seconds[name, first], seconds[name, second], strict=True)
            )
        ]
        failed = [
            f"{name} seed {number} ({mine:.1f} and {other:.1f} s)"
            for name, number, mine, other in pairs
            if mine >= other
        ]
        print(f"{first} before {second}: {len(pairs) - len(failed)} of {len(pairs)}"
              + (f"; not on {', '.join(failed)}" if failed else ""))  # fmt: skip


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
