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

SLICE_S = 0.05  # a longer wait is interrupted, so that other threads can use the server
# One thread per process: busy processes on two cores must not slow each other down by spinning.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class CannotFork(Exception):
    """A node cannot be forked here. It can still be spawned."""


class ForkedProcess:
    """A node forked by the server, with the methods of `subprocess.Popen` that a fleet uses."""

    def __init__(self, server: ForkServer, number: int, pid: int, tether: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdin = open(tether, "wb", buffering=0)  # noqa: SIM115  (closing it ends the node)
        self._server = server
        self._number = number

    def poll(self) -> int | None:
        """The exit code if the process has ended (-9 after SIGKILL); else None."""
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
    """Starts the server process at once. The server is ready when its imports are done."""

    def __init__(self, program: Sequence[str] = ("-m", fork_server.__spec__.name)) -> None:
        """`program`: the arguments of the interpreter. A socket's number is added as the last argument."""
        self.owner = os.getpid()
        self._lock = threading.Lock()
        self._next = 0
        self._ready = False
        self._gone = False
        self._processes: dict[int, ForkedProcess] = {}  # running nodes
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
        """Whether the server ended before it was ready. A new one would end in the same way."""
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
        """Forks a node. Raises CannotFork if the server refuses or is gone."""
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
        """Sends a signal to a node. Returns when the kernel has the signal, as `os.kill` does."""
        with self._lock, contextlib.suppress(CannotFork):
            self._ask(Signal(self._number(), node, signal_number), [])

    def look(self) -> None:
        """Asks the server which nodes have ended until now."""
        with self._lock, contextlib.suppress(CannotFork):
            self._ask(Look(self._number()), [])

    def take_report(self, timeout: float) -> None:
        with self._lock:
            self._receive(timeout)

    def close(self) -> None:
        """Ends the server. The server gives its nodes some time to end."""
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
        """The server's reply; None if the server has ended."""
        self._send(request, fds)
        while request.number not in self._replies and not self._gone:
            self._receive(SLICE_S)
        return self._replies.pop(request.number, None)

    def _send(self, request: Request, fds: list[int]) -> None:
        try:
            self._control.settimeout(None)
            socket.send_fds(self._control, [msgspec.json.encode(request)], fds)
        except OSError as error:
            while self._receive(0.0):  # read its last reports, if it has ended
                pass
            raise CannotFork(f"the fork server cannot be reached: {error}") from None

    def _receive(self, timeout: float) -> bool:
        """Takes one report, if one arrives in time."""
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
        """Marks all nodes as ended: the server is gone, and the kernel has ended its nodes."""
        self._gone = True
        self._control.close()
        for process in self._processes.values():
            process.returncode = -signal.SIGKILL
        self._processes.clear()


_server: ForkServer | None = None
_making = threading.Lock()


def warm() -> None:
    """Starts the server of this process, if nodes can be forked and it has none yet."""
    with contextlib.suppress(CannotFork):
        get_server()


def settle() -> None:
    """Waits until a starting server has done its imports, because they would disturb measurements."""
    if _server is not None and _server.usable:
        _server.wait_until_ready()


def get_server() -> ForkServer:
    """The server of this process. A process that was itself forked gets its own server."""
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
            # Otherwise the child's copy of the socket would keep the server alive.
            os.register_at_fork(after_in_child=_server.close)
        return _server
