"""Runs of 64 emulated devices on this machine: a chain, a swarm and peers, each to its end.

    python benchmarks/many_runs.py                    # 64 devices
    python benchmarks/many_runs.py --devices 16 --only chain

All devices are in the run: a chain has one layer on each, a swarm some units of every layer on each, and each
peer trains a network of its own. The figures are the largest over the devices while the run goes on: private
and proportional memory, threads, sockets; and what the run took.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

from many import connections, threads
from startup import memory_mb
from torch import nn

import weft
from weft import zoo
from weft.data import load
from weft.fleet.fleet import Device, Fleet, Link, Medium
from weft.graph.capture.module import capture
from weft.plans.derive import derive_profile
from weft.plans.plan import Plan, Shard

LOOK_S = 0.5
DEADLINE_S = 300.0


def fleet_of(count: int, linked: bool = False) -> Fleet:
    """Devices of one speed: on one medium behind the first, or each with a link to every other."""
    names = [f"d{n}" for n in range(count)]
    devices = tuple(Device(name, gflops=2.0, data=name == "d0") for name in names)
    if linked:
        pairs = itertools.combinations(names, 2)
        return Fleet(devices, tuple(Link(pair, 100.0, 100.0, 0.5) for pair in pairs))
    return Fleet(devices, medium=(Medium("wifi", "d0", tuple(names[1:]), 1000.0, 0.5),))


class Watch(threading.Thread):
    """Looks at the processes below this one while a run goes on."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.done = threading.Event()
        self.most: dict[int, list[float]] = {}
        self.parents: set[str] = set()

    def run(self) -> None:
        while not self.done.wait(LOOK_S):
            for pid in below(Path("/proc/self").resolve().name, self.parents):
                try:
                    _, shared, own = memory_mb(int(pid))
                    seen = [shared, own, float(threads(int(pid))), float(connections(int(pid)))]
                except (FileNotFoundError, ProcessLookupError, KeyError):
                    continue  # it has ended meanwhile
                before = self.most.get(int(pid), seen)
                self.most[int(pid)] = [max(pair) for pair in zip(before, seen, strict=True)]

    def devices(self) -> list[list[float]]:
        """What each device had at most. The process that they are forked from is none of them."""
        return [seen for pid, seen in self.most.items() if str(pid) not in self.parents]


def below(pid: str, parents: set[str]) -> list[str]:
    """Processes below this one that have started none themselves; the others are added to `parents`."""
    found: list[str] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            children = (task / "children").read_text().split()
        except FileNotFoundError:
            continue
        for child in children:
            if Path(f"/proc/{child}").exists():
                deeper = below(child, parents)
                if deeper:
                    parents.add(child)
                found += deeper or [child]
    return found


def chain(count: int) -> str:
    """A chain of one dense layer for each device, four micro-batches."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(784, 32),
                           *(layer for _ in range(count - 2) for layer in (nn.ReLU(), nn.Linear(32, 32))),
                           nn.ReLU(), nn.Linear(32, 10))  # fmt: skip
    fleet, data = fleet_of(count), load("mnist5k")
    graph = capture(module, data.train_x[:2], name="deep")
    last = len(graph.layers) - 1
    shards = [Shard(f"d{n}", (n, n)) for n in range(count - 1)]
    shards.append(Shard(f"d{count - 1}", (count - 1, last)))
    plan = Plan(
        strategy="chain", model="deep", batch=32, mode="train", source="d0", fleet=fleet,
        shards=tuple(shards), micro_batches=4, in_flight=4, profile=derive_profile(graph, fleet),
    )  # fmt: skip
    result = weft.train(
        module, data, nn.CrossEntropyLoss(), plan=plan, steps=10, local=True, lr=0.01,
        deadline=DEADLINE_S, patience=30.0, adapt=False,
    )  # fmt: skip
    return f"10 minibatches, loss {result.losses[-1]:.3f}"


def swarm(count: int) -> str:
    """A perceptron whose hidden layers have one unit or more on each device."""
    result = weft.train(
        zoo.build("mlp"), "mnist5k", nn.CrossEntropyLoss(), fleet=fleet_of(count, linked=True),
        strategy="stitchnet", steps=5, local=True, lr=0.01, deadline=DEADLINE_S, patience=30.0,
    )  # fmt: skip
    return f"5 minibatches, loss {result.losses[-1]:.3f}"


def peers(count: int) -> str:
    """Each device trains some classes."""
    result = weft.train(
        zoo.build("lenet5"), "mnist5k", nn.CrossEntropyLoss(), fleet=fleet_of(count), batch=16,
        strategy="fedavg", steps=10, local=True, deadline=DEADLINE_S, patience=30.0,
    )  # fmt: skip
    return f"10 minibatches a peer, loss {result.losses[-1]:.3f}"


RUNS: dict[str, Callable[[int], str]] = {"chain": chain, "swarm": swarm, "peers": peers}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--devices", type=int, default=64)
    parser.add_argument("--only", default=",".join(RUNS))
    given = parser.parse_args()
    print(
        f"{'run':8}{'devices':>9}{'seconds':>9}{'Pss':>8}{'private':>9}{'threads':>9}{'sockets':>9}"
    )
    for name in given.only.split(","):
        watch, begin = Watch(), time.monotonic()
        watch.start()
        said = RUNS[name](given.devices)
        watch.done.set()
        watch.join()
        seen = list(zip(*watch.devices(), strict=True))
        cells = "".join(f"{max(column):9.1f}" for column in seen)
        middle = "".join(f"{statistics.median(column):9.1f}" for column in seen)
        print(f"{name:8}{given.devices:9}{time.monotonic() - begin:8.1f} s{cells}  {said}")
        print(f"{'':26}{middle}  (median)", flush=True)


if __name__ == "__main__":
    main()
