"""The engines of `weft reproduce all`: a Dask or Ray cluster gives the same numbers; refusals are clear."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from weft import cli
from weft.commands.app import app
from weft.errors import InputError, WeftError
from weft.papers.claims import Reproduction
from weft.papers.engines import engine
from weft.papers.together import reproduce_all, stop_children, work

assert cli.main  # importing the command line has registered every command


class StandIn(types.ModuleType):
    """As much of Ray as the engine uses: the last task given is the first that is done."""

    class RayError(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("ray")
        self.exceptions = types.SimpleNamespace(RayError=self.RayError)
        self.cancelled: list[Any] = []
        self.cpus, self.open = 1.0, False

    def init(self, url: str, **_: object) -> None:
        self.open = True

    def shutdown(self) -> None:
        self.open = False

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": self.cpus}

    def remote(self, **_: object) -> Any:
        return lambda do: types.SimpleNamespace(remote=lambda call: (do, call))

    def wait(self, tasks: list[Any], num_returns: int, timeout: float = 0.0) -> Any:
        return tasks[-num_returns:], tasks[:-num_returns]

    def get(self, task: Any) -> Any:
        do, call = task
        try:
            return do(call)
        except Exception as error:
            wrapped = self.RayError(f"traceback of the worker\n{type(error).__name__}: {error}")
            wrapped.cause = error  # type: ignore[attr-defined]
            raise wrapped from None

    def cancel(self, task: Any) -> None:
        self.cancelled.append(task)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    ray = StandIn()
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "grpc", types.ModuleType("grpc"))
    return ray


@contextmanager
def listener() -> Iterator[str]:
    """A port of this machine that takes a connection and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"ray://127.0.0.1:{server.getsockname()[1]}"


def number(value: int) -> int:
    if value < 0:
        raise WeftError("a negative number")
    return value * int("1")


def call(value: Any) -> Any:
    return number, (value,), {}


def test_results_come_as_they_are_done_and_what_is_left_is_cancelled(stand_in: StandIn) -> None:
    with listener() as url, engine(url, None) as compute:
        results = compute(call(n) for n in range(3))
        assert [next(results), next(results)] == [2, 1]
    assert len(stand_in.cancelled) == 1
    assert not stand_in.open


@pytest.mark.parametrize(
    ("value", "says"),
    [(-1, "^a negative number$"), ("x", "a Ray worker failed: TypeError: .*version of Weft")],
)
def test_an_error_of_a_worker_is_told_in_words(stand_in: StandIn, value: Any, says: str) -> None:
    with listener() as url, engine(url, None) as compute, pytest.raises(WeftError, match=says):
        list(compute([(number, (value, *([1] if value == "x" else [])), {})]))


def test_a_cluster_without_a_processor_is_refused(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.papers.engines.WORKERS_S", 0.0)
    stand_in.cpus = 0.0
    with listener() as url, pytest.raises(InputError, match="no CPU for a task"):
        engine(url, None).__enter__()
    assert not stand_in.open


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ray://x", "give ray://HOST:PORT"),
        ("ray://127.0.0.1:99999", "give ray://HOST:PORT"),
        ("ray://127.0.0.1:1", "no Ray cluster answers there"),
    ],
)
def test_a_wrong_address_is_refused(url: str, says: str, tmp_path: Path) -> None:
    words = ["reproduce", "all", "--quick", "--engine", url, "--out", str(tmp_path)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2, done.output
    assert says in " ".join(done.output.split())


def test_without_ray_the_command_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    words = ["reproduce", "all", "--quick", "--engine", "ray://127.0.0.1:1", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert "needs Ray: pip install 'weft[ray]'" in " ".join(done.output.split())


@pytest.mark.proof
def test_a_dask_cluster_gives_the_same_numbers(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, host="127.0.0.1", dashboard_address=None
    ) as cluster:
        same_as_here(cluster.scheduler_address.replace("tcp://", "dask://"), tmp_path)


def same_as_here(url: str, folder: Path) -> None:
    """A paper computed by a cluster and on this machine: what no clock decides is equal."""
    names = ("hiertrain",)
    with engine("local", 1, stop=stop_children) as compute:
        ((local, _),) = reproduce_all(names, folder / "local", quick=True, compute=compute)
    with engine(url, None) as compute:
        ((far, earlier),) = reproduce_all(names, folder / "far", quick=True, compute=compute)
        assert not earlier
        ((_, earlier),) = reproduce_all(names, folder / "far", quick=True, compute=compute)
        assert earlier
    assert [(claim.id, claim.verdict) for claim in far.claims] == [
        (claim.id, claim.verdict) for claim in local.claims
    ]
    assert len(without_clock(local)) > 20
    assert without_clock(far) == without_clock(local)
    assert [table.title for table in far.tables] == [table.title for table in local.tables]
    assert [Path(f).name for f in far.files] == [Path(f).name for f in local.files]
    assert all(Path(f).stat().st_size for f in far.files)


def without_clock(report: Reproduction) -> list[Any]:
    return [claim for claim in report.claims if "CPU time on this machine" not in claim.note]


def free_ports(count: int) -> list[int]:
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in servers]
    for server in servers:
        server.close()
    return ports


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True


@contextmanager
def ray_cluster() -> Iterator[str]:
    """A Ray cluster of one machine, on the loopback only, that reports to nobody."""
    head, client, agent = free_ports(3)
    place = Path(f"/tmp/weft-ray-{os.getpid()}")  # its sockets' paths must be short
    place.mkdir(mode=0o700)
    environment = {**os.environ, "HOME": str(place), "RAY_USAGE_STATS_ENABLED": "0",
                   "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # fmt: skip
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block",
               f"--port={head}", f"--ray-client-server-port={client}",
               f"--runtime-env-agent-port={agent}", "--include-dashboard=false", "--num-cpus=1",
               "--node-ip-address=127.0.0.1", f"--temp-dir={place / 'ray'}"]  # fmt: skip
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        end = time.monotonic() + 120.0
        # The server for clients asks the agent, and is refused where it asks too early.
        while not (listens(agent) and listens(client)):
            assert process.poll() is None, (place / "log").read_text()[-2000:]
            assert time.monotonic() < end, (place / "log").read_text()[-2000:]
            time.sleep(0.2)
        os.environ["RAY_AUTH_TOKEN_PATH"] = str(place / ".ray" / "auth_token")
        yield f"ray://127.0.0.1:{client}"
    finally:
        os.environ.pop("RAY_AUTH_TOKEN_PATH", None)
        process.terminate()
        process.wait(60.0)
        shutil.rmtree(place, ignore_errors=True)


with_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="the extra [ray] is not installed"
)


@with_ray
@pytest.mark.proof
def test_a_ray_cluster_gives_the_same_numbers(tmp_path: Path) -> None:
    with ray_cluster() as url:
        same_as_here(url, tmp_path)
        with engine(url, None) as compute, pytest.raises(WeftError, match=r"^nothing was not rep"):
            list(compute([(work, ("nothing", True), {})]))


@with_ray
@pytest.mark.proof
def test_a_port_that_says_nothing_is_refused_within_a_deadline() -> None:
    with listener() as url, pytest.raises(InputError, match="no Ray cluster answers there"):
        engine(url, None).__enter__()
