"""train, infer, node and fleet as commands: documents, exit codes, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner, Result

from weft.cli import app
from weft.fleet.fleet import Fleet

FLEET = """
[[device]]
name = "pi"
gflops = 1.0
data = true
[[device]]
name = "nuc"
tier = "edge"
gflops = 2.0
[[link]]
between = ["pi", "nuc"]
mbps = 1000
"""
TRAIN = "train mlp --data mnist5k --fleet fleet.toml"
INFER = "infer mlp --fleet fleet.toml"
WEFT = [sys.executable, "-m", "weft"]
PATIENCE = 180.0  # seconds for anything to happen on a busy machine


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "fleet.toml").write_text(FLEET)
    (tmp_path / "tmp").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def weft(line: str) -> Result:
    return CliRunner().invoke(app, line.split(), prog_name="weft")


def start(line: str, folder: Path) -> subprocess.Popen[str]:
    """A command as a process of its own, with its own folder for temporary files."""
    return subprocess.Popen(
        [*WEFT, *line.split()], cwd=folder, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(folder / "tmp"), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def eventually(what: str, happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < deadline, f"not within {PATIENCE} s: {what}"
        time.sleep(0.02)


def children(pid: int) -> set[int]:
    """Processes whose parent is `pid`."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            except OSError:
                continue  # it ended meanwhile
            if int(parent) == pid:
                found.add(int(entry.name))
    return found


def alive(pids: set[int]) -> set[int]:
    def running(pid: int) -> bool:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        return state != "Z"

    return {pid for pid in pids if running(pid)}


# --- training and inference --------------------------------------------------------------------


def test_training_prints_its_document_and_infer_takes_its_weights(folder: Path) -> None:
    line = f"{TRAIN} --strategy all-edge --steps 30 --batch 16 --local --out run --json"
    result = weft(line)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["strategy"] == "all-edge"
    assert (document["model"], document["batch"], document["steps"]) == ("mlp", 16, 30)
    assert document["step_s"] > 0
    assert document["predicted_step_s"] > 0
    assert document["seconds"] > 0
    assert document["final_loss"] < 2.4
    assert 0.1 < document["test_accuracy"] <= 1
    assert document["events"] == []
    assert document["out"] == "run"
    for name in ("plan.json", "weights.safetensors", "metrics.jsonl", "timeline.json", "run.json"):
        assert (folder / "run" / name).is_file()
    save_file({"x": torch.rand(3, 1, 28, 28)}, folder / "x.safetensors")
    line = (
        f"{INFER} --strategy chain --set devices=pi,nuc --local --repeat 4 --json "
        "--weights run/weights.safetensors --input x.safetensors -o y.safetensors"
    )
    result = weft(line)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert (document["strategy"], document["batch"], document["repeat"]) == ("chain", 3, 4)
    assert document["latency_s"] > 0
    assert document["max_difference"] <= 1e-5
    assert load_file(folder / "y.safetensors")["output"].shape == (3, 10)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (f"{TRAIN} -s chain --steps 0 --local", "steps 0"),
        (f"{TRAIN} -s chain --steps 5 --batch 0 --local", "batch 0"),
        (f"{TRAIN} -s chain --steps 5 --local --join tcp/127.0.0.1:7447", "exclude each other"),
        (f"{TRAIN} -s chian --steps 5 --local", "chian"),
        (f"{TRAIN} -s chain --steps 5 --local --optimizer sgdd", "sgdd"),
        (f"{TRAIN} -s chain --steps 5 --local --out fleet.toml", "is a file"),
        (f"{TRAIN} -s chain --steps 5 --local --resume", "--out"),
        (f"{TRAIN} -s chain --steps 5 --local --seed -1", "seed -1"),
        (f"{TRAIN} -s chain --steps 5 --local --seed {10**30}", f"seed {10**30}"),
        (f"{TRAIN} -s chain --steps 5 --local --zenoh-config gone.json5", "is for real nodes"),
        (f"{TRAIN} -s chain --steps 5 --join nowhere", "'tcp/nowhere' is not allowed"),
        ("node --name pi --join nowhere", "'tcp/nowhere' is not allowed"),
        ("node --name pi --group */x", "--group '*/x'"),
        (f"{TRAIN} -s chain --steps 5 --local --resume --out none", "nothing to resume"),
        ("train mlp --data minst --fleet fleet.toml -s chain --steps 5 --local", "minst"),
        ("train mlpp --data mnist5k --fleet fleet.toml -s chain --steps 5 --local", "mlpp"),
        ("train mlp --data mnist5k --fleet gone.toml -s chain --steps 5 --local", "gone.toml"),
        ("train mlp --fleet fleet.toml -s chain --steps 5 --local", "--data"),
        (f"{INFER} -s chain --repeat 0 --local", "--repeat 0"),
        (f"{INFER} -s chain --batch 0 --local", "batch 0"),
        (f"{INFER} -s chain --local --join tcp/127.0.0.1:7447", "exclude each other"),
        (f"{INFER} -s chain --local --input gone.safetensors", "gone.safetensors"),
        (f"{INFER} -s chain --local --weights fleet.toml", "fleet.toml"),
        ("node --name a/b", "a/b"),
        ("node --name pi --listen nowhere", "tcp/127.0.0.1:7447"),
        ("node --name pi --zenoh-config gone.json5", "gone.json5"),
        ("fleet --wait 0", "--wait 0"),
    ],
)
def test_wrong_use_ends_with_two_and_names_the_value(folder: Path, line: str, says: str) -> None:
    result = weft(line)
    assert result.exit_code == 2, result.output
    assert says in result.output
    assert "Traceback" not in result.output
    assert result.stdout == ""
    assert len(result.stderr.split("error: ")[1].splitlines()) == 1
    assert "starting" not in result.stderr, "no bar of a run that never was"


