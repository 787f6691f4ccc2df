"""Emulated nodes are forked from one process: they come, go and die as separate devices do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from weft.errors import LostDevice
from weft.runtime.emulate import forked, local
from weft.runtime.emulate.fork_server import why_not_fork
from weft.runtime.emulate.forked import CannotFork, ForkedProcess, ForkServer, get_server
from weft.runtime.emulate.local import LocalFleet
from weft.runtime.wire.session import Endpoints

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nodes are spawned")

# A server that came to have a second thread, as a library might start one.
WITH_A_THREAD = """
import socket, sys, threading
from weft.runtime.emulate.fork_server import Server
threading.Thread(target=threading.Event().wait, daemon=True).start()
Server(socket.socket(fileno=int(sys.argv[1]))).serve()
"""
OWNER = """
import json, sys, time
from weft.runtime.emulate.forked import get_server
from weft.runtime.emulate.local import LocalFleet
with LocalFleet(("a", "b")) as local:
    local.crew.wait_for(local.names, 180.0)
    pids = [p.pid for p in local.processes.values()]
    print(json.dumps({"pids": [*pids, get_server().pid], "scratch": str(local.scratch)}), flush=True)
    time.sleep(600)
"""


def eventually(true: Callable[[], bool], seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while not true() and time.monotonic() < deadline:
        time.sleep(0.05)
    return true()


def runs(pid: int) -> bool:
    """Whether a process is there and has not ended; a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def start(server: ForkServer, log: Path) -> ForkedProcess:
    """A node that joins nobody."""
    return server.start(
        "a", group="g", join=(), listen=("tcp/127.0.0.1:0",), gossip=True, log=log,
        environment=os.environ,
    )  # fmt: skip


def test_a_killed_node_is_reported_the_others_stay_and_it_comes_back() -> None:
    with LocalFleet(("a", "b")) as fleet:
        fleet.crew.wait_for(fleet.names, 180.0)
        fleet.check()
        first = fleet.processes["a"]
        assert isinstance(first, ForkedProcess)
        assert os.getsid(first.pid) == first.pid  # Ctrl-C does not reach it
        fleet.kill("a")
        assert first.wait(timeout=60.0) == -signal.SIGKILL
        with pytest.raises(LostDevice, match="the node a ended with code -9"):
            fleet.check()
        assert fleet.processes["b"].poll() is None
        fleet.restart("a")
        assert fleet.processes["a"].pid != first.pid
        fleet.crew.wait_for(fleet.names, 180.0)
        fleet.check()
        pids = [process.pid for process in fleet.processes.values()]
    assert not any(map(runs, pids))
    assert [process.returncode for process in fleet.processes.values()] == [0, 0]
    assert not fleet.scratch.exists()


def test_a_second_fleet_takes_the_server_that_is_there() -> None:
    with LocalFleet(("a",)) as one, LocalFleet(("a",)) as two:
        parents = [
            Path(f"/proc/{fleet.processes['a'].pid}/stat").read_text().rpartition(")")[2].split()[1]
            for fleet in (one, two)
        ]
    assert parents == [str(get_server().pid)] * 2


def test_a_node_that_cannot_start_is_reported_with_its_last_words() -> None:
    class Misled(LocalFleet):
        def endpoints(self, name: str) -> Endpoints:
            return Endpoints(listen=("nowhere",))

    with Misled(("a",)) as fleet:
        assert fleet.processes["a"].wait(timeout=60.0) == 2
        with pytest.raises(LostDevice, match=r"code 2: error: .*nowhere"):
            fleet.check()


def test_waiting_for_a_node_that_lives_ends_with_the_time(tmp_path: Path) -> None:
    process = start(get_server(), tmp_path / "log")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.2)
    process.stdin.close()
    assert process.wait(timeout=60.0) == 0


def test_an_owner_that_is_killed_leaves_no_process_not_even_a_stopped_one() -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE)
    try:
        assert owner.stdout is not None
        said = json.loads(owner.stdout.readline())
        assert all(map(runs, said["pids"]))
        os.kill(said["pids"][0], signal.SIGSTOP)
    finally:
        owner.kill()
        owner.wait()
    assert eventually(lambda: not any(map(runs, said["pids"])))
    for file in Path(said["scratch"]).iterdir():
        file.unlink()
    Path(said["scratch"]).rmdir()


def test_a_server_that_dies_takes_its_nodes_along_and_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forked, "_server", None)
    doomed = get_server()
    process = start(doomed, tmp_path / "log")
    os.kill(doomed.pid, signal.SIGKILL)
    assert process.wait(timeout=60.0) == -signal.SIGKILL
    assert eventually(lambda: not runs(process.pid))
    process.stdin.close()
    with pytest.raises(CannotFork):
        start(doomed, tmp_path / "log")
    assert get_server() is not doomed
    get_server().close()


def test_a_process_with_threads_does_not_fork(tmp_path: Path) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    assert "threads" in (why_not_fork() or "")
    stop.set()
    thread.join()
    server = ForkServer(("-c", WITH_A_THREAD))
    try:
        with pytest.raises(CannotFork, match="the fork server has 2 threads"):
            start(server, tmp_path / "log")
    finally:
        server.close()


def test_where_nothing_can_be_forked_nodes_are_spawned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> Any:
        raise CannotFork("the fork server has 2 threads")

    monkeypatch.setattr(local, "get_server", refuse)
    with caplog.at_level("INFO", logger=local.__name__), LocalFleet(("a",)) as fleet:
        fleet.crew.wait_for(fleet.names, 180.0)
        assert isinstance(fleet.processes["a"], subprocess.Popen)
    assert "the node a is spawned, which is slower: the fork server has 2 threads" in caplog.text


def test_a_server_that_cannot_start_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = ForkServer(("-c", "raise SystemExit(1)"))
    monkeypatch.setattr(forked, "_server", broken)
    with pytest.raises(CannotFork):
        start(broken, tmp_path / "log")
    with pytest.raises(CannotFork, match="could not be started"):
        get_server()
    broken.close()


def test_a_node_finds_all_its_modules_imported() -> None:
    """The import was once taken for unused and left out: each node then imported a hundred modules itself,
    which took 0.9 s and 15 MB of its own."""
    script = (
        "import sys; from weft.runtime.emulate.fork_server import import_all, why_not_fork; "
        "import_all(); before = set(sys.modules); import weft.runtime.node.serve; "
        "print(why_not_fork(), sorted(set(sys.modules) - before))"
    )
    environment = {**os.environ, **forked.ONE_THREAD}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=True, text=True, env=environment
    )
    assert done.stdout.strip() == "None []"
