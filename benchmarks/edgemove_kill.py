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
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from weft import zoo
from weft.adapt.adaptive import Adaptive
from weft.adapt.steer import PolicySteering
from weft.fleet.fleet import Fleet
from weft.graph.optimizer import Optimizer
from weft.plans import registry
from weft.plans.online import OnlineRequest
from weft.plans.plan import Plan
from weft.runtime.emulate.local import LocalFleet
from weft.runtime.run.copies import interval
from weft.runtime.run.jobs import Settings
from weft.runtime.run.launch import Place
from weft.runtime.run.outcome import Outcome
from weft.runtime.run.recovery.go_back import GoBack
from weft.runtime.run.run import Run
from weft.runtime.run.workload.asked import Asked
from weft.runtime.run.workload.one_network import OneNetwork

FLEET = Path(__file__).resolve().parent.parent / "examples" / "fleets" / "moving.toml"
STRATEGY = "edgemove+"
APART = 30  # minibatches between two kills
TARGET_S = 2.0


class Killer:
    """Kills the worker of a run every APART minibatches, and times how the run recovers."""

    def __init__(self, local: LocalFleet, kills: int) -> None:
        self.local, self.left, self.next = local, kills, APART
        self.killed_s: float | None = None
        self.recoveries: list[tuple[float, Mapping[str, Any]]] = []  # seconds, the run's own event

    def watch(self, run: Run, outcome: Outcome) -> None:
        done = min(outcome.done[d] for d in run.working) + 1
        told = [event for event in run.events if event["kind"] == "recovered"]
        if self.killed_s is not None:
            if len(told) > len(self.recoveries) and done > told[-1]["step"]:
                self.recoveries.append((time.monotonic() - self.killed_s, told[-1]))
                self.killed_s, self.next = None, done + APART
        elif self.left and done >= self.next and (worker := _worker(run.plan)):
            self.local.kill(worker)
            self.killed_s, self.left = time.monotonic(), self.left - 1


def _worker(plan: Plan) -> str | None:
    return next((s.device for s in plan.shards if s.device != plan.source), None)


def survive(fleet: Fleet, kills: int, seed: int) -> list[tuple[float, Mapping[str, Any]]]:
    """One run that loses its worker `kills` times."""
    asked = Asked(
        model=zoo.build("lenet5"), data="mnist5k", loss=nn.CrossEntropyLoss(), fleet=fleet,
        strategy=STRATEGY, plan=None, steps=APART * (kills + 2), batch=32, rule=Optimizer(),
        place=Place(local=True), seed=seed, name="lenet5",
    )  # fmt: skip
    work = OneNetwork(asked)
    strategy = registry.get(STRATEGY)
    adviser = Adaptive(
        lambda plan: PolicySteering(strategy.make_online(OnlineRequest(plan, {}, 10, 1.0, seed)))
    )
    plan = adviser.first(work.plan)
    with LocalFleet(fleet.names) as local:
        local.crew.wait_for(local.names, 60.0)
        settings: Settings = replace(
            work.settings(), shaping="fabric", scratch=local.scratch, same_clock=True,
            keep_every=(interval(plan),),
        )  # fmt: skip
        killer = Killer(local, kills)
        with Run(
            local.crew, plan, work.graph, work.state, settings, work.feed, workload=work,
            recovery=GoBack(), adviser=adviser,
        ) as run:  # fmt: skip
            run.prepare()
            run.steps(0, asked.steps, lambda outcome: killer.watch(run, outcome))
            work.result(run)
    return killer.recoveries


def main(runs: int = 3, kills: int = 2) -> None:
    torch.set_num_threads(1)
    fleet = Fleet.load(FLEET)
    found: list[tuple[float, Mapping[str, Any]]] = []
    print(f"{'kill':>4} {'seconds':>8} {'recovering':>11} {'repeated':>9}  load")
    for seed in range(runs):
        torch.manual_seed(seed)
        for seconds, event in survive(fleet, kills, seed):
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
