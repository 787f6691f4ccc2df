"""How long planning takes on large fleets, and how good the plans are.

    python benchmarks/fleet_scale.py                   # the table
    python benchmarks/fleet_scale.py --sizes 10,100    # smaller fleets only
    python benchmarks/fleet_scale.py --search 20       # also: 20 s of random search for better plans

VGG-16, batch 32. The fleets are random: speeds between 0.5 and 50 GFLOPS (devices), 20 and 200 (edge
servers), 100 and 1000 (the cloud), links between 5 and 1000 Mbps with 1 to 20 ms of latency, and three
shapes: a star around an edge server, a tree, and a mesh in which no device has more than 20 links. Times
are the processor's, of the whole `decide` with a fleet that was never asked for a route before.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable

from weft.fleet.fleet import Device, Fleet, Link, Tier
from weft.graph.network import Graph
from weft.planning.decide import decide
from weft.planning.task import make_task, named_graph
from weft.plans.derive import derive_profile
from weft.plans.plan import Plan
from weft.plans.task import Task
from weft.strategies.chain import cuts
from weft.strategies.chain.strategy import Choice, Search
from weft.strategies.common.costs import Costs

SPEEDS: dict[Tier, tuple[float, float]] = {
    "device": (0.5, 50.0),
    "edge": (20.0, 200.0),
    "cloud": (100.0, 1000.0),
}
MOST_LINKS = 20  # of a device in a mesh
BATCH = 32
TARGETS_S = {10: 0.2, 100: 0.5, 1000: 2.0}


def devices(count: int, rng: random.Random) -> tuple[Device, ...]:
    """The first device has the data, the second is an edge server, the third a cloud machine; of the others
    a tenth are edge servers and a fiftieth cloud machines."""
    tiers: list[Tier] = ["device", "edge", "cloud"]
    tiers += rng.choices(["device", "edge", "cloud"], [0.88, 0.1, 0.02], k=count - 3)
    return tuple(
        Device(f"d{n}", tier, gflops=round(_between(rng, *SPEEDS[tier]), 2), data=n == 0)
        for n, tier in enumerate(tiers)
    )


def _between(rng: random.Random, low: float, high: float) -> float:
    """Evenly on a scale of ratios."""
    return float(low * (high / low) ** rng.random())


def _link(a: int, b: int, rng: random.Random) -> Link:
    up, down = (round(_between(rng, 5.0, 1000.0), 1) for _ in range(2))
    return Link((f"d{a}", f"d{b}"), up, down, latency_ms=round(_between(rng, 1.0, 20.0), 2))


def star(count: int, rng: random.Random) -> list[tuple[int, int]]:
    """All are linked with the first edge server."""
    return [(n, 1) for n in range(count) if n != 1]


def tree(count: int, rng: random.Random) -> list[tuple[int, int]]:
    """Each is linked with one of those before it."""
    return [(n, rng.randrange(n)) for n in range(1, count)]


def mesh(count: int, rng: random.Random) -> list[tuple[int, int]]:
    """A tree, and random links up to about 10 for each device, at most MOST_LINKS."""
    pairs: dict[tuple[int, int], None] = {}
    degree = [0] * count
    for n in range(1, count):
        near = [m for m in range(n) if degree[m] < MOST_LINKS]
        m = rng.choice(near)
        pairs[n, m] = None
        degree[n] += 1
        degree[m] += 1
    for _ in range(5 * count):
        n, m = sorted(rng.sample(range(count), 2), reverse=True)
        if (n, m) not in pairs and max(degree[n], degree[m]) < MOST_LINKS:
            pairs[n, m] = None
            degree[n] += 1
            degree[m] += 1
    return list(pairs)


SHAPES: dict[str, Callable[[int, random.Random], list[tuple[int, int]]]] = {
    "star": star,
    "tree": tree,
    "mesh": mesh,
}


def random_fleet(shape: str, count: int, seed: int) -> Fleet:
    """A fleet of that shape; the same one for the same seed."""
    rng = random.Random(f"{shape} {count} {seed}")
    machines = devices(count, rng)
    return Fleet(machines, tuple(_link(a, b, rng) for a, b in SHAPES[shape](count, rng)))


def task_on(graph: Graph, fleet: Fleet) -> Task:
    """The training task of a network on a fleet."""
    return make_task(derive_profile(graph, fleet), fleet, batch=BATCH, graph=graph)


def planned(strategy: str, task: Task) -> tuple[Plan, float]:
    """The plan, and the processor's seconds that it took."""
    begin = time.process_time()
    plan = decide(strategy, task)
    return plan, time.process_time() - begin


