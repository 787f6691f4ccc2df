"""edgemove+ against EdgeMove and its baselines on random fleets and networks, in the simulator.

    python benchmarks/edgemove_fleets.py [fleets] [seed]

Every fleet has a client, one to four edge servers, sometimes a cloud machine, links or a shared medium,
and memory limits now and then. Every network has 3 to 12 layers of random cost. Each plan is priced by the
simulator. Told is how often edgemove+ is faster, as fast (within 0.1%) or slower than each of the others, the
largest loss, and how many losses are beyond 1%; exit code 1 where there is one. "Two in flight" gives
edgemove+ the others' count; a strategy that cannot plan for a fleet is left out there.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections import defaultdict

from weft.errors import WeftError
from weft.fleet.fleet import Device, Fleet, Link, Medium
from weft.planning.task import make_task
from weft.plans.profile import DeviceTimes, LayerCost, Profile
from weft.plans.registry import make_plan
from weft.plans.task import Task

OTHERS = ("edgemove", "pipedream-e", "device-cloud", "all-device")
TIE, BEYOND = 0.001, 0.01


def drawn_profile(draw: random.Random, devices: tuple[Device, ...]) -> Profile:
    count = draw.randint(3, 12)
    layers = tuple(
        LayerCost(f"l{n}", int(10 ** draw.uniform(3, 6.5)), int(10 ** draw.uniform(2.5, 5.5)),
                  saved_bytes=int(10 ** draw.uniform(3, 5.5)))
        for n in range(count)
    )  # fmt: skip
    work = [10 ** draw.uniform(-4, -2) for _ in range(count)]

    def times(speed: float) -> DeviceTimes:
        forward = tuple(seconds / speed for seconds in work)
        updates = tuple(0.05 * seconds for seconds in forward)
        return DeviceTimes(forward, tuple(2 * s for s in forward), updates)

    speeds = {d.name: 1.0 if d.data else 10 ** draw.uniform(-0.3, 2) for d in devices}
    return Profile("drawn", 3072, layers, {name: times(speed) for name, speed in speeds.items()})


def drawn_task(draw: random.Random, **options: object) -> Task:
    servers = [f"e{n}" for n in range(draw.randint(1, 4))]
    names = [*servers, *(["cloud"] if draw.random() < 0.5 else [])]

    def limit() -> float | None:
        return 10 ** draw.uniform(1, 2.5) if draw.random() < 0.2 else None

    others = (Device(n, "cloud" if n == "cloud" else "edge", memory_mb=limit()) for n in names)
    devices = (Device("phone", data=True), *others)
    if draw.random() < 0.25:
        fleet = Fleet(devices, (), (Medium("wifi", names[0], ("phone", *names[1:]),
                                           10 ** draw.uniform(0.5, 3)),))  # fmt: skip
    else:
        fleet = Fleet(devices, tuple(
            Link(("phone", n), 10 ** draw.uniform(0.5, 3), 10 ** draw.uniform(0.5, 3),
                 draw.choice([0.5, 5, 20, 100])) for n in names))  # fmt: skip
    return make_task(
        drawn_profile(draw, devices), fleet, batch=draw.choice([8, 32]), options=options
    )


def seconds(name: str, task: Task) -> float | None:
    try:
        return task.price(make_plan(name, task))
    except WeftError:
        return None  # such as: no cloud machine


def main(fleets: int = 300, seed: int = 0) -> int:
    beyond = 0
    for title, options in (
        ("up to four in flight", {}),
        ("two in flight", {"in_flight": 2}),
        ("labels at home", {"labels": "home"}),
    ):
        ratios: dict[str, list[float]] = defaultdict(list)
        for number in range(fleets):
            draw = random.Random(f"{seed}-{number}")
            task = drawn_task(draw, **options)
            mine = seconds("edgemove+", task)
            for other in OTHERS:
                plain = {k: v for k, v in task.options.items() if other != "all-device"}
                theirs = seconds(other, _with(task, plain))
                if mine is not None and theirs is not None and theirs != float("inf"):
                    ratios[other].append(mine / theirs)
        print(f"edgemove+, {title}: {fleets} fleets")
        print(
            f"  {'against':<14} {'wins':>5} {'ties':>5} {'losses':>7} {'median':>8} {'worst':>8}  beyond 1%"
        )
        for other, found in ratios.items():
            wins = sum(r < 1 - TIE for r in found)
            losses = sum(r > 1 + TIE for r in found)
            worse = sum(r > 1 + BEYOND for r in found)
            beyond += worse
            print(f"  {other:<14} {wins:>5} {len(found) - wins - losses:>5} {losses:>7} "
                  f"{1 / statistics.median(found):>7.2f}x {max(found) - 1:>+8.1%}  {worse}")  # fmt: skip
    return int(beyond > 0)


def _with(task: Task, options: dict[str, str]) -> Task:
    return make_task(task.profile, task.fleet, batch=task.batch, options=options)


if __name__ == "__main__":
    sys.exit(main(*(int(argument) for argument in sys.argv[1:])))
