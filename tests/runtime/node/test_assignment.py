"""One run ends and the next begins, while threads of the first one and of the node go on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from weft.graph.optimizers.optimizer import Optimizer
from weft.runtime.node.node import Node
from weft.runtime.node.worker import Worker
from weft.runtime.wire import messages as msg
from weft.runtime.wire.links.channel import Roads
from weft.runtime.wire.seal import RunSecret
from weft.runtime.wire.session import Endpoints, free_endpoint


@pytest.fixture
def node() -> Iterator[Node]:
    with Node("v1", Endpoints(listen=(free_endpoint(),)), "test-assignment") as node:
        yield node


def begin(node: Node, run: str) -> Worker:
    """A run without a single instruction."""
    job = msg.Job(
        run=run, version=0, mode="infer", batch=1, layers=1, code=(), segments=(),
        inputs=("x",), optimizer=Optimizer(), roads=Roads(),
    )  # fmt: skip
    node.assignment.assign(msg.Assign(job, RunSecret().keys("v1")))
    node.assignment.prepare(run)
    assert node.assignment._worker is not None
    return node.assignment._worker


def test_a_thread_of_a_run_that_has_ended_does_not_speak_for_the_next_one(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread in the middle of an instruction, or one that sends a copy over a slow link, may go on after
    the end. What it reported was sealed as the next run's: its progress, its losses, its errors."""
    sent: list[bytes] = []
    monkeypatch.setattr(node, "_seal", lambda data: sent.append(data) or b"")
    first = begin(node, "one")
    first.tell()
    assert len(sent) == 1
    node.assignment.end("the run is over")
    begin(node, "two")
    first.tell()
    first.report(msg.Failed("v1", "the run was cancelled"))
    first.emit(0, 0, {"y": torch.ones(1)})
    assert len(sent) == 1


def test_the_end_of_one_run_does_not_cancel_the_next_one(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node saw that the coordinator of a run was gone. Just then the run ended and another one began:
    the other one was cancelled, and counted as one without a coordinator."""
    begin(node, "one")

    def change_the_run(run: str) -> bool:
        node.assignment.end("the run is over")
        begin(node, "two")
        return True

    monkeypatch.setattr(node._coordinators, "is_gone", change_the_run)
    node._look_for_coordinator()
    assert node.assignment.has("two")
    assert node.assignment.orphaned_s is None
    assert node.fabric.mailbox.cancelled is None
    node.assignment.cancel("the run is over", "one")
    assert node.fabric.mailbox.cancelled is None


def test_minibatches_are_added_to_a_series_whose_thread_has_not_begun(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine a thread may take long to begin. The command for the next minibatches then waited for
    it for five seconds, and was refused."""
    begun, told, finished = threading.Event(), threading.Event(), []
    set_threads = torch.set_num_threads

    def slowly(count: int) -> None:
        if threading.current_thread().name == "worker":
            begun.wait(30.0)
        set_threads(count)

    def report(report: Any, run: str = "") -> None:
        if isinstance(report, msg.Finished):
            finished.append(report.last)
            told.set()

    monkeypatch.setattr(torch, "set_num_threads", slowly)
    monkeypatch.setattr(node.assignment, "_report", report)
    begin(node, "one")
    node.assignment.start(msg.Run("one", 0, 5))
    node.assignment.start(msg.Run("one", 5, 9))
    begun.set()
    assert told.wait(30.0)
    assert finished == [9]
