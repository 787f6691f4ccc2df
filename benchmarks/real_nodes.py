"""Nodes under CPU quotas in network namespaces: what `truth` runs on.

with limited({"phone": 0.25}) as limit, RealNodes(fleet, ("phone",)) as nodes:
    limit("phone", nodes.processes["phone"].pid)
    train(..., join=nodes.place.join, group=nodes.group)
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from weft.runtime.emulate.namespaces import NamespaceFleet
from weft.runtime.run.launch import Place
from weft.runtime.wire.session import Endpoints

CPU = Path("/sys/fs/cgroup/cpu")
PERIOD_US = 4000
WEIGHT = 200_000  # of all nodes together, against 1024 of any other process of this machine


class RealNodes(NamespaceFleet):
    """Nodes that also listen on the unshaped way to this process, so that a run can join each of them. They
    use the links between each other only."""

    def managed(self, name: str) -> str:
        return f"tcp/{self._network}.{self.names.index(name) + 2}:7448"

    def endpoints(self, name: str) -> Endpoints:
        where = super().endpoints(name)
        return msgspec.structs.replace(where, listen=(*where.listen, self.managed(name)))

    @property
    def place(self) -> Place:
        return Place(join=tuple(self.managed(name) for name in self.names), group=self.group)


@contextlib.contextmanager
def limited(quotas: Mapping[str, float]) -> Iterator[Callable[[str, int], None]]:
    """A cgroup for each node with its quota of a core; they are removed at the end."""
    root = CPU / f"weft-truth-{time.monotonic_ns()}"
    made: list[Path] = []
    try:
        root.mkdir()
        made.append(root)
        (root / "cpu.shares").write_text(str(WEIGHT))
        run = root / "run"  # this process feeds the samples: it has no quota, but the same weight
        run.mkdir()
        made.append(run)
        (run / "cgroup.procs").write_text(str(os.getpid()))

        def limit(name: str, pid: int) -> None:
            folder = root / name
            folder.mkdir()
            made.append(folder)
            (folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (folder / "cpu.cfs_quota_us").write_text(str(round(quotas[name] * PERIOD_US)))
            (folder / "cgroup.procs").write_text(str(pid))

        yield limit
    except OSError as error:
        sys.exit(f"no cgroup with a CPU quota: {error}")
    finally:
        time.sleep(0.5)  # until the nodes are gone
        for group in made[1:2]:  # this process and helpers that it started
            for pid in (group / "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):  # it has just ended
                    (CPU / "cgroup.procs").write_text(pid)
        for folder in reversed(made):
            with contextlib.suppress(OSError):
                folder.rmdir()
