"""Attacks that fill a node's memory, by whoever can put messages at it: a member of the fleet, or a stranger
at an open node. Each test file has its own attacker; what the attacker does stands here once."""

from __future__ import annotations

from typing import Any, Protocol

MB = 1 << 20


class Attacker(Protocol):
    """Somebody who can send messages to the node."""

    def put(self, number: int, size: int = 0, payload: bytes = b"", **fields: Any) -> None:
        """A tensor's header, which says `size` bytes, with other fields where they are given."""

    def ask_echo(self, data: bytes) -> None:
        """A question that any device may ask; nobody waits for its answer."""


def long_headers(bad: Attacker) -> None:
    for i in range(2000):
        bad.put(i, kind="k" * 60_000)


def data_without_a_run(bad: Attacker) -> None:
    """The run of an idle node is ""."""
    for i in range(200):
        bad.put(i, MB, bytes(MB), run="")


def data_of_another_run(bad: Attacker) -> None:
    for i in range(200):
        bad.put(i, MB, bytes(MB), run="other")


def late_probes(bad: Attacker) -> None:
    for i in range(5000):
        bad.put(i, 40_000, bytes(40_000), kind="probe", due=9e9)
        bad.put(i, 40_000, bytes(40_000), kind="probed")


def endless_messages(bad: Attacker) -> None:
    """The first of 1024 pieces, of ever new messages."""
    for i in range(20_000):
        bad.put(i, 1 << 29, bytes(2048), pieces=1024)


def senders_without_end(bad: Attacker) -> None:
    """Seen: each new name was remembered for good, and searched for one by one."""
    for i in range(30_000):
        bad.put(0, source=f"{i}" + "s" * 50)


def relays_to_nobody(bad: Attacker) -> None:
    for i in range(500):
        bad.put(i, 100_000, bytes(100_000), dest=f"d{i}")


def large_echoes(bad: Attacker) -> None:
    for _ in range(100):
        bad.ask_echo(bytes(2 * MB))


FLOODS = (
    long_headers, data_without_a_run, data_of_another_run, late_probes, endless_messages,
    senders_without_end, relays_to_nobody, large_echoes,
)  # fmt: skip
