"""A node does not stay busy with a run that nobody coordinates."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.runtime.node.test_attacks import assigned
from weft.runtime.node import node as nodes
from weft.runtime.node.node import Node
from weft.runtime.wire.crew import Crew
from weft.runtime.wire.session import Endpoints, free_endpoint

GROUP = "test-coordinators"
LONG_S = 60.0


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Node, Crew]]:
    monkeypatch.setattr(nodes, "CLAIM_S", 0.5)
    monkeypatch.setattr(nodes, "KEEP_S", 0.1)
    where, stop = free_endpoint(), threading.Event()
    with (
        Node("v1", Endpoints(listen=(where,)), GROUP) as node,
        Crew(Endpoints(join=(where,)), GROUP) as crew,
    ):
        thread = threading.Thread(target=node.serve, args=(stop,))
        thread.start()
        try:
            crew.wait_for(["v1"], LONG_S)
            yield node, crew
        finally:
            stop.set()
            thread.join(LONG_S)


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_run_that_nobody_claims_is_forgotten(pair: tuple[Node, Crew]) -> None:
    """Seen: one message of a stranger kept an open node busy until it was started again. So did a command
    that measured the fleet, if its process was killed."""
    node, crew = pair
    crew.ask("v1", assigned(), LONG_S)
    assert node.assignment.has("stranger")
    until(lambda: node.assignment.job is None)


def test_a_run_with_a_coordinator_goes_on(pair: tuple[Node, Crew]) -> None:
    node, crew = pair
    crew.claim("stranger")
    crew.ask("v1", assigned(), LONG_S)
    begin = time.monotonic()
    while time.monotonic() < begin + 1.5:
        assert node.assignment.has("stranger")
        assert node.assignment.orphaned_s is None
        time.sleep(0.05)
    crew.disclaim("stranger")
    until(lambda: node.assignment.job is None)
