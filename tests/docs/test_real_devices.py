"""docs/real-devices.md: its commands are run word for word, in two network namespaces with fresh homes."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "real-devices.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^(laptop|pi)\$ (weft .*)$", PAGE, re.MULTILINE)
(FLEET,) = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
ADDRESSES = {"laptop": "192.0.2.6", "pi": "192.0.2.7"}
LONG_S = 600.0


def ip(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(("ip", *words), capture_output=True, text=True, check=False)


class Machines:
    """A laptop and a Pi that nobody has used before, on one cable."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tag = folder, secrets.token_hex(2)
        self.nodes: list[subprocess.Popen[str]] = []

    def space(self, machine: str) -> str:
        return f"weft-doc-{self.tag}-{machine}"

    def set_up(self) -> str:
        """Why it is not possible; "" if it is done."""
        for machine in ADDRESSES:
            made = ip("netns", "add", self.space(machine))
            if made.returncode:
                return made.stderr.strip()
        ip("-n", self.space("laptop"), "link", "add", "cable", "type", "veth", "peer", "name", "cable",
           "netns", self.space("pi"))  # fmt: skip
        for machine, address in ADDRESSES.items():
            ip("-n", self.space(machine), "addr", "add", f"{address}/24", "dev", "cable")
            for link in ("cable", "lo"):
                done = ip("-n", self.space(machine), "link", "set", link, "up")
                if done.returncode:
                    return done.stderr.strip()
        return ""

    def start(self, machine: str, line: str) -> subprocess.Popen[str]:
        home = self.folder / machine
        home.mkdir(exist_ok=True)
        words = [sys.executable, "-m", "weft", *shlex.split(line)[1:]]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("XDG_")}
        return subprocess.Popen(
            ["ip", "netns", "exec", self.space(machine), *words],
            cwd=home, env={**environment, "HOME": str(home)}, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, machine: str, line: str) -> str:
        process = self.start(machine, line)
        output, _ = process.communicate(timeout=LONG_S)
        assert process.returncode == 0, f"{machine}$ {line}\n{output}"
        return output

    def close(self) -> None:
        for node in self.nodes:
            node.terminate()
            node.wait(timeout=60.0)
        for machine in ADDRESSES:
            ip("netns", "del", self.space(machine))


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    if os.name != "posix" or os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    made = Machines(tmp_path)
    try:
        problem = made.set_up()
        if problem:
            pytest.skip(f"this machine makes no network namespaces: {problem}")
        yield made
    finally:
        made.close()


@pytest.mark.proof
def test_the_page_s_commands_lead_from_fresh_machines_to_a_trained_network(
    machines: Machines,
) -> None:
    assert len(COMMANDS) == 7
    invitation = ""
    (machines.folder / "laptop").mkdir()
    (machines.folder / "laptop" / "fleet.toml").write_text(FLEET)
    for machine, line in COMMANDS:
        if "--invite" in line:
            assert line.replace("weft1:...", "") == invitation.partition("weft1:")[0]
            node = machines.start(machine, invitation)
            machines.nodes.append(node)
            assert node.stdout is not None
            assert f"pi is ready on tls/{ADDRESSES['pi']}:7447" in node.stdout.readline()
            continue
        output = machines.run(machine, line)
        if "invite" in line:
            (invitation,) = [x for x in output.splitlines() if x.startswith("weft node")]
        if "fleet --probe" in line:
            assert "pi" in output
            assert not re.search(r"\btcp/", output)
    assert "pi is revoked" in output
    home = machines.folder / "laptop"
    assert (home / "run" / "weights.safetensors").stat().st_size > 10_000
    assert (home / ".config" / "weft" / "weft" / "authority.key").stat().st_mode & 0o777 == 0o600
    (node,) = machines.nodes
    deadline = time.monotonic() + 120.0
    while node.poll() is None:  # a revoked device ends, and says why
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert node.stdout is not None
    assert "was revoked by the owner" in node.stdout.read()
