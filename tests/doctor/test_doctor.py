"""`weft doctor`: six planted faults are found, and told in the right words."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from typer.testing import CliRunner

from weft import cli
from weft.commands.app import app
from weft.doctor import device, fleet
from weft.doctor.findings import Finding, worst
from weft.runtime.keys import certificates
from weft.runtime.keys.invite import take_invite
from weft.runtime.keys.owner import authority_of, invite, new_fleet
from weft.runtime.node import node as node_module
from weft.runtime.node.node import Node
from weft.runtime.node.probing.machine import free_memory_mb
from weft.runtime.wire.session import Endpoints, free_endpoint

assert cli.main  # importing the command line has registered every command
GROUP = "doctor-test"
LONG_S = 60.0


@contextmanager
def serving(name: str, endpoint: str) -> Iterator[Node]:
    """A real node in this process."""
    stop = threading.Event()
    with Node(name, Endpoints(listen=(endpoint,)), GROUP) as node:
        thread = threading.Thread(target=node.serve, args=(stop,), daemon=True)
        thread.start()
        yield node
        stop.set()
        thread.join(LONG_S)


def look(endpoint: str) -> list[Finding]:
    return list(fleet.examine_fleet((endpoint,), group=GROUP, wait_s=0.5))


def faults(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.state == "fault"]


def test_a_sound_node_has_no_fault() -> None:
    endpoint = free_endpoint()
    with serving("pi", endpoint):
        findings = look(endpoint)
    assert not faults(findings)
    assert {finding.check for finding in findings} >= {"versions", "clock", "memory", "speed"}


def test_two_nodes_are_tried_both_ways() -> None:
    first, second = free_endpoint(), free_endpoint()
    stop = threading.Event()
    with serving("pi", first), Node("nuc", Endpoints((second,), (first,)), GROUP) as nuc:
        thread = threading.Thread(target=nuc.serve, args=(stop,), daemon=True)
        thread.start()
        findings = look(first)
        stop.set()
        thread.join(LONG_S)
    assert any("nuc, pi reach each other, both ways" in finding.says for finding in findings)


def test_fault_1_a_node_has_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = free_endpoint()
    monkeypatch.setattr(node_module, "__version__", "0.0.9")
    with serving("pi", endpoint):
        (fault,) = faults(look(endpoint))
    assert (fault.check, fault.device) == ("versions", "pi")
    assert "Weft 0.0.9" in fault.says
    assert "install the same version" in fault.do


def test_fault_1_torch_is_too_old() -> None:
    fault = device.judge_versions("pi", (3, 11), "2.4.1+cpu")
    assert fault.state == "fault"
    assert "pip install 'torch>=2.6'" in fault.do


def test_fault_2_a_clock_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = free_endpoint()
    real = node_module.Node._welcome

    def late(self: Node) -> object:
        import msgspec

        return msgspec.structs.replace(real(self), date=time.time() - 75)

    monkeypatch.setattr(node_module.Node, "_welcome", late)
    with serving("pi", endpoint):
        (fault,) = faults(look(endpoint))
    assert fault.check == "clock"
    assert "its clock is 75 s behind this machine's" in fault.says
    assert "set-ntp true" in fault.do
    born = device.judge_date("pi", datetime(1970, 1, 1, tzinfo=timezone.utc))
    assert (born.state, "1970-01-01" in born.says) == ("fault", True)


def test_fault_3_a_port_is_taken_or_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        fault = device.examine_port("pi", f"127.0.0.1:{port}")
    assert (fault.check, fault.state) == ("port", "fault")
    assert f"cannot listen on tcp/127.0.0.1:{port}" in fault.says
    (closed,) = look(free_endpoint())
    assert (closed.check, closed.state) == ("port", "fault")
    assert "open the port in its firewall" in closed.do


def test_fault_4_a_certificate_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = new_fleet("lab")
    take_invite(invite(folder, "pi"), "pi")
    (sound,) = device.examine_keys("lab", "pi", "pi")
    assert sound.state == "ok"
    subject = certificates.subject_of(folder.read("pi.pem"))
    over = certificates.new_pair(authority_of(folder), subject, timedelta(days=-1))
    folder.write("pi.pem", over.certificate)
    (fault,) = device.examine_keys("lab", "pi", "pi")
    assert (fault.check, fault.state) == ("certificate", "fault")
    assert "has expired" in fault.says
    assert "weft keys invite pi" in fault.do


def test_fault_4_another_user_can_read_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = new_fleet("lab")
    take_invite(invite(folder, "pi"), "pi")
    (folder.path / "pi.key").chmod(0o644)
    (fault,) = device.examine_keys("lab", "pi", "pi")
    assert fault.do.startswith("Type chmod 600")


def test_fault_5_memory_is_short(tmp_path: Path) -> None:
    """As a container with a limit shows it."""
    for name, text in {
        "proc/meminfo": "MemTotal: 4000000 kB\nMemAvailable:  3000000 kB\n",
        "sys/fs/cgroup/memory.max": f"{256 << 20}\n",
        "sys/fs/cgroup/memory.current": f"{56 << 20}\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    free = free_memory_mb(tmp_path)
    assert free == pytest.approx(200.0)
    fault = device.judge_memory("pi", free)
    assert fault.state == "fault"
    assert "A node itself takes 300 MB" in fault.do
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    assert free_memory_mb(tmp_path) > 2900


def test_fault_6_torch_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = free_endpoint()
    monkeypatch.setattr(node_module, "probe_compute", lambda: 0.02)
    with serving("pi", endpoint):
        (fault,) = faults(look(endpoint))
    assert fault.check == "speed"
    assert "only 0.02 GFLOPS" in fault.says
    assert "throttled" in fault.do
    assert device.judge_speed("pi", 5.0, busy=3.0).state == "warning"


def test_a_node_without_keys_is_told_from_one_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This machine has keys, the node has none: its port is open, and it says nothing by TLS. The words were
    `is a node running there?`."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    new_fleet("lab")
    endpoint = free_endpoint()
    with serving("pi", endpoint):
        (fault,) = fleet.examine_fleet((endpoint.removeprefix("tcp/"),), group="lab", wait_s=0.5)
    assert fault.check == "certificate"
    assert "it speaks no TLS: was it started with --open, or without keys?" in fault.says
    assert "weft keys invite NAME" in fault.do
    assert "?." not in fault.cells()[-1]


def test_a_node_of_another_fleet_is_told_from_nobody() -> None:
    endpoint = free_endpoint()
    with serving("pi", endpoint):
        (fault,) = fleet.examine_fleet((endpoint,), group="doctor-other", wait_s=0.5)
    assert fault.check == "presence"
    assert "can be reached: is --group right?" in fault.says
    assert "or give --join" not in fault.do


def test_nobody_is_there() -> None:
    findings = list(fleet.examine_fleet((), group="doctor-nobody", wait_s=0.3))
    assert worst(findings) == "fault"
    assert "no node of fleet doctor-nobody is there" in findings[-1].says


def test_the_command_ends_with_1_where_something_must_be_mended() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        line = ["doctor", "--json", "--listen", f"127.0.0.1:{taken.getsockname()[1]}"]
        done = CliRunner().invoke(app, line)
    assert done.exit_code == 1
    told = json.loads(done.stdout)
    assert told["state"] == "fault"
    assert {"check", "device", "state", "says", "do"} == set(told["findings"][0])
    assert CliRunner().invoke(app, ["doctor", "--listen", "nonsense"]).exit_code == 2
