"""An emulated fleet on this machine: one node process per device, none left behind.

    with LocalFleet(("pi", "nuc", "cloud")) as local:
        local.crew.wait_for(local.names, 30.0)

Each child holds the reading end of a pipe from here. When this process ends, however it ends, the
pipe closes and the child goes too.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from weft.errors import LostDevice
from weft.runtime.run.crew import Crew
from weft.runtime.wire.closing import Closing
from weft.runtime.wire.session import Endpoints, free_endpoint

AnyFleet = TypeVar("AnyFleet", bound="LocalFleet")


class LocalFleet(Closing):
    """Starts the nodes at once and ends them at the close; `scratch` is a folder for both."""

    def __init__(self, names: Sequence[str], *, prefix: dict[str, list[str]] | None = None) -> None:
        self.names = tuple(names)
        self.group = f"weft-{secrets.token_hex(4)}"
        self.endpoint = free_endpoint()
        self.scratch = Path(tempfile.mkdtemp(prefix="weft-"))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._prefix = prefix or {}  # e.g. ip netns exec NAME
        self.crew: Crew

    def __enter__(self: AnyFleet) -> AnyFleet:
        try:
            self.lay_out()
            self.crew = Crew(Endpoints(listen=(self.endpoint,)), self.group)
            for name in self.names:
                self.processes[name] = self._start(name)
        except BaseException:
            self.close()
            raise
        return self

    def lay_out(self) -> None:
        """Makes the network that the nodes stand in; here they share this machine's."""

    def join_arguments(self, name: str) -> list[str]:
        return ["--join", self.endpoint, "--listen", "tcp/127.0.0.1:0"]

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        command = [
            *self._prefix.get(name, []), sys.executable, "-m", "weft", "node", "--name", name,
            "--group", self.group, "--tether", *self.join_arguments(name),
        ]  # fmt: skip
        # One thread each: a few busy processes on two cores must not spin against each other.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        with self.log(name).open("wb") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C goes to the coordinator, which ends them in order
            )

    def log(self, name: str) -> Path:
        return self.scratch / f"{name}.log"

    def check(self) -> None:
        """LostDevice with the node's last words, where one has ended by itself."""
        for name, process in self.processes.items():
            if process.poll() is not None:
                words = self.log(name).read_text(errors="replace").strip()[-1500:]
                raise LostDevice(
                    name, f"the node {name} ended with code {process.returncode}: {words}"
                )

    def kill(self, name: str) -> None:
        """As if the device had lost its power."""
        self.processes[name].send_signal(signal.SIGKILL)

    def restart(self, name: str) -> None:
        """As if its power had come back: a new node of the same name, which remembers nothing."""
        self.processes[name].wait(timeout=10.0)
        self.processes[name] = self._start(name)

    def close(self) -> None:
        """Ends every node: kindly first, then surely. Safe to call twice."""
        for process in self.processes.values():
            if process.stdin:
                with contextlib.suppress(OSError):
                    process.stdin.close()
        deadline = time.monotonic() + 5.0
        for process in self.processes.values():
            try:
                process.wait(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(timeout=5.0)
        if hasattr(self, "crew"):
            self.crew.close()
        shutil.rmtree(self.scratch, ignore_errors=True)
