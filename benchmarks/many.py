"""What one of many emulated devices costs on this machine: memory, threads and connections.

    python benchmarks/many.py                  # 3, 9 and 64 devices
    python benchmarks/many.py --sizes 3 9

The devices are forked and idle: they have joined and met each other. The figures are the mean over all of
them, and the seconds until all have joined. A run adds threads for the links that it uses, and no others.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

from startup import memory_mb

from weft.runtime.emulate.local import LocalFleet

JOIN_S = 120.0
SETTLE_S = 5.0  # in which the devices open connections to each other


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def connections(pid: int) -> int:
    """Sockets of a process, listening ones included."""
    targets = []
    for number in Path(f"/proc/{pid}/fd").iterdir():
        try:
            targets.append(str(number.readlink()))
        except FileNotFoundError:
            continue  # closed meanwhile
    return sum(target.startswith("socket:") for target in targets)


def row(count: int) -> str:
    names = tuple(f"d{n}" for n in range(count))
    begin = time.monotonic()
    with LocalFleet(names) as fleet:
        fleet.crew.wait_for(names, JOIN_S)
        joined = time.monotonic() - begin
        time.sleep(SETTLE_S)
        pids = [process.pid for process in fleet.processes.values()]
        memory = [memory_mb(pid) for pid in pids]
        shown = [statistics.mean(column) for column in zip(*memory, strict=True)]
        own_threads = statistics.mean(map(threads, pids))
        sockets = statistics.mean(map(connections, pids))
    sizes = "".join(f"{size:>9.1f}" for size in shown)
    return f"{count:>8}{joined:>9.1f} s{sizes}{own_threads:>9.1f}{sockets:>9.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[3, 9, 64])
    print(
        f"{'devices':>8}{'joined':>11}{'Rss':>9}{'Pss':>9}{'private':>9}{'threads':>9}{'sockets':>9}"
    )
    for count in parser.parse_args().sizes:
        print(row(count), flush=True)


if __name__ == "__main__":
    main()
