"""`weft node`: it says where it is reached, and prints a unit that systemd accepts."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from weft import cli
from weft.commands.app import app
from weft.commands.unit import unit
from weft.runtime.keys.owner import invite, new_fleet
from weft.runtime.wire.reach import reach, told_address

ROOT = Path(__file__).resolve().parents[1]
assert cli.main  # importing the command line has registered every command


def test_a_node_without_listen_has_a_port_that_can_be_told() -> None:
    (endpoint,) = reach("nobody", name="pi").listen
    assert endpoint.startswith("tcp/127.0.0.1:")
    assert int(told_address(endpoint).rpartition(":")[2]) > 0


def test_a_node_on_all_addresses_tells_one_of_them() -> None:
    host, _, port = told_address("tcp/[::]:7447").rpartition(":")
    assert port == "7447"
    assert host not in ("[::]", "0.0.0.0", "")


def test_a_node_tells_a_script_where_it_is_reached() -> None:
    line = [
        sys.executable,
        "-m",
        "weft",
        "node",
        "--name",
        "pi",
        "--group",
        "told",
        "--tether",
        "--json",
    ]
    node = subprocess.Popen(
        line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert node.stdin is not None
    assert node.stdout is not None
    try:
        text = ""
        while not text.endswith("}\n"):
            read = node.stdout.readline()
            assert read, "the node has ended"
            text += read
    finally:
        node.stdin.close()  # its tether
        node.wait(60)
    told = json.loads(text)
    assert (told["name"], told["group"]) == ("pi", "told")
    assert told["listen"] == [f"tcp/{told['join']}"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--threads", "0"], "--threads '0' is not allowed"),
        (["--threads", "many"], "--threads 'many' is not allowed"),
        (["--compute", "tpu"], "--compute 'tpu' is not allowed"),
        (["--compute", "cuda:99"], "--compute cuda:99"),
    ],
)
def test_a_node_computes_with_what_is_there_or_is_refused(arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(app, ["node", "--name", "pi", *arguments])
    assert done.exit_code == 2
    assert words in done.output


def test_a_unit_keeps_what_a_node_computes_with() -> None:
    done = CliRunner().invoke(app, ["node", "--name", "pi", "--threads", "auto", "--print-unit"])
    assert "--threads auto" in done.stdout


def test_the_unit_is_accepted_by_systemd(tmp_path: Path) -> None:
    line = [
        "node",
        "--name",
        "pi",
        "--listen",
        "127.0.0.1:7447",
        "--metrics",
        "9100",
        "--print-unit",
    ]
    done = CliRunner().invoke(app, line)
    assert done.exit_code == 0
    assert (
        f"ExecStart={sys.executable} -m weft node --name pi --listen 127.0.0.1:7447" in done.stdout
    )
    assert "--metrics 9100" in done.stdout
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here")
    file = tmp_path / "weft-pi.service"
    file.write_text(done.stdout)
    checked = subprocess.run(
        ["systemd-analyze", "verify", str(file)], capture_output=True, text=True, timeout=60
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_words_with_a_meaning_for_systemd_are_quoted() -> None:
    text = unit("pi", ["--zenoh-config", "/a b/100%/$x"], "me", "/home/me")
    assert '"/a b/100%%/$$x"' in text


def test_a_unit_holds_no_key() -> None:
    line = ["node", "--name", "pi", "--invite", "weft1:abc", "--print-unit"]
    done = CliRunner().invoke(app, line)
    assert done.exit_code == 2
    assert "--invite holds a key" in done.output


def test_the_containerfile_copies_what_the_package_is_built_from() -> None:
    text = (ROOT / "Containerfile").read_text(encoding="utf-8")
    for line in text.splitlines():
        if line.startswith("COPY"):
            for name in line.split()[1:-1]:
                assert (ROOT / name).exists(), name
    assert 'ENTRYPOINT ["weft", "node"]' in text


def test_a_running_node_does_not_show_its_invitation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: the invitation holds the device's key, and stood in the list of processes for as long as the node
    ran, where every user of the machine reads it."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "owner"))
    line = invite(new_fleet("lab"), "pi").line()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "pi"))
    code = "from weft.cli import main; main()"
    command = [sys.executable, "-c", code, "node", "--name", "pi", "--listen", "127.0.0.1:0"]
    for option in (["--invite", line], [f"--invite={line}"]):
        with subprocess.Popen([*command, *option], stderr=subprocess.PIPE, text=True) as node:
            try:
                assert node.stderr is not None
                assert "pi is ready on tls/127.0.0.1:" in node.stderr.readline()
                words = Path(f"/proc/{node.pid}/cmdline").read_bytes().split(b"\0")
                assert not [word for word in words if b"weft1:" in word or b"invite" in word]
                assert words[-3:] == [b"--group", b"lab", b""]
            finally:
                node.terminate()
            assert node.wait(60) == 0