# --- ending: killed, interrupted ---------------------------------------------------------------

linux_only = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")


@pytest.fixture
def under_way(folder: Path) -> Iterator[tuple[subprocess.Popen[str], set[int]]]:
    """A long `weft train --local` in the middle of its steps, and the processes it has started."""
    line = f"{TRAIN} -s all-edge --steps 1000000 --local --out run --save-every 20"
    process = start(line, folder)
    nodes: set[int] = set()
    try:
        eventually(
            "the run has saved its first steps",
            lambda: (folder / "run/metrics.jsonl").exists() or process.poll() is not None,
        )
        assert process.poll() is None, process.communicate()[1]
        (server,) = children(process.pid)  # that the nodes are forked from
        nodes = {server, *children(server)}
        assert len(nodes) == 3
        yield process, nodes
    finally:
        process.kill()
        process.communicate()
        for pid in alive(nodes):
            os.kill(pid, signal.SIGKILL)


@linux_only
def test_nodes_do_not_outlive_a_killed_coordinator(
    under_way: tuple[subprocess.Popen[str], set[int]],
) -> None:
    process, nodes = under_way
    process.kill()
    process.wait(PATIENCE)
    eventually("all nodes are gone", lambda: not alive(nodes))


@linux_only
def test_an_interrupt_ends_everything_in_order(
    under_way: tuple[subprocess.Popen[str], set[int]], folder: Path
) -> None:
    process, nodes = under_way
    assert [p.name for p in (folder / "tmp").glob("weft-*")] != []
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert not alive(nodes)
    assert list((folder / "tmp").glob("weft-*")) == []


