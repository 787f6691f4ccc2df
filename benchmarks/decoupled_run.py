"""Peers as node processes: accuracy beside the one-process simulation, loss and return, a slow peer.

    python benchmarks/decoupled_run.py [--rounds 8] [--peers 4,10] [--parts accuracy,return,slow]

Data: mnist5k (no file needed). Peers' speeds differ (4 : 3 : 2 : 1 and so on) and are emulated. The same
network, class sets, seeds and minibatches are trained in one process by `weft.reference.peers`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from weft import zoo
from weft.data import load
from weft.fleet.faults import Faults
from weft.fleet.fleet import Device, Fleet, Medium
from weft.graph.optimizers.optimizer import Optimizer
from weft.graph.split.classes.network import DecoupledNet
from weft.papers.decoupled.methods import eight_bits
from weft.program.lower.lower import lower
from weft.program.timeline import Timeline
from weft.reference.peers import Recipe, Samples, train_peers
from weft.reference.peers_baselines import train_fedavg
from weft.runtime.emulate.local import LocalFleet
from weft.runtime.run.feeds import accuracy
from weft.runtime.run.injector import Injector
from weft.runtime.run.launch import Place
from weft.runtime.run.recovery.leave_out import LeaveOut
from weft.runtime.run.run import Run
from weft.runtime.run.workload.asked import Asked
from weft.runtime.run.workload.peer_timeline import round_seconds
from weft.runtime.run.workload.peers import PeerNetworks
from weft.simulate.simulate import simulate
from weft.strategies.decoupled.topology import from_edges

BATCH, EVERY = 16, 25
RECIPE = Recipe(batch=BATCH, steps=EVERY, watch=False)


def fleet_of(count: int, slow: float = 1.0) -> Fleet:
    """Peers of 0.5 to 2 GFLOPS on one medium; the last one may be slower still."""
    speeds = [(0.5, 1.0, 1.5, 2.0)[n % 4] if slow == 1.0 else 2.0 for n in range(count)]
    speeds[-1] /= slow
    names = [f"p{n}" for n in range(count)]
    return Fleet(
        tuple(Device(n, gflops=g, data=n == "p0") for n, g in zip(names, speeds, strict=True)),
        medium=(Medium("wifi", "p0", tuple(names[1:]), 200.0, 1.0),),
    )


def training(
    fleet: Fleet, strategy: str, rounds: int, seed: int, **options: object
) -> PeerNetworks:
    torch.manual_seed(seed)
    data = load("mnist5k")
    given = {"steps": EVERY, "last": 2, "filters": 20, "pretrain": 60, "public": 500, **options}
    asked = Asked(
        model=zoo.build("cnn5", data.input_shape, data.classes), data="mnist5k",
        loss=nn.CrossEntropyLoss(), fleet=fleet, strategy=strategy, plan=None,
        steps=rounds * EVERY, batch=BATCH,
        rule=Optimizer("momentum", RECIPE.lr, RECIPE.momentum, RECIPE.decay),
        place=Place(local=True), options=given, seed=seed, deadline=60.0, name="cnn5",
    )  # fmt: skip
    return PeerNetworks(asked)


@contextmanager
def nodes(count: int) -> Iterator[LocalFleet]:
    with LocalFleet([f"p{n}" for n in range(count)]) as local:
        local.crew.wait_for(local.names, 120.0)
        yield local


@dataclass(frozen=True)
class Ran:
    """What came of a run."""

    accuracy: float
    timeline: Timeline
    done: dict[str, int]
    events: list[dict[str, Any]]


def run_real(
    local: LocalFleet,
    what: PeerNetworks,
    script: Faults | None = None,
) -> Ran:
    settings = replace(what.settings(), shaping="fabric", scratch=local.scratch, same_clock=True)
    with Run(
        local.crew, what.plan, what.graph, what.state, settings, workload=what,
        recovery=LeaveOut(what.plan),
    ) as run, Injector(script or Faults(), local) as injector:  # fmt: skip
        run.prepare()
        injector.watch(run)
        outcome = run.steps(0, what.asked.steps)
        trained = what.result(run)
        timeline, _ = run.timeline()
    assert trained.test_accuracy is not None
    return Ran(trained.test_accuracy, timeline, outcome.done, run.events)


def simulated_accuracy(what: PeerNetworks, rounds: int) -> float:
    data, peers, net = what.data, what.peers, what.net
    samples = Samples(data.train_x, data.train_y, data.test_x, data.test_y, public=peers.public)
    plus = what.asked.strategy == "decoupled+"
    recipe = replace(
        RECIPE, rounds=rounds, seed=what.asked.seed, shared=peers.shared, weighted=plus,
        code=eight_bits if plus else None,
    )  # fmt: skip
    sets = list(what.sets.values())
    if not isinstance(net, DecoupledNet):
        return train_fedavg(net, samples, sets, recipe).accuracy[-1]
    number = {device: n for n, device in enumerate(what.sets)}
    near = from_edges(len(sets), [(number[a], number[b]) for a, b in peers.edges])
    return train_peers(net, samples, sets, near, recipe).accuracy[-1]


def accuracies(counts: list[int], rounds: int, seeds: int) -> None:
    print("accuracy after", rounds, "rounds of", EVERY, "minibatches of", BATCH)
    print(
        "peers  strategy    shared  seed  before  node processes  one process  step s (predicted)"
    )
    cases = [
        ("decoupled", "ring"),
        ("decoupled", "gossip"),
        ("fedavg", "ring"),
        ("decoupled+", "gossip"),
    ]
    for count in counts:
        with nodes(count) as local:
            for strategy, shared in cases:
                for seed in range(seeds):
                    options: dict[str, object] = {"shared": shared}
                    if strategy == "decoupled+":
                        options["filters"] = "20,38"
                    elif count == 10:
                        options["overlap"] = 1
                    what = training(fleet_of(count), strategy, rounds, seed, **options)
                    before = accuracy(what.net, (what.data.test_x, what.data.test_y))
                    expected = simulated_accuracy(what, rounds)
                    ran = run_real(local, what)
                    assert what.plan.predicted is not None
                    print(
                        f"{count:5}  {strategy:10}  {shared:6}  {seed:4}  {before:6.1%}  {ran.accuracy:14.1%}"
                        f"  {expected:11.1%}  {ran.timeline.step_s:.3f} "
                        f"({what.plan.predicted.step_s:.3f})",
                        flush=True,
                    )


def loss_and_return(rounds: int) -> None:
    """p1 is killed a quarter of the way in, and comes back at once (as a new process)."""
    with nodes(4) as local:
        what = training(fleet_of(4), "decoupled", rounds, 0)
        expected = simulated_accuracy(what, rounds)

        script = Faults().kill("p1", step=what.asked.steps // 4).restart("p1", after_s=0.1)
        ran = run_real(local, what, script)
    print(f"\np1 killed and returned: accuracy {ran.accuracy:.1%}, without any loss {expected:.1%}")
    for event in ran.events:
        print("  ", event)


def slow_peer(rounds: int) -> None:
    """One peer ten times slower: a round of the fast ones over what their own computing takes."""
    print("\none of four peers 10x slower: a fast peer's round over its own computing")
    print("exchange  measured  simulated  predicted step s  measured step s  accuracy")
    with nodes(4) as local:
        for strategy in ("decoupled", "decoupled+"):
            what = training(
                fleet_of(4, slow=10.0),
                strategy,
                rounds,
                0,
                classes="9,0,1,2,3/2,3,4,5,6/5,6,7,8,9/8,9,0,1,2",
            )
            ran, predicted = run_real(local, what), what.plan.predicted
            assert predicted is not None
            alone = {d: EVERY * predicted.compute_s[d] for d in what.own}
            fast = [d for d in what.own if d != "p3"]
            line = simulate(lower(what.plan), steps=4 * EVERY)
            real = [round_seconds(ran.timeline, d, EVERY) / alone[d] for d in fast]
            sim = [round_seconds(line, d, EVERY) / alone[d] for d in fast]
            print(
                f"{strategy:10}  {statistics.median(real):6.2f}  {statistics.median(sim):9.2f}"
                f"  {predicted.step_s:16.3f}  {ran.timeline.step_s:15.3f}  {ran.accuracy:8.1%}"
                f"   minibatches done {ran.done}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--peers", default="4,10")
    parser.add_argument("--parts", default="accuracy,return,slow")
    given = parser.parse_args()
    torch.set_num_threads(1)
    begin = time.monotonic()
    parts = given.parts.split(",")
    if "accuracy" in parts:
        accuracies([int(n) for n in given.peers.split(",")], given.rounds, given.seeds)
    if "return" in parts:
        loss_and_return(given.rounds)
    if "slow" in parts:
        slow_peer(max(given.rounds // 2, 4))
    print(f"\n{time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
