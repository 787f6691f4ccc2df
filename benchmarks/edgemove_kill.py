"""`kill -9` of the worker: seconds until the next minibatch is done, and how many are done again.

    python benchmarks/edgemove_kill.py [runs] [kills]

LeNet-5 on MNIST images, a phone and four edge servers as processes of this machine, `edgemove+`. In every
run the server that is the worker at that moment is killed, `kills` times (a killed one does not come
back: three at most leave somebody). The clock runs from the signal to the first report of a
minibatch that was not done before.
"""

from __future__ import annotations

import os
import statistics
import sys
from pathlib import Path

import torch
from torch import nn

import weft
from weft import zoo
from weft.fleet.faults import Faults
from weft.fleet.fleet import Fleet

FLEET = Path(__file__).resolve().parent.parent / "examples" / "fleets" / "moving.toml"
STRATEGY = "edgemove+"
APART = 30  # minibatches between two kills
TARGET_S = 2.0


def survive(fleet: Fleet, kills: int, seed: int) -> list[tuple[float, int]]:
    """One run that loses its worker `kills` times: seconds and minibatches that were done again."""
    script = Faults(seed=seed)
    for number in range(1, kills + 1):
        script = script.kill(step=number * APART)
    result = weft.train(
        zoo.build("lenet5"), "mnist5k", nn.CrossEntropyLoss(), fleet=fleet, strategy=STRATEGY,
        steps=APART * (kills + 2), batch=32, local=True, seed=seed, name="lenet5", look_every=10,
        faults=script,
    )  # fmt: skip
    seconds = [fault.recovered_s for fault in result.faults]
    repeated = [event["repeated"] for event in result.events if event["kind"] == "recovered"]
    return [(s, n) for s, n in zip(seconds, repeated, strict=False) if s is not None]


def main(runs: int = 3, kills: int = 2) -> None:
    torch.set_num_threads(1)
    fleet = Fleet.load(FLEET)
    recoveries: list[tuple[float, int]] = []
    print(f"{'kill':>4} {'seconds':>8} {'repeated':>9}  load")
    for seed in range(runs):
        torch.manual_seed(seed)
        for seconds, repeated in survive(fleet, kills, seed):
            recoveries.append((seconds, repeated))
            load = os.getloadavg()[0]
            print(f"{len(recoveries):>4} {seconds:>6.2f} s {repeated:>9}  {load:.1f}", flush=True)
    times = [seconds for seconds, _ in recoveries]
    late = sum(seconds > TARGET_S for seconds in times)
    print(
        f"{len(recoveries)} of {runs * kills} kills survived: median {statistics.median(times):.2f} s, "
        f"longest {max(times):.2f} s, {late} above {TARGET_S:g} s; "
        f"at most {max(repeated for _, repeated in recoveries)} minibatches done again"
    )


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
