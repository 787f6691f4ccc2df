"""A node on a network with strangers: what a job names never leads to a file outside its own folder."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from weft.errors import InputError
from weft.graph.optimizers.optimizer import Optimizer
from weft.runtime.node.node import Node
from weft.runtime.wire import messages as msg
from weft.runtime.wire.crew import Crew
from weft.runtime.wire.links.channel import OutLink, Roads
from weft.runtime.wire.links.shaping import SharedClock, clock_name
from weft.runtime.wire.session import Endpoints, free_endpoint


@contextmanager
def stranger_at(scratch: Path | None) -> Iterator[Crew]:
    """Somebody who can reach a node."""
    endpoint, stop = free_endpoint(), threading.Event()
    with Node("v1", Endpoints(listen=(endpoint,)), "test-node", scratch) as node:
        thread = threading.Thread(target=node.serve, args=(stop,), daemon=True)
        thread.start()
        with Crew(Endpoints(join=(endpoint,), asks_only=True), "test-node") as crew:
            crew.wait_for(("v1",), 30.0)
            yield crew
        stop.set()
        thread.join(10.0)


def job(shared: str) -> msg.Assign:
    link = OutLink("x", "air", bytes_per_s=1e5, shared=shared)
    return msg.Assign(
        msg.Job(
            run="stranger", version=0, mode="train", batch=1, layers=1, code=(), segments=(),
            inputs=("x",), optimizer=Optimizer(), roads=Roads(links=(link,), next_hop={"x": "x"}),
        )
    )  # fmt: skip


@pytest.mark.parametrize("emulated", [True, False])
def test_a_job_that_names_a_path_is_refused_and_no_file_appears(
    tmp_path: Path, emulated: bool
) -> None:
    scratch = tmp_path / "deep" / "scratch"
    scratch.mkdir(parents=True)
    outside = tmp_path / "outside"
    with stranger_at(scratch if emulated else None) as crew:
        names = [str(outside), "../../outside", "", ".", "a/b", "A", "a" * 65, "v1.log", "a\n"]
        for name in names if emulated else [*names, clock_name("air")]:
            with pytest.raises(InputError, match=r"is no name of|emulates no shared media"):
                crew.ask("v1", job(name), 10.0)
        (welcome,) = crew.ask("v1", msg.Hello(), 10.0)
        assert isinstance(welcome, msg.Welcome)
        assert not welcome.busy
        if emulated:
            assert crew.ask("v1", job(clock_name("air")), 10.0) == [msg.Done()]
            crew.ask("v1", msg.End("stranger"), 10.0)
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    clocks = {f"deep/scratch/{clock_name('air')}"} if emulated else set()
    assert found == {"deep", "deep/scratch", *clocks}


def test_a_clock_follows_no_link_and_touches_no_other_file(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("some longer text")
    (tmp_path / "a1").symlink_to(other)
    (tmp_path / "a2").mkdir()
    for name in ("a1", "a2", "other"):
        with pytest.raises(InputError, match="clock"):
            SharedClock(tmp_path / name)
    assert other.read_text() == "some longer text"


def test_jobs_with_shared_media_leave_no_open_files(tmp_path: Path) -> None:
    with stranger_at(tmp_path) as crew:
        crew.ask("v1", job(clock_name("air")), 10.0)
        before = open_clocks(tmp_path)
        for _ in range(5):
            crew.ask("v1", job(clock_name("air")), 10.0)
        assert open_clocks(tmp_path) == before > 0
        crew.ask("v1", msg.End("stranger"), 10.0)


def open_clocks(folder: Path) -> int:
    paths = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return sum(os.path.realpath(path).startswith(str(folder)) for path in paths)


@pytest.mark.parametrize("count", [50, 1000])
def test_connections_that_say_nothing_are_closed_and_hinder_nobody_who_is_in(count: int) -> None:
    """At a node without keys. Above a hundred of them new connections have to wait: SECURITY.md says so."""
    endpoint, stop = free_endpoint(), threading.Event()
    host, _, port = endpoint.partition("/")[2].rpartition(":")
    with Node("v1", Endpoints(listen=(endpoint,)), "test-node") as node, ExitStack() as stack:
        thread = threading.Thread(target=node.serve, args=(stop,), daemon=True)
        thread.start()
        crew = stack.enter_context(Crew(Endpoints(join=(endpoint,), asks_only=True), "test-node"))
        crew.wait_for(("v1",), 60.0)
        for number in range(count):
            silent = stack.enter_context(socket.socket())
            silent.setblocking(False)
            silent.connect_ex((host, int(port)))
            if number % 50 == 0:
                assert len(crew.ask("v1", msg.Hello(), 60.0)) == 1
        assert len(crew.ask("v1", msg.Hello(), 60.0)) == 1
        stop.set()
        thread.join(60.0)
