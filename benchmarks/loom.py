"""The loom: random draws from the whole product, each checked for what must always hold.

    python benchmarks/loom.py --seed 1 --draws 5000 --runs 300
    python benchmarks/loom.py --seed 1,2,3,4,5 --draws 1000 --runs 60    # each seed, one after the other
    python benchmarks/loom.py --draw '{"net":...}'        # repeats one draw, as a failure prints it

Progress goes to stderr, the table to stdout. Exit code 1 where anything was violated.
"""

from __future__ import annotations

import argparse
import sys

import torch

from weft.loom.draw import from_text
from weft.loom.weave import examine_whole, to_stderr, weave


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seed", default="1", help="one, or several with commas")
    parser.add_argument("--draws", type=int, default=100, help="planned and simulated")
    runs = parser.add_mutually_exclusive_group()
    runs.add_argument("--runs", type=int, default=0, help="further draws that are really run")
    runs.add_argument("--run", type=float, default=0.0, help="the same as a share of --draws")
    parser.add_argument("--only", default="", help="strategies, with commas")
    parser.add_argument("--first", type=int, default=0, help="the number of the first draw")
    parser.add_argument("--draw", default="", help="one draw as JSON: repeats it alone")
    given = parser.parse_args()
    torch.set_num_threads(1)  # as the nodes compute
    if given.draw:
        outcome = examine_whole(from_text(given.draw))
        print(f"refused: {outcome.refused}" if outcome.refused else outcome.plan)
        for violation in outcome.violations:
            print(f"{violation.check}: {violation.says}")
        return 1 if outcome.violations else 0
    violations = 0
    for seed in given.seed.split(","):
        report = weave(
            int(seed),
            given.draws,
            given.runs or round(given.run * given.draws),
            tuple(name for name in given.only.split(",") if name),
            show=to_stderr,
            first=given.first,
        )
        print(f"seed {seed}\n{report.table()}\n", flush=True)
        violations += report.violations.total()
    print(f"violations of all seeds: {violations}")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