# --- nodes by hand -----------------------------------------------------------------------------


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """nuc and a box that joins it, on loopback: (nuc's endpoint, its port)."""
    folder = tmp_path_factory.mktemp("nodes")
    first, second = free_ports(2)
    endpoint = f"tcp/127.0.0.1:{first}"
    processes: list[subprocess.Popen[str]] = []
    try:
        for line in (
            f"node --name nuc --listen {endpoint}",
            f"node --name pi --listen tcp/127.0.0.1:{second} --join {endpoint}",
        ):
            process = start(line, folder)
            processes.append(process)
            assert process.stderr is not None
            assert "is ready on tcp/127.0.0.1" in process.stderr.readline()
        yield endpoint, first
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            _, errors = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0, errors
            assert "Traceback" not in errors
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_a_fleet_is_found_probed_and_written_as_a_file_that_can_be_read(
    folder: Path, two_nodes: tuple[str, int]
) -> None:
    endpoint, _ = two_nodes
    result = weft(f"fleet --join {endpoint} --wait 1 --probe -o found.toml --json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert [d["name"] for d in document["devices"]] == ["nuc", "pi"]
    assert all(d["gflops"] > 0 and d["memory_mb"] > 0 for d in document["devices"])
    assert {(k["source"], k["dest"]) for k in document["links"]} == {("nuc", "pi"), ("pi", "nuc")}
    assert all(k["mbps"] > 0 and k["latency_ms"] >= 0 for k in document["links"])
    found = Fleet.load(folder / "found.toml")
    assert found.names == ("nuc", "pi")
    assert len(found.link) == 1
    table = weft(f"fleet --join {endpoint} --wait 1")
    assert "nuc" in table.stdout


def test_a_network_is_measured_on_joined_nodes_and_planned_from_the_files(
    folder: Path, two_nodes: tuple[str, int]
) -> None:
    endpoint, _ = two_nodes
    result = weft(f"profile lenet5 --batch 4 --join {endpoint} --wait 1 -o real.toml --json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert set(document["profile"]["devices"]) == {"nuc", "pi"}
    assert all(times["message_s"] > 0 for times in document["profile"]["devices"].values())
    planned = weft("plan lenet5 --batch 4 -f real.toml -p real.json -s auto --json")
    assert planned.exit_code == 0, planned.output
    assert json.loads(planned.stdout)["predicted"]["step_s"] > 0


def test_training_on_joined_nodes(folder: Path, two_nodes: tuple[str, int]) -> None:
    endpoint, _ = two_nodes
    line = f"{TRAIN} -s chain --set devices=pi,nuc --steps 10 --join {endpoint} --no-measure --json"
    result = weft(line)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["steps"] == 10
    (folder / "fleet.toml").write_text(FLEET.replace("pi", "ghost"))
    line = f"{TRAIN} -s chain --set devices=nuc,ghost --steps 10 --join {endpoint} --no-measure --deadline 1"
    here = weft(line)  # the source is this machine, where no node of that name is elsewhere
    assert here.exit_code == 0, here.output
    (folder / "fleet.toml").write_text(FLEET.replace("nuc", "ghost"))
    lost = weft(f"{TRAIN} -s all-edge --steps 10 --join {endpoint} --deadline 1")
    assert lost.exit_code == 1
    assert "weft node --name ghost" in lost.output
    assert "Traceback" not in lost.output


def test_rubbish_on_a_nodes_port_does_not_stop_it(folder: Path, two_nodes: tuple[str, int]) -> None:
    endpoint, port = two_nodes
    for junk in (b"", b"GET / HTTP/1.1\r\n\r\n", os.urandom(2000), b"\xff" * 100_000):
        with socket.create_connection(("127.0.0.1", port), timeout=10) as stranger:
            try:
                stranger.sendall(junk)
            except OSError:
                continue  # it has hung up, which is its right
    result = weft(f"fleet --join {endpoint} --wait 1 --json")
    assert result.exit_code == 0, result.output
    assert [d["name"] for d in json.loads(result.stdout)["devices"]] == ["nuc", "pi"]


def test_a_port_in_use_is_said_and_ends_with_one(folder: Path, two_nodes: tuple[str, int]) -> None:
    endpoint, port = two_nodes
    process = start(f"node --name other --listen {endpoint}", folder)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert f"cannot listen on tcp/127.0.0.1:{port}" in errors
    assert "--listen" in errors
    assert "Traceback" not in errors


def test_nobody_there_ends_with_one(folder: Path) -> None:
    (port,) = free_ports(1)
    result = weft(f"fleet --join tcp/127.0.0.1:{port} --wait 0.5")
    assert result.exit_code == 1
    assert str(port) in result.output
    assert "Is `weft node` running there" in result.output
    assert "Traceback" not in result.output


def test_a_plan_files_own_fleet_may_be_named_again_and_another_is_refused(folder: Path) -> None:
    made = weft("plan mlp --fleet fleet.toml --strategy chain -o plan.json")
    assert made.exit_code == 0, made.output
    ran = weft(f"{TRAIN} --plan plan.json --strategy chain --steps 2 --local --json")
    assert ran.exit_code == 0, ran.output
    (folder / "other.toml").write_text(FLEET.replace("mbps = 1000", "mbps = 10"))
    other = weft("train mlp --data mnist5k --fleet other.toml --plan plan.json --steps 2 --local")
    assert other.exit_code == 2
    assert "another fleet than other.toml" in " ".join(other.output.split())
    strategy = weft("train mlp --data mnist5k --plan plan.json -s all-edge --steps 2 --local")
    assert strategy.exit_code == 2
    assert "a plan of chain, not of all-edge" in " ".join(strategy.output.split())
