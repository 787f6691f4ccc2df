"""The process from which emulated nodes are forked. It imports a node's modules once for all nodes.

It runs as `python -m weft.runtime.emulate.fork_server FD`, where FD is a socket to its owner, the process
that starts the nodes (`forked.py`). It has no threads and no Zenoh session, so a fork is safe. It ends when
the socket closes, and then the kernel ends every remaining node.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from types import FrameType

import msgspec
from msgspec import Struct

GRACE_S = 6.0  # for nodes to end by themselves when their owner is gone
LONGEST = 1 << 20  # bytes of a message
SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)
NETWORK = 0x40000000  # CLONE_NEWNET of setns(2)


class Start(Struct, frozen=True, tag="start"):
    """Asks for a node. The reading end of the pipe that the node watches is sent with the request."""

    number: int  # the owner's number for this request; answers repeat it
    name: str
    group: str
    join: tuple[str, ...]
    listen: tuple[str, ...]
    gossip: bool
    log: str  # the file that its output goes to
    folder: str
    environment: dict[str, str]
    namespace: str | None = None  # of the network, as `ip netns` names it
    scratch: str | None = None  # the folder with the clocks of shared media


class Signal(Struct, frozen=True, tag="signal"):
    """Asks to send a signal to a node. A node that has ended gets none: its pid may be reused."""

    number: int
    node: int  # the number it was started with
    signal: int


class Look(Struct, frozen=True, tag="look"):
    """Asks which nodes have ended by now. The answer has the same number and comes after the reports."""

    number: int


class Ready(Struct, frozen=True, tag="ready"):
    """All imports are done."""


class Started(Struct, frozen=True, tag="started"):
    """A node has been forked."""

    number: int
    pid: int


class Refused(Struct, frozen=True, tag="refused"):
    """The server cannot fork. The owner must start the node in another way."""

    number: int
    why: str


class Done(Struct, frozen=True, tag="done"):
    """The signal was sent, or all nodes that have ended until now have been reported."""

    number: int


class Ended(Struct, frozen=True, tag="ended"):
    """A node has ended."""

    number: int
    code: int  # as in subprocess: -9 for SIGKILL


Request = Start | Signal | Look
Reply = Started | Refused | Done
Answer = Ready | Ended | Reply


def why_not_fork() -> str | None:
    """Why a fork is not safe; None if it is. A fork copies only one thread, so locks of other threads would
    stay locked."""
    threads = max(threading.active_count(), len(os.listdir("/proc/self/task")))
    return f"the fork server has {threads} threads" if threads != 1 else None


def import_all() -> None:
    """Imports a node's modules. Without garbage collection this takes a third less time."""
    gc.disable()
    import torch
    import torch._dynamo  # the first optimizer would import it

    import weft.runtime.node.serve  # noqa: F401  # a node that imports it itself takes 0.9 s and 15 MB more

    torch.set_num_threads(1)
    gc.enable()
    gc.freeze()  # so that a node's garbage collections do not write to shared pages


