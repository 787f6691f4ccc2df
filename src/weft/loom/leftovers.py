"""What a run may leave behind on this machine: processes, folders, threads.

with own_folder():             # others may make folders of the same names
    before = Here.now()
    ...
    before.left_behind()       # one sentence for each thing that is left
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PATIENCE_S = 3.0  # threads and processes may take a moment to end


@contextlib.contextmanager
def own_folder() -> Iterator[None]:
    """A folder for temporary files that only this process and its children use."""
    before = tempfile.tempdir, os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory(prefix="loom-") as folder:
        tempfile.tempdir = os.environ["TMPDIR"] = folder
        try:
            yield
        finally:
            tempfile.tempdir = before[0]
            os.environ.pop("TMPDIR")
            if before[1] is not None:
                os.environ["TMPDIR"] = before[1]


@dataclass(frozen=True)
class Here:
    """The processes, folders and threads that exist at a moment."""

    processes: frozenset[int]
    folders: frozenset[str]
    threads: int

    @staticmethod
    def now() -> Here:
        folders = (path.name for path in Path(tempfile.gettempdir()).glob("weft-*"))
        return Here(descendants(), frozenset(folders), threading.active_count())

    def left_behind(self) -> Iterator[str]:
        """Everything that exists now and did not exist before, after a short wait."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            said = list(self._more_than_before())
            if not said or time.monotonic() > deadline:
                yield from said
                return
            time.sleep(0.05)

    def _more_than_before(self) -> Iterator[str]:
        now = Here.now()
        if now.processes - self.processes:
            names = [f"{pid} {command_of(pid)}" for pid in sorted(now.processes - self.processes)]
            yield f"processes are left: {'; '.join(names)}"
        if now.folders - self.folders:
            yield f"folders are left: {', '.join(sorted(now.folders - self.folders))}"
        if now.threads > self.threads:
            names = [thread.name for thread in threading.enumerate()]
            yield f"{now.threads - self.threads} more threads: {', '.join(names)}"


def descendants() -> frozenset[int]:
    """All descendants of this process. Without /proc the list is empty."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # the process has ended meanwhile
        if fields[0] != "Z":
            parents[int(entry.parent.name)] = int(fields[1])
    found = {os.getpid()}
    while True:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        if not more:
            return frozenset(found - {os.getpid()})
        found |= more


def command_of(pid: int) -> str:
    """The command line of a process, as far as it can be read."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    except OSError:
        return "ended"
