"""A fleet with keys on this machine, which tests share: its owner, the node nuc, and members."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import zenoh

from weft.runtime.keys.folder import Folder
from weft.runtime.keys.invite import take_invite
from weft.runtime.keys.owner import invite, new_fleet
from weft.runtime.node.node import Node
from weft.runtime.wire.crew import Crew
from weft.runtime.wire.reach import reach
from weft.runtime.wire.session import Endpoints, free_endpoint

FLEET = "lab"
LONG_S = 60.0


class Lab:
    """A fleet with keys on this machine: its owner, and the node nuc."""

    node: Node
    revoked: Endpoints  # of a device that does not know yet that it is revoked

    def __init__(self, home: Path) -> None:
        self.home = home
        self.folder = new_fleet(FLEET)
        self.address = free_endpoint().removeprefix("tcp/")
        self.member("nuc", self.address)
        self.member("pi")
        self.member("old")
        self.join = (f"tls/{self.address}",)

    def member(self, name: str, address: str = "") -> None:
        take_invite(invite(self.folder, name, address), name)

    def crew(self) -> Crew:
        return Crew(reach(FLEET, join=self.join), FLEET)

    def endpoints(self, name: str) -> Endpoints:
        """As a device that keeps to no rules: it has its certificate, and lets everybody in."""
        return reach(FLEET, name=name, join=self.join, listen=("127.0.0.1:0",))


@contextmanager
def serving(node: Node) -> Iterator[Node]:
    stop = threading.Event()
    with node:
        thread = threading.Thread(target=node.serve, args=(stop,), daemon=True)
        thread.start()
        yield node
        stop.set()
        thread.join(LONG_S)


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def open_config(lab: Lab, name: str) -> Any:
    """A session with a device's certificate and without a rule of its own."""
    keys = Folder(FLEET).keys(name)
    config = zenoh.Config()
    for key, value in (
        ("mode", "peer"),
        ("listen/endpoints", []),
        ("connect/endpoints", list(lab.join)),
        ("scouting/multicast/enabled", False),
        ("transport/link/tls", {
            "root_ca_certificate": keys.authority, "connect_private_key": keys.key,
            "connect_certificate": keys.certificate, "enable_mtls": True,
            "verify_name_on_connect": False,
        }),
    ):  # fmt: skip
        config.insert_json5(key, msgspec.json.encode(value).decode())
    return config
