"""The process that coordinates a run may die: its nodes stop, keep their copies, and free themselves.

This file is also the program that is killed: python test_coordinator.py ENDPOINT FOLDER
"""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor, nn

import weft
from weft.errors import WeftError
from weft.fleet.fleet import Device, Fleet, Link
from weft.graph.optimizers.optimizer import Optimizer
from weft.runtime.node import assignment, node
from weft.runtime.node.node import Node
from weft.runtime.run.records.saves import RUN_FILE, RunFile
from weft.runtime.run.results import TrainResult
from weft.runtime.wire import messages as msg
from weft.runtime.wire.session import Endpoints, free_endpoint

pytestmark = pytest.mark.proof
STEPS, PATIENCE_S = 400, 120.0
RULE = Optimizer("momentum", 0.02)
X, Y = torch.randn(64, 6, generator=torch.Generator().manual_seed(0)), torch.arange(64) % 3
FLEET = Fleet(
    (Device("pi", gflops=1.0, data=True), Device("nuc", "edge", gflops=1.0)),
    (Link(("pi", "nuc"), 100.0, 100.0),),
)


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)
    )


def pairs(step: int) -> tuple[Tensor, Tensor]:
    time.sleep(0.004)  # so that the run lasts for some seconds
    rows = torch.arange(step * 8, step * 8 + 8) % 64
    return X[rows], Y[rows]


def train(endpoint: str, out: Path, resume: bool = False) -> TrainResult:
    plan = weft.plan(net(), X[:2], FLEET, strategy="chain", batch=8, options={"devices": "pi,nuc"})
    return weft.train(
        net(), pairs, nn.CrossEntropyLoss(), plan=plan, steps=STEPS, optimizer=RULE, join=endpoint,
        out=out, save_every=100, keep_every=10, resume=resume, deadline=20.0,
    )  # fmt: skip


def alone() -> dict[str, Tensor]:
    module = copy.deepcopy(net()).train()
    optimizer = RULE.build(list(module.parameters()))
    for step in range(STEPS):
        rows = torch.arange(step * 8, step * 8 + 8) % 64
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(X[rows]), Y[rows]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return module.state_dict()


def eventually(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S:g} s: {what}"
        time.sleep(0.01)


@pytest.fixture
def nodes() -> Iterator[tuple[str, dict[str, Node]]]:
    """Two real nodes, in threads of this process: they do not end with the coordinator."""
    endpoint, stop = free_endpoint(), threading.Event()
    first = Node("pi", Endpoints(listen=(endpoint,)))
    second = Node("nuc", Endpoints(join=(endpoint,), listen=("tcp/127.0.0.1:0",)))
    threads = [threading.Thread(target=n.serve, args=(stop,)) for n in (first, second)]
    for thread in threads:
        thread.start()
    try:
        yield endpoint, {"pi": first, "nuc": second}
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        second.close()
        first.close()


@pytest.fixture
def killed(nodes: tuple[str, dict[str, Node]], tmp_path: Path) -> Iterator[Path]:
    """The folder of a run whose coordinator was killed in the middle."""
    out, pi = tmp_path / "run", nodes[1]["pi"]
    process = subprocess.Popen(
        [sys.executable, __file__, nodes[0], str(out)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
    )
    try:
        eventually("a save", lambda: any(out.glob("saves/*")) or process.poll() is not None)
        eventually("newer copies", lambda: _newest_copy(pi) > 120 or process.poll() is not None)
        assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
        yield out
    finally:
        process.kill()
        process.wait()


def _newest_copy(one: Node) -> int:
    worker = one.assignment._worker
    return max((step for step, _, _ in worker.snapshots.all()), default=-1) if worker else -1


def test_a_run_goes_on_where_its_nodes_are_after_its_coordinator_died(
    nodes: tuple[str, dict[str, Node]], killed: Path
) -> None:
    endpoint, both = nodes
    eventually(
        "both have noticed", lambda: all(n.assignment.orphaned_s is not None for n in both.values())
    )
    with pytest.raises(WeftError, match=r"keeps its copy of a run .* try again later"):
        train(endpoint, killed.parent / "somebody-else")
    assert not copies_for("guessed", both["pi"])  # who only knows the run's id gets none
    assert copies_for(run_file(killed).secret, both["pi"])
    result = train(endpoint, killed, resume=True)
    (event,) = (e for e in result.events if e["kind"] == "taken_up")
    assert event["step"] == result.first > 100  # the folder has 100
    for name, tensor in alone().items():
        assert torch.allclose(result.model.state_dict()[name], tensor, atol=1e-6), name
    metrics = [int(row.split(b'"step":')[1].split(b",")[0])
               for row in (killed / "metrics.jsonl").read_bytes().splitlines()]  # fmt: skip
    assert len(metrics) == len(set(metrics))  # no loss is written twice
    assert set(metrics) == set(range(STEPS))  # also those that the dead coordinator had not written


def run_file(folder: Path) -> RunFile:
    return msgspec.json.decode((folder / RUN_FILE).read_bytes(), type=RunFile)


def copies_for(secret: str, one: Node) -> list[int]:
    """The minibatches of the copies that a node hands out to somebody with this secret."""
    job = one.assignment.job
    assert job is not None
    pieces = one.assignment.copies(msg.GetCopies(job.lineage, secret))
    return [piece.step for piece in pieces if piece.step >= 0]


def test_nodes_without_a_coordinator_free_themselves(
    nodes: tuple[str, dict[str, Node]], killed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "KEEP_S", 0.1)
    monkeypatch.setattr(assignment, "KEEP_S", 0.1)
    eventually("both are free", lambda: all(n.assignment.job is None for n in nodes[1].values()))


if __name__ == "__main__":
    train(sys.argv[1], Path(sys.argv[2]))
