"""Peers as node processes: accuracy beside the one-process simulation, loss and return, a slow peer.

    python benchmarks/decoupled_run.py [--rounds 8] [--peers 4,10] [--parts accuracy,return,slow]

Data: mnist5k (no file needed). Peers' speeds differ (4 : 3 : 2 : 1 and so on) and are emulated. The same
network, class sets, seeds and minibatches are trained in one process by `weft.reference.peers`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from weft.runtime.run.networks import Own
from weft.runtime.run.peer_timeline import round_seconds
from weft.runtime.run.peers import PeerRun
from weft.runtime.run.train_peers import Asked, PeerTraining

from weft import zoo
from weft.data import load
from weft.fleet.fleet import Device, Fleet, Medium
from weft.graph.optimizer import Optimizer
from weft.graph.split.classes.network import DecoupledNet
from weft.papers.decoupled.methods import eight_bits
from weft.plans.plan import Plan
from weft.program.lower.lower import lower
from weft.reference.peers import Recipe, Samples, train_peers
from weft.reference.peers_baselines import train_fedavg
from weft.runtime.emulate.local import LocalFleet
from weft.runtime.run.feeds import accuracy
from weft.runtime.run.launch import Place
from weft.simulate.simulate import simulate
from weft.strategies.decoupled.topology import topology

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
) -> PeerTraining:
    torch.manual_seed(seed)
    data = load("mnist5k")
    model = zoo.build("cnn5", data.input_shape, data.classes)
    rule = Optimizer("momentum", RECIPE.lr, RECIPE.momentum, RECIPE.decay)
    given = {"steps": EVERY, "last": 2, "filters": 20, "pretrain": 60, "public": 500, **options}
    asked = Asked(
        fleet, strategy, None, rounds * EVERY, BATCH, rule, Place(local=True), given, seed, 60.0,
        name="cnn5",
    )  # fmt: skip
    return PeerTraining(model, data, asked)


@contextmanager
def nodes(count: int) -> Iterator[LocalFleet]:
    with LocalFleet([f"p{n}" for n in range(count)]) as local:
        local.crew.wait_for(local.names, 120.0)
        yield local


def run_real(
    local: LocalFleet, what: PeerTraining, own: dict[str, Own], plan: Plan,
    on_progress: Callable[[PeerRun, dict[str, int]], None] | None = None,
) -> PeerRun:  # fmt: skip
    settings = replace(what.settings(), shaping="fabric", scratch=local.scratch, same_clock=True)
    with PeerRun(local.crew, plan, own, settings) as run:
        run.go(what.asked.steps, lambda done: on_progress(run, done) if on_progress else None)
        run.finish()
    return run


def simulated_accuracy(what: PeerTraining, net: Any, rounds: int) -> float:
    data = what.data
    samples = Samples(
        data.train_x, data.train_y, data.test_x, data.test_y, public=what.plan.decisions["public"]
    )
    plus = what.asked.strategy == "decoupled+"
    recipe = replace(
        RECIPE, rounds=rounds, seed=what.asked.seed, shared=what.plan.decisions["shared"],
        weighted=plus, code=eight_bits if plus else None,
    )  # fmt: skip
    sets = list(what.sets.values())
    if not isinstance(net, DecoupledNet):
        return train_fedavg(net, samples, sets, recipe).accuracy[-1]
    near = topology(what.plan.decisions["topology"], len(sets))
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
                    net, own, plan = what.ready()
                    test = what.data.test_x, what.data.test_y
                    before = accuracy(net, test)
                    expected = simulated_accuracy(what, net, rounds)
                    run = run_real(local, what, own, plan)
                    got = accuracy(what.put_together(net, own, run.states), test)
                    print(
                        f"{count:5}  {strategy:10}  {shared:6}  {seed:4}  {before:6.1%}  {got:14.1%}"
                        f"  {expected:11.1%}  {run.timeline().step_s:.3f} ({plan.predicted.step_s:.3f})",
                        flush=True,
                    )


def loss_and_return(rounds: int) -> None:
    """p1 is killed a quarter of the way in, and comes back at once (as a new process)."""
    acts: list[str] = []
    with nodes(4) as local:
        what = training(fleet_of(4), "decoupled", rounds, 0)
        net, own, plan = what.ready()
        expected = simulated_accuracy(what, net, rounds)

        def kill_and_restart(run: PeerRun, done: dict[str, int]) -> None:
            others = [d for n, d in done.items() if n != "p1"]
            if not acts and min(others) >= what.asked.steps // 4:
                local.kill("p1")
                acts.append("killed")
            elif acts == ["killed"] and run.events:
                local.restart("p1")
                acts.append("restarted")

        run = run_real(local, what, own, plan, kill_and_restart)
    test = what.data.test_x, what.data.test_y
    got = accuracy(what.put_together(net, own, run.states), test)
    print(f"\np1 killed and returned: accuracy {got:.1%}, without any loss {expected:.1%}")
    for event in run.events:
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
            net, own, plan = what.ready()
            run = run_real(local, what, own, plan)
            alone = {d: EVERY * plan.predicted.compute_s[d] for d in own}
            fast = [d for d in own if d != "p3"]
            line = simulate(lower(plan), steps=4 * EVERY)
            real = [round_seconds(run.timeline(), d, EVERY) / alone[d] for d in fast]
            sim = [round_seconds(line, d, EVERY) / alone[d] for d in fast]
            got = accuracy(
                what.put_together(net, own, run.states), (what.data.test_x, what.data.test_y)
            )
            print(
                f"{strategy:10}  {statistics.median(real):6.2f}  {statistics.median(sim):9.2f}"
                f"  {plan.predicted.step_s:16.3f}  {run.timeline().step_s:15.3f}  {got:8.1%}"
                f"   minibatches done {run.done}",
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
