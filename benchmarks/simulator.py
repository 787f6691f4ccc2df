"""How fast the simulator is, and how its time grows with the program.

    python benchmarks/simulator.py

Prints instructions per second for pipelines of growing length and width, and the exponent e of
time ~ instructions ** e (1: linear). Time is the processor's, so that other work on the machine
counts little; rates are the median of several interleaved runs.
"""

from __future__ import annotations

import math
import statistics
import time
from itertools import pairwise

from weft.fleet.fleet import Device, Fleet, Link, Medium
from weft.plans.plan import Plan, Shard
from weft.plans.profile import DeviceTimes, LayerCost, Profile
from weft.program.lower.lower import lower
from weft.program.program import Program
from weft.simulate.simulate import simulate

REPEATS = 5


def pipeline(devices: int, micro_batches: int, shared: bool) -> Program:
    """A training pipeline over links in a row, or over one Wi-Fi whose gateway holds the data."""
    names = [f"d{n}" for n in range(devices)]
    fleet = Fleet(
        devices=tuple(Device(name) for name in names),
        link=() if shared else tuple(
            Link((a, b), up_mbps=50.0, down_mbps=80.0, latency_ms=1.0)
            for a, b in pairwise(names)
        ),
        medium=(Medium("wifi", names[0], tuple(names[1:]), mbps=100.0),) if shared else (),
    )  # fmt: skip
    times = DeviceTimes((1e-4,) * devices, (2e-4,) * devices, (1e-3,) * devices)
    plan = Plan(
        strategy="pipeline", model="even", batch=4 * micro_batches, mode="train", source=names[0],
        shards=tuple(Shard(name, (n, n)) for n, name in enumerate(names)),
        fleet=fleet,
        profile=Profile(
            model="even", input_bytes=4000, devices=dict.fromkeys(names, times),
            layers=tuple(LayerCost(f"l{n}", 1000, 2000) for n in range(devices)),
        ),
        micro_batches=micro_batches, in_flight=devices, route="store_and_forward",
    )  # fmt: skip
    return lower(plan)


def seconds(program: Program, steps: int, spans: bool) -> float:
    begin = time.process_time()
    simulate(program, steps=steps, spans=spans)
    return time.process_time() - begin


def main() -> None:
    cases = [
        (devices, micro, steps, shared)
        for shared in (False, True)
        for devices, micro, steps in ((2, 8, 8), (4, 16, 16), (8, 32, 16), (8, 64, 64))
    ]
    programs = [pipeline(devices, micro, shared) for devices, micro, _, shared in cases]
    print(f"{'links':8}{'devices':>8}{'micro':>7}{'steps':>7}{'instructions':>14}"
          f"{'per second':>13}{'with spans':>13}{'exponent':>10}")  # fmt: skip
    timed: dict[tuple[int, bool], list[float]] = {}
    for program in programs:
        simulate(program)  # the first run finds the routes
    for _ in range(REPEATS):
        for n, (program, case) in enumerate(zip(programs, cases, strict=True)):
            for spans in (False, True):
                timed.setdefault((n, spans), []).append(seconds(program, case[2], spans))
    before: tuple[int, float] | None = None
    for n, (devices, micro, steps, shared) in enumerate(cases):
        count = len(programs[n]) * steps
        plain = statistics.median(timed[n, False])
        full = statistics.median(timed[n, True])
        if before is None or count < before[0]:
            exponent = ""
        else:
            exponent = f"{math.log(plain / before[1]) / math.log(count / before[0]):.2f}"
        before = count, plain
        print(f"{'wifi' if shared else 'row':8}{devices:8}{micro:7}{steps:7}{count:14,}"
              f"{count / plain:13,.0f}{count / full:13,.0f}{exponent:>10}")  # fmt: skip


if __name__ == "__main__":
    main()
