"""Copies of a run whose coordinator died are taken from devices of the run alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import save
from torch import Tensor, nn

from weft.fleet.fleet import Device, Fleet
from weft.graph.capture.module import capture, capture_loss, state_of
from weft.graph.network import Graph
from weft.plans.derive import derive_profile
from weft.plans.plan import Plan, Shard
from weft.runtime.run.records.orphans import fleet_of, newest_copy
from weft.runtime.run.records.plan_changes import CHANGES, PlanChange, PlanRecord
from weft.runtime.run.records.record import Folder
from weft.runtime.wire import messages as msg
from weft.runtime.wire import topics
from weft.runtime.wire.crew import Crew
from weft.runtime.wire.session import Endpoints, free_endpoint, open_session

GROUP = "test-orphans"
LONG_S = 60.0


@pytest.fixture(scope="module")
def net() -> tuple[Graph, dict[str, Tensor]]:
    module = nn.Linear(2, 2)
    graph = capture(module, torch.zeros(2, 2))
    return capture_loss(graph, nn.CrossEntropyLoss(), torch.zeros(2, dtype=torch.long)), state_of(
        module
    )


@contextmanager
def answering(
    where: str, name: str, graph: Graph, state: dict[str, Tensor], step: int
) -> Iterator[None]:
    """Somebody who answers for `name` that it has a copy of minibatch `step`."""
    segment = graph.segment(0, len(graph.layers) - 1, with_loss=True)
    piece = msg.Kept(name, 0, step, save(state), segments=(segment,))

    def answer(query: Any) -> None:
        with query:
            query.reply(query.key_expr, msg.pack(piece))

    with open_session(Endpoints(join=(where,))) as session:
        kept = (
            session.declare_queryable(topics.control(GROUP, name), answer, complete=True),
            session.liveliness().declare_token(topics.alive(GROUP, name, "1")),
        )
        yield
        del kept


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + LONG_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_member_without_a_part_in_the_run_does_not_give_it_its_weights(
    net: tuple[Graph, dict[str, Tensor]],
) -> None:
    """Seen: every node that was there was asked, and the newest copy counted, whoever had made it up."""
    graph, state = net
    where, question = free_endpoint(), msg.GetCopies("line", "secret")
    own = {name: torch.full_like(tensor, 1.0) for name, tensor in state.items()}
    false = {name: torch.full_like(tensor, 9.0) for name, tensor in state.items()}
    with (
        Crew(Endpoints(listen=(where,)), GROUP) as crew,
        answering(where, "pi", graph, own, 5),
        answering(where, "bad", graph, false, 1000),
    ):
        until(lambda: crew.present == ("bad", "pi"))
        until(lambda: newest_copy(crew, question, graph, state, ("pi",)) is not None)
        copy = newest_copy(crew, question, graph, state, ("pi",))
        assert copy is not None
        assert copy.step == 6
        assert all(torch.equal(tensor, own[name]) for name, tensor in copy.state.items())


def test_a_folder_tells_the_fleets_of_its_plans(
    tmp_path: Path, net: tuple[Graph, dict[str, Tensor]]
) -> None:
    def plan(*names: str) -> Plan:
        fleet = Fleet(tuple(Device(n, gflops=1.0, data=n == "pi") for n in names), ())
        last = len(net[0].layers) - 1
        profile = derive_profile(net[0], fleet)
        shards = (Shard("pi", (0, last)),)
        return Plan(
            strategy="by hand", model="test", batch=4, mode="train", shards=shards, source="pi",
            fleet=fleet, profile=profile,
        )  # fmt: skip

    assert fleet_of(tmp_path) == frozenset()
    folder = Folder(tmp_path)
    folder.save_plan(plan("pi"))
    assert fleet_of(tmp_path) == {"pi"}
    record = PlanRecord(plan("pi"), (PlanChange(3, plan("pi", "nuc")),))
    folder.write(CHANGES, msgspec.json.encode(record))
    assert fleet_of(tmp_path) == {"pi", "nuc"}
    (tmp_path / "plan.json").write_bytes(b"junk")
    assert fleet_of(tmp_path) == {"pi", "nuc"}