class Server:
    """Answers one owner: forks nodes, signals them, reports their ends."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._pids: dict[int, int] = {}  # of running nodes, by the owner's number
        self._awake, self._wake = os.pipe()  # written when SIGCHLD arrives
        os.set_blocking(self._wake, False)

    def serve(self) -> None:
        """Returns when the owner is gone and its nodes have ended, or their time to end is over."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the owner
        signal.signal(signal.SIGCHLD, _ignore)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        self._tell(Ready())
        while self._wait(None):
            request, fds = self._hear()
            if request is None:
                break
            if isinstance(request, Start):
                self._start(request, fds[0])
            elif isinstance(request, Look):
                self._reap()
                self._tell(Done(request.number))
            else:
                if request.node in self._pids:
                    os.kill(self._pids[request.node], request.signal)
                self._tell(Done(request.number))
        self._control.close()
        deadline = time.monotonic() + GRACE_S
        while self._pids and time.monotonic() < deadline:
            self._wait(deadline - time.monotonic())

    def _wait(self, timeout: float | None) -> bool:
        """Waits for a request and reaps nodes meanwhile. False if the time is over or the owner is gone."""
        while True:
            poll = select.poll()
            poll.register(self._awake, select.POLLIN)
            asked = self._control.fileno()
            if asked >= 0:
                poll.register(asked, select.POLLIN)
            events = dict(poll.poll(None if timeout is None else max(0.0, timeout) * 1000))
            if self._awake in events:
                os.read(self._awake, 4096)
                self._reap()
            if asked in events or timeout is not None:
                return asked in events

    def _hear(self) -> tuple[Request | None, list[int]]:
        try:
            data, fds, _, _ = socket.recv_fds(self._control, LONGEST, 1)
        except OSError:  # the owner ended before it had read all reports
            return None, []
        return (msgspec.json.decode(data, type=Request) if data else None), fds

    def _tell(self, answer: Answer) -> None:
        with contextlib.suppress(OSError):  # the owner is gone; the next read notices it
            self._control.send(msgspec.json.encode(answer))

    def _start(self, asked: Start, tether: int) -> None:
        try:
            why = why_not_fork()
            if why is not None:
                self._tell(Refused(asked.number, why))
                return
            parent = os.getpid()
            pid = os.fork()
            if pid == 0:
                self._become_node(asked, tether, parent)
            self._pids[asked.number] = pid
            self._tell(Started(asked.number, pid))
        except OSError as error:  # no memory, too many processes
            self._tell(Refused(asked.number, f"the fork server cannot fork: {error}"))
        finally:
            os.close(tether)

    def _become_node(self, asked: Start, tether: int, parent: int) -> None:
        """Runs in the child: closes everything of the server, becomes a node, and never returns."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for fd in (self._awake, self._wake):
                os.close(fd)
            self._control.close()
            os.setsid()
            _end_with(parent)
            log = os.open(asked.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            for old, new in ((tether, 0), (log, 1), (log, 2)):
                os.dup2(old, new)
            for fd in (tether, log):
                os.close(fd)
            code = _run_node(asked)
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _reap(self) -> None:
        for number, pid in list(self._pids.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                del self._pids[number]
                self._tell(Ended(number, os.waitstatus_to_exitcode(status)))


def _run_node(asked: Start) -> int:
    """Does the work of `weft node --tether` in a process that has imported everything."""
    import logging

    from weft.errors import WeftError
    from weft.runtime.node.serve import serve_node
    from weft.runtime.wire.session import Endpoints

    os.chdir(asked.folder)
    os.environ.clear()
    os.environ.update(asked.environment)
    if asked.namespace is not None:
        _enter(asked.namespace)
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    endpoints = Endpoints(listen=asked.listen, join=asked.join, gossip=asked.gossip)
    try:
        scratch = None if asked.scratch is None else Path(asked.scratch)
        serve_node(asked.name, endpoints, group=asked.group, tether=True, scratch=scratch)
    except WeftError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _end_with(parent: int) -> None:
    """Asks the kernel to end this process when the server ends, even if this process is stopped or hangs."""
    ctypes.CDLL(None).prctl(SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _enter(namespace: str) -> None:
    """Moves this process to a network namespace. It must have only one thread."""
    with (Path("/run/netns") / namespace).open() as file:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(file.fileno(), NETWORK):
            number = ctypes.get_errno()
            raise OSError(number, f"cannot enter the namespace {namespace}: {os.strerror(number)}")


def _ignore(number: int, frame: FrameType | None) -> None:
    """A handler for SIGCHLD. Without a handler the signal would not wake the server."""


def main() -> None:
    """The server's process: imports all that nodes need, then forks them on request."""
    control = socket.socket(fileno=int(sys.argv[1]))
    import_all()
    Server(control).serve()
    os._exit(0)  # a normal end of the interpreter would take 0.2 s and has nothing to free


if __name__ == "__main__":
    main()
