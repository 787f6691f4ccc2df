"""What it costs a planner to price its candidates: processor seconds of whole plans.

    python benchmarks/candidates.py

`validated` prices every candidate as a winner is priced: its program is checked and its memory counted.
`priced` is what strategies get: a candidate's program is only simulated, and its memory is counted where
the fleet has limits. Both take turns; the least of three is printed. The plans must be the same.
"""

from __future__ import annotations

import dataclasses
import time

from weft.fleet.fleet import Device, Fleet, Link, Medium
from weft.planning.decide import decide
from weft.planning.task import ask
from weft.plans.plan import Plan
from weft.plans.task import Task
from weft.program.lower.lower import lower
from weft.program.validate import validate
from weft.simulate.price import price_of

NAMES = ("gw", "r1", "r2", "r3", "r4")


def fleets(memory_mb: float | None) -> tuple[Fleet, Fleet]:
    """A device, an edge server and a cloud; and four devices on a gateway's Wi-Fi."""
    tiers = Fleet(
        (
            Device("pi", gflops=0.9, data=True, memory_mb=memory_mb),
            Device("nuc", "edge", gflops=7.5, memory_mb=memory_mb),
            Device("cloud", "cloud", gflops=40.0, memory_mb=memory_mb),
        ),
        (
            Link(("pi", "nuc"), 20, 20, 2.0),
            Link(("nuc", "cloud"), 40, 40, 10.0),
            Link(("pi", "cloud"), 15, 15, 15.0),
        ),
    )
    devices = tuple(
        Device(n, gflops=3.0 if n == "gw" else 1.5, data=n == "gw", memory_mb=memory_mb)
        for n in NAMES
    )
    star = Fleet(devices, (), (Medium("wifi", gateway="gw", members=NAMES[1:], mbps=100.0),))
    return tiers, star


def validated(candidate: Plan) -> float:
    program = lower(candidate)
    validate(program)
    return price_of(program).seconds


def seconds(strategy: str, task: Task) -> tuple[float, Plan]:
    begin = time.process_time()
    plan = decide(strategy, task)
    return time.process_time() - begin, plan


def main() -> None:
    print("| strategy | network | memory limits | validated s | priced s | less |")
    print("|---|---|---|---|---|---|")
    for limit in (None, 1e6):
        tiers, star = fleets(limit)
        for strategy, network, fleet, batch in (
            ("chain", "alexnet", tiers, 64), ("chain", "vgg16", tiers, 32),
            ("hiertrain+", "lenet5", tiers, 64), ("hiertrain+", "alexnet", tiers, 128),
            ("coopai+", "lenet5", star, 1), ("coopai+", "alexnet", star, 1),
        ):  # fmt: skip
            mode = "infer" if fleet is star else "train"
            task = ask(network, fleet, batch=batch, mode=mode)
            turns = [(seconds(strategy, dataclasses.replace(task, price=validated)),
                      seconds(strategy, task)) for _ in range(3)]  # fmt: skip
            before, after = (min(turn[k][0] for turn in turns) for k in (0, 1))
            plans = {turn[k][1].shards for turn in turns for k in (0, 1)}
            assert len(plans) == 1, f"{strategy} on {network}: the plans differ"
            said = "none" if limit is None else "all devices"
            print(f"| {strategy} | {network} | {said} | {before:.3f} | {after:.3f} | "
                  f"{1 - after / before:.0%} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
