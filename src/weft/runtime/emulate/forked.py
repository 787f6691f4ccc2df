"""The owner's side of the fork server: one server per process, and its nodes as process handles.

    warm()                                  # returns at once; imports go on in the server
    process = start_forked("pi", ...)       # waits for the server, then takes some 20 ms
    process.poll(), process.wait(), process.kill(), process.stdin.close()

The server stays for the life of this process, so that a second fleet starts at once.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from weft.runtime.emulate import fork_server
from weft.runtime.emulate.fork_server import (
    Answer,
    Ended,
    Look,
    Ready,
    Refused,
    Reply,
    Request,
    Signal,
    Start,
    Started,
)

SLICE_S = 0.05  # who waits longer lets others of this process look in between
# One thread each: a few busy processes on two cores must not spin against each other.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class CannotFork(Exception):
    """Why a node cannot be forked here; it can still be spawned."""


class ForkedProcess:
    """A node forked by the server, with the methods of `subprocess.Popen` that a fleet uses."""

    def __init__(self, server: ForkServer, number: int, pid: int, tether: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdin = open(tether, "wb", buffering=0)  # noqa: SIM115  (closing it ends the node)
        self._server = server
        self._number = number

    def poll(self) -> int | None:
        """The exit code where the process has ended; -9 where SIGKILL ended it."""
        if self.returncode is None:
            self._server.look()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            left = SLICE_S if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise subprocess.TimeoutExpired(f"node {self.pid}", timeout or 0.0)
            self._server.take_report(min(left, SLICE_S))
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            self._server.send_signal(self._number, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """Starts the server process at once; it is ready when its imports are done."""

    def __init__(self, program: Sequence[str] = ("-m", fork_server.__spec__.name)) -> None:
        """`program` is what the interpreter runs; it gets a socket's number as its last argument."""
        self.owner = os.getpid()
        self._lock = threading.Lock()
        self._next = 0
        self._ready = False
        self._gone = False
        self._processes: dict[int, ForkedProcess] = {}  # those that have not ended
        self._replies: dict[int, Reply] = {}
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, *program, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, **ONE_THREAD},
                start_new_session=True,
            )

    @property
    def usable(self) -> bool:
        return not self._gone and self.owner == os.getpid()

    @property
    def failed(self) -> bool:
        """It ended before it was ready, and so would the next one."""
        return self._gone and not self._ready

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_ready(self) -> None:
        with self._lock:
            while not self._ready and not self._gone:
                self._receive(SLICE_S)

    def start(
        self,
        name: str,
        *,
        group: str,
        join: Sequence[str],
        listen: Sequence[str],
        gossip: bool,
        log: Path,
        environment: Mapping[str, str],
        namespace: str | None = None,
        scratch: Path | None = None,
    ) -> ForkedProcess:
        """Forks a node; CannotFork where the server will not or is gone."""
        self.wait_until_ready()
        with self._lock:
            try:
                asked = Start(
                    self._number(), name, group, tuple(join), tuple(listen), gossip,
                    str(log.resolve()), os.getcwd(), dict(environment), namespace,
                    None if scratch is None else str(scratch),
                )  # fmt: skip
            except FileNotFoundError:
                raise CannotFork("the current folder was deleted") from None
            reading, writing = os.pipe()
            try:
                reply = self._ask(asked, [reading])
                if not isinstance(reply, Started):
                    why = reply.why if isinstance(reply, Refused) else "the fork server has ended"
                    raise CannotFork(why)
            except BaseException:
                os.close(writing)
                raise
            finally:
                os.close(reading)
            process = ForkedProcess(self, reply.number, reply.pid, writing)
            self._processes[reply.number] = process
            return process

    def send_signal(self, node: int, signal_number: int) -> None:
        """Returns when the kernel has the signal, as `os.kill` does."""
        with self._lock, contextlib.suppress(CannotFork):
            self._ask(Signal(self._number(), node, signal_number), [])

    def look(self) -> None:
        """Learns which nodes have ended until now."""
        with self._lock, contextlib.suppress(CannotFork):
            self._ask(Look(self._number()), [])

    def take_report(self, timeout: float) -> None:
        with self._lock:
            self._receive(timeout)

    def close(self) -> None:
        """Ends the server, which gives nodes that are still leaving some time for it."""
        if self.owner == os.getpid():
            if not self._ready:
                self._process.kill()
            with self._lock:
                for process in self._processes.values():
                    process.stdin.close()
                self._lose()
            try:
                self._process.wait(timeout=5.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(timeout=5.0)
        else:
            self._control.close()

    def _number(self) -> int:
        self._next += 1
        return self._next

    def _ask(self, request: Request, fds: list[int]) -> Reply | None:
        """The server's reply; None where it has ended instead."""
        self._send(request, fds)
        while request.number not in self._replies and not self._gone:
            self._receive(SLICE_S)
        return self._replies.pop(request.number, None)

    def _send(self, request: Request, fds: list[int]) -> None:
        try:
            self._control.settimeout(None)
            socket.send_fds(self._control, [msgspec.json.encode(request)], fds)
        except OSError as error:
            while self._receive(0.0):  # its last reports, where it has ended
                pass
            raise CannotFork(f"the fork server cannot be reached: {error}") from None

    def _receive(self, timeout: float) -> bool:
        """Takes one report, if one comes in time."""
        if self._gone:
            return False
        try:
            self._control.settimeout(timeout)
            data = self._control.recv(fork_server.LONGEST)
        except (BlockingIOError, TimeoutError):
            return False
        except OSError:
            data = b""
        if not data:
            self._lose()
            return False
        answer: Answer = msgspec.json.decode(data, type=Answer)
        if isinstance(answer, Ready):
            self._ready = True
        elif isinstance(answer, Ended):
            process = self._processes.pop(answer.number, None)
            if process is not None:
                process.returncode = answer.code
        else:
            self._replies[answer.number] = answer
        return True

    def _lose(self) -> None:
        """The server is gone, and the kernel has ended its nodes with it."""
        self._gone = True
        self._control.close()
        for process in self._processes.values():
            process.returncode = -signal.SIGKILL
        self._processes.clear()


_server: ForkServer | None = None
_making = threading.Lock()


def warm() -> None:
    """Starts the server of this process, where nodes can be forked and there is none yet."""
    with contextlib.suppress(CannotFork):
        get_server()


def settle() -> None:
    """Waits for the imports of a server that is starting: nothing can be measured beside them."""
    if _server is not None and _server.usable:
        _server.wait_until_ready()


def get_server() -> ForkServer:
    """The server of this process. A process that was itself forked gets one of its own."""
    global _server
    if sys.platform != "linux":
        raise CannotFork(f"on {sys.platform} a fork is not safe")
    with _making:
        if _server is not None and _server.failed:
            raise CannotFork("the fork server could not be started")
        if _server is not None and not _server.usable:
            _server.close()
            _server = None
        if _server is None:
            _server = ForkServer()
            atexit.register(_server.close)
            os.register_at_fork(after_in_child=_server.close)  # else a copy keeps the server alive
        return _server
