"""An emulated fleet on this machine: one node process per device, none left behind.

    with LocalFleet(("pi", "nuc", "cloud")) as local:
        local.crew.wait_for(local.names, 30.0)

Nodes are forked from a process that has imported all their modules (`forked.py`). If that is not possible,
they are spawned, which takes seconds and several times the memory. Each node holds the reading end of a pipe
from this process. When this process ends for any reason, the pipe closes and the node ends too.
"""

from __future__ import annotations

import contextlib
import logging
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

from msgspec.structs import replace

from weft.errors import LostDevice
from weft.runtime.emulate.forked import ONE_THREAD, CannotFork, ForkedProcess, get_server
from weft.runtime.wire.closing import Closing
from weft.runtime.wire.crew import Crew
from weft.runtime.wire.links.trouble import Trouble, write_trouble
from weft.runtime.wire.session import Endpoints, free_endpoint

logger = logging.getLogger(__name__)

NEVER = 1e15  # a moment of the clock that does not come; JSON has no infinity
NodeProcess = ForkedProcess | subprocess.Popen[bytes]
AnyFleet = TypeVar("AnyFleet", bound="LocalFleet")


class LocalFleet(Closing):
    """Starts the nodes at once and ends them when it is closed. Nodes use the folder `scratch`."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.group = f"weft-{secrets.token_hex(4)}"
        self.endpoint = free_endpoint()
        self.scratch = Path(tempfile.mkdtemp(prefix="weft-"))
        self.processes: dict[str, NodeProcess] = {}
        self._trouble = Trouble()  # links that are cut, devices that are slower
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
        """Makes the nodes' network. Here they share this machine's network."""

    def endpoints(self, name: str) -> Endpoints:
        """Where a node listens and which nodes it joins."""
        return Endpoints(join=(self.endpoint,), listen=("tcp/127.0.0.1:0",))

    def namespace(self, name: str) -> str | None:
        """The network namespace of a node; None: that of this process."""
        return None

    def _start(self, name: str) -> NodeProcess:
        try:
            return self._fork(name)
        except CannotFork as reason:
            logger.info("the node %s is spawned, which is slower: %s", name, reason)
            return self._spawn(name)

    def _fork(self, name: str) -> ForkedProcess:
        where = self.endpoints(name)
        return get_server().start(
            name,
            group=self.group,
            join=where.join,
            listen=where.listen,
            gossip=where.gossip,
            log=self.log(name),
            environment={**os.environ, **ONE_THREAD},
            namespace=self.namespace(name),
            scratch=self.scratch,
        )

    def _spawn(self, name: str) -> subprocess.Popen[bytes]:
        where, namespace = self.endpoints(name), self.namespace(name)
        command = [sys.executable, "-m", "weft", "node", "--name", name, "--group", self.group]
        command += ["--tether", *(() if where.gossip else ("--no-gossip",))]
        command += ["--scratch", str(self.scratch)]
        if namespace is not None:
            command.append("--open")  # to a namespace that holds nothing but this run
        for option, addresses in (("--join", where.join), ("--listen", where.listen)):
            for address in addresses:
                command += [option, address]
        if namespace is not None:
            command = ["ip", "netns", "exec", namespace, *command]
        with self.log(name).open("wb") as output:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**os.environ, **ONE_THREAD},
                start_new_session=True,  # Ctrl-C goes to the run, which ends them in order
            )

    def log(self, name: str) -> Path:
        return self.scratch / f"{name}.log"

    def check(self) -> None:
        """Raises LostDevice, with the node's last output, if a node has ended by itself."""
        for name, process in self.processes.items():
            if process.poll() is not None:
                words = self.log(name).read_text(errors="replace").strip()[-1500:]
                raise LostDevice(
                    name, f"the node {name} ended with code {process.returncode}: {words}"
                )

    def kill(self, name: str) -> None:
        """Kills a node, as if the device had lost its power. A device without a node is not there anyway."""
        self._signal(name, signal.SIGKILL)

    def restart(self, name: str) -> None:
        """Starts a new node of the same name, as if the device's power had come back. It remembers
        nothing."""
        self.processes[name].wait(timeout=10.0)
        self.processes[name] = self._start(name)

    def silence(self, name: str) -> None:
        """Stops a node. Its connections stay open."""
        self._signal(name, signal.SIGSTOP)

    def wake(self, name: str) -> None:
        """Lets a stopped node go on."""
        self._signal(name, signal.SIGCONT)

    def _signal(self, name: str, number: int) -> None:
        if name in self.processes:
            self.processes[name].send_signal(number)

    def cut(self, one: str, other: str, until: float) -> None:
        """Nothing crosses the link between two devices until a moment of the monotonic clock."""
        self._trouble = replace(
            self._trouble, cuts=(*self._trouble.cuts, (one, other, min(until, NEVER)))
        )
        write_trouble(self.scratch, self._trouble)

    def slow(self, name: str, times: float) -> None:
        """A device computes so many times slower from now on."""
        self._trouble = replace(self._trouble, slow={**self._trouble.slow, name: times})
        write_trouble(self.scratch, self._trouble)

    def close(self) -> None:
        """Ends every node: first it asks, then it kills. It may be called twice."""
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
