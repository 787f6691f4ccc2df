"""How long a trajectory of 10,000 minibatches takes to simulate, and the decisions of a live run.

    python benchmarks/edgemove_city.py

VGG-16 in the city (the EUA data's servers with $WEFT_DATA, else generated ones), each policy on the same
five trajectories in turn; the median of CPU times. The weather of a walk is drawn once, beside that. A
look is one call of a policy's `decide` with all servers in reach (about 25).
"""

from __future__ import annotations

import statistics
import time

from weft.fleet.city import Day
from weft.papers.edgemove.runs import (
    OUR_POLICIES,
    PAPER_POLICIES,
    SPEED,
    STEPS,
    WORKLOADS,
    day_of,
    the_city,
    workload_costs,
)
from weft.plans.online import Decision, Policy, Seen
from weft.strategies.edgemove.online.journey import travel

WALKS = 5


class Timed:
    """A policy whose looks are timed."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.every, self.looks = policy, policy.every, list[float]()

    def decide(self, seen: Seen) -> Decision | None:
        begin = time.process_time()
        decision = self.policy.decide(seen)
        self.looks.append(time.process_time() - begin)
        return decision


def weather(trajectory: int) -> tuple[Day, float]:
    begin = time.process_time()
    day = day_of(the_city(), trajectory, SPEED)
    day.until(1500)
    return day, time.process_time() - begin


def main() -> None:
    load, costs = WORKLOADS[0], workload_costs(WORKLOADS[0])
    days = [weather(trajectory) for trajectory in range(WALKS)]
    drawn = statistics.median(seconds for _, seconds in days)
    print(f"{load.title}, {STEPS:,} minibatches, median of {WALKS} walks, CPU time")
    print(f"weather of a walk: {drawn:.3f} s")
    print(f"{'policy':18}{'trajectory':>12}{'one look':>12}")
    for name, make in {**PAPER_POLICIES, **OUR_POLICIES}.items():
        spent: list[float] = []
        looks: list[float] = []
        for trajectory, (day, _) in enumerate(days):
            policy = Timed(make(costs, load, trajectory))
            begin = time.process_time()
            travel(policy, costs, day, STEPS, trajectory)
            spent.append(time.process_time() - begin)
            looks += policy.looks
        look = f"{statistics.median(looks) * 1e6:.0f} µs"
        print(f"{name:18}{statistics.median(spent):>10.3f} s{look:>12}")


if __name__ == "__main__":
    main()
