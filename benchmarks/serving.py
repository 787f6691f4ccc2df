"""Serving while devices die: is every request answered once and rightly, how late, and does memory stay flat?

Eight threads call `weft.serve` at once on an emulated fleet on this machine. Every request has inputs of its
own, and its answer is compared with the whole network's. Three times a random device that has a part in the
running plan, the one that loads the samples included, gets `kill -9`; it is started again after two seconds.
Then, without kills, the memory of every process is read while many requests are answered.

    python benchmarks/serving.py                           # 10,000 requests each, then 100,000: half an hour
    python benchmarks/serving.py --few                     # 1,000 requests each, then 10,000
    python benchmarks/serving.py --only chain,coopai       # some strategies
    python benchmarks/serving.py --flat 0 --seed 7         # kills alone, at other moments

Exit code 1 if an answer is missing or wrong, or if memory grows by more than 5 MB.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import combinations

import torch
from torch import Tensor, nn

import weft
from weft.fleet.fleet import Device, Fleet, Link, Medium
from weft.loom.running import fleet_of_this_run
from weft.runtime.emulate.local import LocalFleet
from weft.runtime.run.serve import Served

THREADS, KILLS, BACK_S = 8, 3, 2.0
RIGHT = 1e-4  # the largest difference of an answer from the whole network's
SETTLED = 0.25  # of the requests are answered before memory counts: pools and rings fill first
FLAT_MB = 5.0


def meshed(*devices: Device) -> Fleet:
    ends = combinations([device.name for device in devices], 2)
    return Fleet(devices, tuple(Link(pair, 1000.0, 1000.0, 0.1) for pair in ends))


TIERS = meshed(
    Device("pi", gflops=0.5, data=True), Device("nuc", "edge", gflops=1.0),
    Device("box", "edge", gflops=1.0), Device("cloud", "cloud", gflops=2.0),
)  # fmt: skip
CELL = Fleet(
    (Device("gw", "edge", gflops=0.5, data=True), *(Device(f"r{k}", gflops=0.5) for k in range(3))),
    medium=(Medium("wifi", "gw", ("r0", "r1", "r2"), 1000.0),),
)
SWARM = meshed(*(Device(f"n{k}", gflops=0.5, data=k == 0) for k in range(5)))
SERVICES: dict[str, tuple[Fleet, Mapping[str, str]]] = {
    "coopai": (CELL, {}),
    "coopai+": (CELL, {}),
    "chain": (TIERS, {"devices": "pi,nuc,cloud"}),
    "all-edge": (TIERS, {}),
    "stitchnet": (SWARM, {}),
}


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 8, 3, padding=1),
        nn.ReLU(), nn.Flatten(), nn.Linear(128, 16), nn.ReLU(), nn.Linear(16, 4),
    ).eval()  # fmt: skip


def inputs_of(number: int) -> Tensor:
    """The inputs of a request: no two requests have the same."""
    return torch.randn(1, 1, 8, 8, generator=torch.Generator().manual_seed(number))


@dataclass
class Load:
    """What eight threads saw."""

    requests: int
    seconds: list[float] = field(default_factory=list)  # from the call to the answer
    wrong: list[str] = field(default_factory=list)
    answered: dict[int, int] = field(default_factory=dict)  # how often, by request
    _next: int = 0
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def take(self) -> int | None:
        with self._guard:
            self._next += 1
            return self._next - 1 if self._next <= self.requests else None

    @property
    def done(self) -> int:
        return len(self.seconds)

    def call(self, net: Served, model: nn.Module) -> None:
        torch.set_num_threads(1)
        while (number := self.take()) is not None:
            x = inputs_of(number)
            begin = time.monotonic()
            try:
                answer = net(x)
            except weft.WeftError as error:
                self.wrong.append(f"request {number}: {error}")
                continue
            took = time.monotonic() - begin
            with torch.no_grad():
                off = float((answer - model(x)).abs().max())
            with self._guard:
                self.seconds.append(took)
                self.answered[number] = self.answered.get(number, 0) + 1
                if off > RIGHT:
                    self.wrong.append(
                        f"request {number}: {off:.2g} from the whole network's answer"
                    )

    def run(self, net: Served, model: nn.Module, meanwhile: Callable[[], None]) -> None:
        threads = [threading.Thread(target=self.call, args=(net, model)) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        meanwhile()
        for thread in threads:
            thread.join()

    def share(self, q: float) -> float:
        return sorted(self.seconds)[min(self.done - 1, int(q * self.done))] * 1e3

    @property
    def is_right(self) -> bool:
        once = all(times == 1 for times in self.answered.values())
        return not self.wrong and once and len(self.answered) == self.requests


class Killer:
    """Kills devices of the running plan at random moments of the load, and starts them again."""

    def __init__(self, net: Served, load: Load, seed: int) -> None:
        self.net, self.load, self.random = net, load, random.Random(seed)
        self.local: LocalFleet = fleet_of_this_run()
        self.killed: list[str] = []

    def __call__(self) -> None:
        count = self.load.requests
        for at in sorted(self.random.uniform(0.1, 0.85) * count for _ in range(KILLS)):
            while self.load.done + len(self.load.wrong) < at:
                time.sleep(0.005)
            device = self.random.choice(sorted(self.net.plan.devices))
            self.local.kill(device)
            self.killed.append(device)
            time.sleep(BACK_S)
            self.local.restart(device)


def serve(name: str) -> Served:
    fleet, options = SERVICES[name]
    return weft.serve(network(), inputs_of(0), fleet, strategy=name, options=options, local=True)


def with_kills(name: str, requests: int, seed: int) -> bool:
    model, load = network(), Load(requests)
    with serve(name) as net:
        killer = Killer(net, load, seed)
        begin = time.monotonic()
        load.run(net, model, killer)
        took = time.monotonic() - begin
        events = net.events
    recovered = [e["seconds"] for e in events if e["kind"] == "recovered"]
    joined = sum(e["kind"] == "device_joined" for e in events)
    print(
        f"{name:10s} {requests:7,d} {len(load.answered):8,d} {len(load.wrong):5d}  "
        f"{','.join(killer.killed):14s} {joined:4d}  "
        f"{max(recovered, default=0.0):9.2f}  {load.share(0.5):7.1f} {load.share(0.99):8.1f} "
        f"{load.share(1.0):8.0f}  {requests / took:6.0f}",
        flush=True,
    )
    for line in load.wrong[:3]:
        print(f"  {line}")
    return load.is_right


def resident_mb(pid: int) -> float:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def flat(name: str, requests: int) -> bool:
    """Memory of every process while many requests are answered."""
    model, load = network(), Load(requests)
    with serve(name) as net:
        local = fleet_of_this_run()
        pids = {"here": os.getpid(), **{d: p.pid for d, p in local.processes.items()}}
        seen: dict[str, list[float]] = {who: [] for who in pids}

        def look() -> None:
            while load.done + len(load.wrong) < requests:
                if load.done > SETTLED * requests:
                    for who, pid in pids.items():
                        seen[who].append(resident_mb(pid))
                time.sleep(0.5)

        begin = time.monotonic()
        load.run(net, model, look)
        took = time.monotonic() - begin
    spread = {who: max(values) - min(values) for who, values in seen.items()}
    grown = {who: values[-1] - values[0] for who, values in seen.items()}
    print(f"{name}: {len(load.answered):,d} of {requests:,d} requests answered by {THREADS} threads in "
          f"{took:.0f} s, {len(load.wrong)} wrong; p99 {load.share(0.99):.1f} ms")  # fmt: skip
    for who in pids:
        print(f"  {who:6s} {seen[who][0]:7.1f} MB after {SETTLED:.0%} of them, {grown[who]:+5.1f} MB at the "
              f"end, range {spread[who]:.1f} MB")  # fmt: skip
    return load.is_right and all(abs(mb) <= FLAT_MB for mb in spread.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--few", action="store_true")
    parser.add_argument("--only", default=",".join(SERVICES), help="strategies, with commas")
    parser.add_argument("--requests", type=int, default=None, help="with kills: 10,000")
    parser.add_argument("--flat", type=int, default=None, help="without kills: 100,000; 0: none")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    requests = args.requests or (1_000 if args.few else 10_000)
    many = args.flat if args.flat is not None else 10_000 if args.few else 100_000
    names = args.only.split(",")
    print(
        "strategy  requests answered wrong  killed         back  recovery s  p50 ms   p99 ms   max ms  per s"
    )
    right = [with_kills(name, requests, args.seed) for name in names]
    if many:
        print()
        right.append(flat(names[-1] if "chain" not in names else "chain", many))
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
