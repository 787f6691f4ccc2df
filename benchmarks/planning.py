"""How long HierTrain's exact planner takes, beside one linear program per cell as in its paper.

    python benchmarks/planning.py

The networks of the paper's Table II on 0.9 / 7.5 / 400 GFLOPS, 5 and 3 Mbps, 128 samples. The paper
solves a linear program for every (roles, m_s, m_l) and rounds; here each is one call of scipy's HiGHS.
Of networks with many cells a random sample is solved and the time scaled up, which is said. All
times are the processor's, taken in turns in one run; the planner's is the median of all turns and
includes reading the profile and building the plan. `above` is how far the exact plan lies above the
least linear program (a lower bound), where every cell was solved.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
from scipy.optimize import linprog

from weft.fleet.fleet import Device, Fleet, Link
from weft.planning.task import ask
from weft.plans.plan import Plan
from weft.plans.registry import make_plan
from weft.plans.task import Task
from weft.strategies.hiertrain.model import Cells, HierCosts, all_cells
from weft.strategies.hiertrain.strategy import tier_workers

BATCH = 128
TURNS = 10
PER_TURN = 5  # plans in each turn
SAMPLE = 400  # cells solved by linear programs, at most
FLEET = Fleet(
    (
        Device("pi", gflops=0.9, data=True),
        Device("nuc", "edge", gflops=7.5),
        Device("cloud", "cloud", gflops=400.0),
    ),
    (Link(("pi", "nuc"), 5, 5), Link(("nuc", "cloud"), 3, 3)),
)
# Input shape and classes where not the published ones; the paper's seconds (CPLEX, i7-6700).
NETWORKS: dict[str, tuple[tuple[int, ...] | None, int | None, float]] = {
    "lenet5": ((3, 32, 32), 10, 0.52),
    "alexnet": ((3, 64, 64), 200, 1.48),
    "vgg16": (None, None, 3.0),
    "vgg19": (None, None, 4.0),
    "googlenet": (None, None, 5.3),
    "resnet34": (None, None, 12.0),
}


def cell_program(cells: Cells, cell: int) -> float:
    """The least T of a cell over real shares: variables b_o, b_s, b_l and the four maxima."""
    o1, s1, l1, o2, s2, l2 = cells.first[:, cell]
    o3, l3, o4, l4 = cells.rest[:, cell]
    below = np.zeros((10, 7))
    below[[0, 1, 2], [0, 1, 2]] = o1, s1, l1
    below[[3, 4, 5], [0, 1, 2]] = o2, s2, l2
    below[6, :2], below[7, 2] = o3, l3
    below[8, :2], below[9, 2] = o4, l4
    below[range(10), [3, 3, 3, 4, 4, 4, 5, 5, 6, 6]] = -1
    some = (0.0, None)
    solved = linprog(
        c=[0, 0, 0, 1, 1, 1, 1],
        A_ub=below,
        b_ub=np.zeros(10),
        A_eq=[[1, 1, 1, 0, 0, 0, 0]],
        b_eq=[cells.batch],
        bounds=[
            some,
            some if cells.m_s[cell] else (0.0, 0.0),
            some if cells.m_l[cell] else (0.0, 0.0),
            *[some] * 4,
        ],
        method="highs",
    )
    assert solved.success, solved.message
    return float(solved.fun + cells.const[cell])


def planner_ms(task: Task) -> tuple[list[float], Plan]:
    times: list[float] = []
    for _ in range(PER_TURN):
        begin = time.process_time()
        plan = make_plan("hiertrain", task)
        times.append((time.process_time() - begin) * 1e3)
    return times, plan


def measure(name: str, task: Task, paper_s: float) -> str:
    cells = all_cells(HierCosts.of(task, tier_workers(task, "hiertrain")))
    chosen = np.random.default_rng(0).permutation(len(cells))[:SAMPLE]
    ours: list[float] = []
    programs_ms = 0.0
    least = np.inf
    make_plan("hiertrain", task)  # the first run finds the routes
    for some in np.array_split(chosen, TURNS):
        times, plan = planner_ms(task)
        ours += times
        begin = time.process_time()
        for cell in some:
            least = min(least, cell_program(cells, int(cell)))
        programs_ms += (time.process_time() - begin) * 1e3
    mine = statistics.median(ours)
    programs_ms *= len(cells) / len(chosen)
    above = plan.decisions["model_s"] / least - 1
    whole = len(chosen) == len(cells)
    said = f"above {above:.4%}" if whole else f"scaled up from {len(chosen)} cells"
    return (f"{name:<10}{len(task.profile.layers):>7}{len(cells):>7}{mine:>9.2f} ms"
            f"{max(ours):>9.2f} ms{programs_ms:>10.0f} ms{programs_ms / mine:>8.0f}x"
            f"{paper_s * 1e3:>8.0f} ms   {said}")  # fmt: skip


def main() -> None:
    print(f"HierTrain at batch {BATCH}: processor time of a plan")
    print(f"{'network':<10}{'layers':>7}{'cells':>7}{'planner':>12}{'slowest':>12}{'HiGHS':>13}"
          f"{'ratio':>9}{'paper':>11}")  # fmt: skip
    for name, (shape, classes, paper_s) in NETWORKS.items():
        task = ask(name, FLEET, batch=BATCH, input_shape=shape, classes=classes)
        print(measure(name, task, paper_s), flush=True)


if __name__ == "__main__":
    main()
