"""Nodes are found however they were started; a beacon tells a name and a port, to its own fleet only."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from weft.runtime.keys.owner import new_fleet
from weft.runtime.wire import beacon
from weft.runtime.wire.beacon import Beacon, fleet_id, look
from weft.runtime.wire.reach import keys_of, reach
from weft.runtime.wire.session import free_endpoint

LONG_S = 120.0


def has_multicast() -> bool:
    with Beacon("probe", "probe", 1, wide=False):
        return bool(look("probe", wide=False))


needs_multicast = pytest.mark.skipif(not has_multicast(), reason="no multicast on this machine")


@needs_multicast
def test_two_nodes_of_a_machine_both_answer_their_fleet_and_no_other() -> None:
    with Beacon("a", "ours", 1001, wide=False), Beacon("b", "ours", 1002, wide=False):
        assert sorted(look("ours", wide=False)) == [("127.0.0.1", 1001), ("127.0.0.1", 1002)]
        assert look("theirs", wide=False) == []


@needs_multicast
def test_what_is_no_question_or_no_answer_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    with Beacon("a", "ours", 1001, wide=False):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            for data in (b"", b"\xff" * 2000, beacon.ASK, beacon.ASK + b"ours" + b"x"):
                one.sendto(data, (beacon.GROUP, beacon.PORT))
        assert look("ours", wide=False) == [("127.0.0.1", 1001)]
    with Beacon("a", "ours", 1001, wide=False) as bad:
        for answer in (b"{", b"[1]", b'{"fleet":"ours","name":"a","port":99999999}'):
            monkeypatch.setattr(bad, "_answer", answer)
            assert look("ours", wide=False) == []


def test_the_public_id_of_a_fleet_with_keys_is_its_authoritys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    open_id = fleet_id("lab", None)
    new_fleet("lab")
    closed_id = fleet_id("lab", keys_of("lab", "owner"))
    assert open_id != closed_id
    assert re.fullmatch(r"[0-9a-f]{16}", closed_id)


@needs_multicast
def test_a_node_that_was_started_with_listen_is_found_without_join() -> None:
    group, endpoint = "beacon-test", free_endpoint()
    node = subprocess.Popen(
        [sys.executable, "-m", "weft", "node", "--name", "pi", "--listen", endpoint,
         "--group", group],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert node.stderr is not None
        assert f"pi is ready on {endpoint}" in node.stderr.readline()
        assert f"--join {endpoint.removeprefix('tcp/')} --group {group}" in node.stderr.readline()
        assert reach(group).known == (endpoint,)
        assert reach("another-group").known == ()
        done = subprocess.run(
            [sys.executable, "-m", "weft", "fleet", "--group", group, "--json"],
            capture_output=True, text=True, timeout=LONG_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert '"pi"' in done.stdout
    finally:
        node.terminate()
        node.wait(timeout=30)