def longer_chain(task: Task, plan: Plan, seconds: float, seed: int = 0) -> float:
    """The least price that a random search finds in so many seconds of CPU time, from the plan on.

    Devices are replaced, added, removed and exchanged; cuts are the best for each row, and then moved.
    """
    rng = random.Random(seed)
    costs = Costs(task)
    goals = (cuts.bottleneck(costs), cuts.serial(costs))
    search = Search(task, costs, throughput=False)
    near = [name for name in task.fleet.names if task.fleet.connected(task.source, name)]
    fast = sorted(near, key=costs.total)[:60]
    order = tuple(dict.fromkeys(shard.device for shard in plan.shards))
    search.survey(
        [
            tuple(
                device
                for shard in plan.shards
                for device in [shard.device] * (shard.layers[1] - shard.layers[0] + 1)
            )
        ]
    )
    search.move_cuts()
    end = time.process_time() + seconds
    while time.process_time() < end:
        row = list(order)
        if rng.random() < 0.1:
            row = rng.sample(fast, rng.randint(1, min(5, len(fast))))
        for _ in range(rng.randint(1, 3)):
            move, place = rng.randrange(4), rng.randrange(len(row)) if row else 0
            new = rng.choice(
                [name for name in (fast if rng.random() < 0.8 else near) if name not in row] or [""]
            )
            if move == 0 and new and row:
                row[place] = new
            elif move == 1 and new:
                row.insert(rng.randint(0, len(row)), new)
            elif move == 2 and len(row) > 1:
                row.pop(place)
            elif move == 3 and len(row) > 1:
                other = rng.randrange(len(row))
                row[place], row[other] = row[other], row[place]
        if not 1 <= len(row) <= costs.layers:
            continue
        better = False
        for goal in goals:
            cutting = cuts.best_cuts(costs, goal, tuple(row))
            if cutting is None:
                continue
            assignment = cutting.assignment(costs.layers)
            for step in search.ladder(assignment):
                better |= search.consider(Choice(assignment, *step))
        if better:
            search.move_cuts()
            order = tuple(row)
    return search.value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="10,100,1000")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--strategies", default="chain,hiertrain+")
    parser.add_argument("--search", type=float, default=0.0)
    parser.add_argument("--shapes", default=",".join(SHAPES))
    arguments = parser.parse_args()
    graph = named_graph("vgg16")
    print(
        f"{'strategy':<12}{'shape':<6}{'devices':>8}{'median':>10}{'most':>10}{'target':>10}  step"
    )
    for count in map(int, arguments.sizes.split(",")):
        for shape in arguments.shapes.split(","):
            for strategy in arguments.strategies.split(","):
                times, steps = [], []
                for seed in range(arguments.seeds):
                    task = task_on(graph, random_fleet(shape, count, seed))
                    plan, seconds = planned(strategy, task)
                    times.append(seconds)
                    assert plan.predicted is not None
                    steps.append(plan.predicted.seconds)
                    if arguments.search and strategy == "chain":
                        least = longer_chain(task, plan, arguments.search, seed)
                        print(
                            f"  {plan.predicted.seconds / least:.3f} of the best known {least:.4f}"
                        )
                print(
                    f"{strategy:<12}{shape:<6}{count:>8}{statistics.median(times):>8.2f} s"
                    f"{max(times):>8.2f} s{TARGETS_S.get(count, float('nan')):>8.1f} s  "
                    + " ".join(f"{s:.4f}" for s in steps),
                    flush=True,
                )


if __name__ == "__main__":
    main()
