"""EdgeMove for real: a phone and four edge servers, emulated here, whose loads and links follow a trace.

    python benchmarks/edgemove_run.py [steps] [rounds]

LeNet-5 on MNIST images with the trace of examples/traces/moving.json, beside training in one process. The
strategies take turns, round by round; told are the medians of their seconds. Cycles are shortened
(10 minibatches in place of the paper's 500 and 50), since the walk is short. Every round has its
own seed: of weights, samples and random servers.
"""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from pathlib import Path

import torch
from torch import nn

from weft import zoo
from weft.adapt.train import train
from weft.data import batch_indices, load
from weft.fleet.fleet import Fleet
from weft.fleet.trace import Trace
from weft.runtime.feeds import accuracy
from weft.runtime.results import TrainResult

HERE = Path(__file__).resolve().parent.parent / "examples"
LOOKS = {"pipedream-e": 10, "edgemove": 10, "edgemove+": 10}
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
        look_every=LOOKS.get(strategy), seed=seed,
    )  # fmt: skip


def main(steps: int = 400, rounds: int = 1) -> None:
    torch.set_num_threads(1)
    fleet = Fleet.load(HERE / "fleets" / "moving.toml")
    trace = Trace.load(HERE / "traces" / "moving.json", fleet)
    seconds: dict[str, list[float]] = {}
    print(f"{'strategy':<12} {'seconds':>8} {'step':>9} {'accuracy':>9}  events")
    for seed in range(rounds):
        for strategy in ("all-device", *LOOKS):
            result = run(strategy, steps, seed, fleet, trace)
            seconds.setdefault(strategy, []).append(result.seconds)
            counts = Counter(event["kind"] for event in result.events)
            told = ", ".join(f"{n} {kind}" for kind, n in counts.items()) or "-"
            print(f"{strategy:<12} {result.seconds:>8.1f} {result.seconds / steps * 1e3:>6.1f} ms "
                  f"{result.test_accuracy:>9.1%}  {told}", flush=True)  # fmt: skip
        print(f"one process  {one_process(steps, seed):>28.1%}  (seed {seed})", flush=True)
    base = statistics.median(seconds["all-device"])
    for strategy, found in seconds.items():
        median = statistics.median(found)
        print(f"{strategy:<12} median {median:.1f} s, {base / median:.2f}x all-device")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
