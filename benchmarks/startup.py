"""How long until an emulated fleet is there, what a node costs in memory, and what commands cost.

Seconds are wall-clock, from the start of the command or of LocalFleet until nine devices have joined.
"spawned" starts each node as a process of its own, as it is done where a fork is not safe. The machine
should be quiet; CPU seconds depend on it less.

    python benchmarks/startup.py
"""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.runtime.emulate.local import LocalFleet

DEVICES = tuple(f"d{i}" for i in range(9))
FLEET = Path(__file__).parent.parent / "examples" / "fleets" / "demo.toml"
PLAN = ("plan", "lenet5", "--fleet", str(FLEET), "--strategy", "chain")
ROUNDS = 3
COLUMNS = ("Rss", "Pss", "Private_Dirty")


def main() -> None:
    if len(sys.argv) > 1:
        as_command(sys.argv[1])
        return
    for start in ("fork", "spawn"):
        seconds, cpu = from_command(start)
        title = f"nine devices ready from the command, {start}ed:"
        print(f"{title:44} {seconds:6.2f} s   {cpu:.1f} s of CPU time in all", flush=True)
    from weft.runtime.emulate.forked import get_server
    from weft.runtime.emulate.local import LocalFleet

    begin = time.monotonic()
    get_server().wait_until_ready()
    print(f"the fork server ready:                      {time.monotonic() - begin:6.2f} s")
    for number in range(1, ROUNDS + 1):
        fleet_row(f"nine devices ready from Python, forked, {number}:", LocalFleet(DEVICES))
    fleet_row("nine devices ready from Python, spawned:", spawning())
    with tempfile.TemporaryDirectory() as cache:
        for title, arguments in (("--help", ("--help",)), ("plan", PLAN), ("plan, again", PLAN)):
            print(f"weft {title:38} {cpu_seconds(arguments, cache):6.2f} s of CPU time", flush=True)


def from_command(start: str) -> tuple[float, float]:
    """From the start of a process that does what a command does until its devices are there."""
    begin, before = time.monotonic(), children_cpu()
    command = [sys.executable, __file__, start]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        seconds = time.monotonic() - begin
    return seconds, children_cpu() - before


def as_command(start: str) -> None:
    from weft.runtime.emulate.forked import warm

    gc.set_threshold(20_000)  # as `weft.cli` does
    if start == "fork":
        warm()
    from weft.runtime.emulate.local import LocalFleet

    with LocalFleet(DEVICES) if start == "fork" else spawning() as local:
        local.crew.wait_for(DEVICES, 120.0)
        print("ready", flush=True)


def spawning() -> LocalFleet:
    from weft.runtime.emulate.local import LocalFleet

    class Spawning(LocalFleet):
        def _start(self, name: str) -> subprocess.Popen[bytes]:
            return self._spawn(name)

    return Spawning(DEVICES)


def fleet_row(title: str, fleet: LocalFleet) -> None:
    begin = time.monotonic()
    with fleet as local:
        local.crew.wait_for(DEVICES, 120.0)
        seconds = time.monotonic() - begin
        memory = [memory_mb(process.pid) for process in local.processes.values()]
    means = [sum(column) / len(memory) for column in zip(*memory, strict=True)]
    told = ", ".join(f"{n} {mb:.0f} MB" for n, mb in zip(COLUMNS, means, strict=True))
    print(f"{title:43} {seconds:6.2f} s   per node: {told}", flush=True)


def memory_mb(pid: int) -> list[float]:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    sizes = {line.split(":")[0]: int(line.split()[1]) / 1000 for line in lines}
    return [sizes[name] for name in COLUMNS]


def cpu_seconds(arguments: tuple[str, ...], cache: str) -> float:
    before = children_cpu()
    environment = {**os.environ, "XDG_CACHE_HOME": cache, "WEFT_CACHE": ""}
    command = [sys.executable, "-m", "weft", *arguments]
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    return children_cpu() - before


def children_cpu() -> float:
    """Of all processes that have ended below this one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
