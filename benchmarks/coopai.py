"""CoopAI and its baseline, really run: latency of sliced inference through a gateway.

    python benchmarks/coopai.py [network ...]

Each row is a fleet of real node processes, several times slower than the Raspberry Pis they stand for
(weft.papers.coopai.measured says why); times are printed as those of the Pis. First ten equal devices, then
six unequal ones, then streams of four frames (seconds per frame).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from weft.papers.coopai.measured import (
    SCALE,
    STREAM_FRAMES,
    STREAM_ROWS,
    UNEQUAL,
    UNEQUAL_ROWS,
    RealRow,
    run_rows,
)


def show(row: RealRow, first: RealRow) -> None:
    if row.wire_bytes != {row.planned_bytes}:
        print(f"{row.title}: {sorted(row.wire_bytes)} bytes on the wire, not as planned")
    print(
        f"{row.title:20} {row.devices:7} {row.rounds:6} {row.predicted_s:9.3f}s "
        f"{row.measured_s:9.3f}s {row.ratio:6.3f} {1 - row.measured_s / first.measured_s:7.2%} "
        f"{row.planned_bytes / 1e6:7.2f} {row.far:8.1e} {os.getloadavg()[0]:5.1f}", flush=True,
    )  # fmt: skip


def table(title: str, rows: Iterable[RealRow]) -> None:
    print(f"\n{title}; bytes on the wire equal the plan's")
    print(f"{'':20} {'devices':>7} {'rounds':>6} {'simulated':>10} {'measured':>10} "
          f"{'ratio':>6} {'saved':>7} {'MB':>7} {'far':>8} {'load':>5}")  # fmt: skip
    first: RealRow | None = None
    for row in rows:
        first = first or row
        show(row, first)


def main() -> None:
    for name in sys.argv[1:] or list(SCALE):
        if name not in SCALE:
            raise SystemExit(f"{name}: one of {', '.join(SCALE)} is allowed")
        slower = f"{SCALE[name]} times slower"
        table(f"{name}, ten equal devices, {slower}", run_rows(name))
        table(f"{name}, six unequal devices, {slower}", run_rows(name, UNEQUAL_ROWS, UNEQUAL))
        streams = run_rows(name, STREAM_ROWS, batch=STREAM_FRAMES)
        table(f"{name}, ten equal devices, {STREAM_FRAMES} frames at a time, {slower}", streams)


if __name__ == "__main__":
    main()
