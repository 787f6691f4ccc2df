"""CoopAI and its baseline, really run: latency of sliced inference through a gateway.

    python benchmarks/coopai.py [network ...]

Each row is a fleet of real node processes, ten times and more slower than the Raspberry Pis they stand for
(weft.papers.coopai_measured says why); times are printed as those of the Pis.
"""

from __future__ import annotations

import sys

from weft.papers.coopai_measured import SCALE, RealRow, run_rows


def show(row: RealRow, first: RealRow) -> None:
    if row.wire_bytes != {row.planned_bytes}:
        print(f"{row.title}: {sorted(row.wire_bytes)} bytes on the wire, not as planned")
    print(
        f"{row.title:18} {row.devices:7} {row.rounds:6} {row.predicted_s:9.3f}s "
        f"{row.measured_s:9.3f}s {row.ratio:6.3f} {1 - row.measured_s / first.measured_s:7.2%} "
        f"{row.planned_bytes / 1e6:7.2f} {row.far:8.1e}", flush=True,
    )  # fmt: skip


def main() -> None:
    for name in sys.argv[1:] or ["alexnet", "vgg16"]:
        if name not in SCALE:
            raise SystemExit(f"{name}: one of {', '.join(SCALE)} is allowed")
        print(f"\n{name}, {SCALE[name]} times slower; bytes on the wire equal the plan's")
        print(f"{'':18} {'devices':>7} {'rounds':>6} {'simulated':>10} {'measured':>10} "
              f"{'ratio':>6} {'saved':>7} {'MB':>7} {'far':>8}")  # fmt: skip
        first: RealRow | None = None
        for row in run_rows(name):
            first = first or row
            show(row, first)


if __name__ == "__main__":
    main()
