"""The threads of a prober go on after an error."""

from __future__ import annotations

import queue
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from weft.runtime.node.probing.prober import Prober
from weft.runtime.wire import messages as msg


@pytest.fixture
def fabric() -> Any:
    return SimpleNamespace(probes=queue.SimpleQueue(), name="pi", run="run", begun=1)


def test_a_look_at_the_load_that_fails_does_not_make_a_node_deaf_to_probes(
    fabric: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, again = [0], threading.Event()

    def load(self: Prober) -> float:
        looks[0] += 1
        if looks[0] > 1:
            again.set()
        raise OSError("the system does not say")

    monkeypatch.setattr(Prober, "load", load)
    prober = Prober(fabric, lambda report: None, lambda notice: None)
    assert again.wait(10.0)
    prober.close()


def test_a_probe_that_fails_is_reported_whatever_the_error_was(
    fabric: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asked waited for its result, and for those of the servers behind it."""
    reports: queue.SimpleQueue[msg.Report] = queue.SimpleQueue()
    prober = Prober(fabric, reports.put, lambda notice: None)

    def fail(*_: Any) -> Any:
        raise RuntimeError("the session was closed")

    monkeypatch.setattr(prober, "_exchange", fail)
    exchange = msg.Exchange(1000, 1.0, 1.0, 1.0)
    prober.ask(msg.ProbeServers("run", {"nuc": exchange, "cloud": exchange}))
    for server in ("nuc", "cloud"):
        report = reports.get(timeout=10.0)
        assert isinstance(report, msg.ServerProbed)
        assert (report.server, report.reached) == (server, False)
        assert report.why == "the session was closed"
    prober.close()
