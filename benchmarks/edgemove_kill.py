"""`kill -9` of the worker: seconds until the next minibatch is done, and how many are done again.

    python benchmarks/edgemove_kill.py [runs] [kills]

LeNet-5 on MNIST images, a phone and four edge servers as processes of this machine, `edgemove+`. In every
run the server that is the worker at that moment is killed, `kills` times (a killed one does not come
back: three at most leave somebody). The clock runs from the signal to the first report of a
minibatch that was not done before. Linux: processes are found by their command line.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from weft.adapt.conduct import Adaptive
from weft.adapt.policies import policy_steering
from weft.runtime.run.coordinator import Coordinator
from weft.runtime.run.training import Conducted

from weft import zoo
from weft.fleet.fleet import Fleet
from weft.plans.plan import Plan
from weft.runtime.run.outcome import Outcome
from weft.runtime.run.train import train

FLEET = Path(__file__).resolve().parent.parent / "examples" / "fleets" / "moving.toml"
APART = 30  # minibatches between two kills
TARGET_S = 2.0


class Killing(Adaptive):
    """An adaptive run that loses its worker every APART minibatches."""

    def __init__(self, kills: int) -> None:
        super().__init__(lambda plan: policy_steering("edgemove+", plan, {}, 10, 0))
        self.left, self.next = kills, APART
        self.killed_s: float | None = None
        self.found: list[tuple[float, Mapping[str, Any]]] = []  # seconds, and the run's own event

    def conduct(
        self,
        run: Coordinator,
        first: int,
        last: int,
        optimizer_state: Mapping[str, Tensor],
        on_progress: Callable[[Outcome], None],
    ) -> Conducted:
        def progress(outcome: Outcome) -> None:
            on_progress(outcome)
            self._step(run, min(outcome.done[d] for d in run.working) + 1)

        return super().conduct(run, first, last, optimizer_state, progress)

    def _step(self, run: Coordinator, done: int) -> None:
        assert self._live is not None
        told = [event for event in self._live.events if event["kind"] == "recovered"]
        if self.killed_s is not None:
            if len(told) > len(self.found) and done > told[-1]["step"]:
                self.found.append((time.monotonic() - self.killed_s, told[-1]))
                self.killed_s, self.next = None, done + APART
        elif self.left and done >= self.next and (worker := _worker(run.plan)):
            os.kill(_process(worker), signal.SIGKILL)
            self.killed_s, self.left = time.monotonic(), self.left - 1


def _worker(plan: Plan) -> str | None:
    return next((s.device for s in plan.shards if s.device != plan.source), None)


def _process(name: str) -> int:
    """The node process of that name among the children of this one."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has just ended
        mine = parent == os.getpid() and b"--name" in words
        if mine and words[words.index(b"--name") + 1] == name.encode():
            return int(folder.name)
    raise SystemExit(f"there is no node process {name}")


def main(runs: int = 3, kills: int = 2) -> None:
    torch.set_num_threads(1)
    fleet = Fleet.load(FLEET)
    found: list[tuple[float, Mapping[str, Any]]] = []
    print(f"{'kill':>4} {'seconds':>8} {'recovering':>11} {'repeated':>9}  load")
    for seed in range(runs):
        torch.manual_seed(seed)
        conductor = Killing(kills)
        train(
            zoo.build("lenet5"), "mnist5k", nn.CrossEntropyLoss(), fleet=fleet, strategy="edgemove+",
            steps=APART * (kills + 2), batch=32, local=True, name="lenet5", seed=seed,
            conductor=conductor,
        )  # fmt: skip
        for seconds, event in conductor.found:
            found.append((seconds, event))
            print(f"{len(found):>4} {seconds:>6.2f} s {event['seconds']:>9.2f} s "
                  f"{event['repeated']:>9}  {os.getloadavg()[0]:.1f}", flush=True)  # fmt: skip
    times = [seconds for seconds, _ in found]
    late = sum(seconds > TARGET_S for seconds in times)
    print(
        f"{len(found)} of {runs * kills} kills survived: median {statistics.median(times):.2f} s, "
        f"longest {max(times):.2f} s, {late} above {TARGET_S:g} s; "
        f"at most {max(event['repeated'] for _, event in found)} minibatches done again"
    )


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
