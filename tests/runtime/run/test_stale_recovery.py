"""Several minibatches in flight, and a device is lost: the run goes back and ends with the weights of an
undisturbed run, bit for bit. The stashed versions of weights belong to the copies."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from weft import zoo
from weft.errors import LostDevice
from weft.graph.optimizers.optimizer import Optimizer
from weft.plans.plan import Plan, Shard
from weft.runtime.emulate.local import LocalFleet
from weft.runtime.run.advice import Adviser, Change
from weft.runtime.run.jobs import Settings
from weft.runtime.run.outcome import Outcome
from weft.runtime.run.recovery.go_back import GoBack
from weft.runtime.run.run import Run

Subject = Any
STEPS, EVERY = 24, 4
RULE = Optimizer("adam", 0.002)


class Spare(Adviser):
    """Gives the lost device's layers to another one."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def also(self, plan: Plan) -> tuple[str, ...]:
        return plan.fleet.names

    def lost(self, run: Run, step: int, device: str) -> Change:
        return Change(self.plan, f"{device} is gone")


@pytest.fixture(scope="module")
def subject(make_subject: Callable[..., Subject]) -> Subject:
    torch.manual_seed(0)
    return make_subject(zoo.build("resnet8", (1, 12, 12)), (1, 12, 12), 4)  # it has batch norm


def weights(
    nodes: LocalFleet, subject: Subject, plan: Plan, after: Plan | None
) -> tuple[dict[str, Tensor], dict[str, Tensor], list[dict[str, Any]]]:
    """Of a run that loses nuc after the first whole copy, and goes on with the plan `after`."""
    settings = Settings(shaping="fabric", scratch=nodes.scratch, same_clock=True)
    settings = replace(settings, optimizer=RULE, go_back_every=EVERY if after else 0)
    recovery = GoBack() if after else None
    adviser = Spare(after) if after else None
    lost: list[int] = []

    with Run(nodes.crew, plan, subject.graph, copy.deepcopy(subject.state()), settings,
             subject.feed, recovery=recovery, adviser=adviser) as run:  # fmt: skip
        run.prepare()

        def lose(outcome: Outcome) -> None:
            if after and not lost and run.copies.newest.step > 0:
                lost.append(run.copies.newest.step)
                raise LostDevice("nuc", "nuc is taken away by the test")

        run.steps(0, STEPS, lose)
        state, memory = run.collect()
    assert bool(lost) == bool(after)
    return state, memory, list(run.events)


@pytest.mark.parametrize("in_flight", [2, pytest.param(4, marks=pytest.mark.proof)])
@pytest.mark.parametrize("home", [False, True], ids=["loss at the worker", "loss at home"])
@pytest.mark.parametrize("standby", [False, True], ids=["alone", "standby"])
def test_going_back_with_several_in_flight_is_exact(
    in_flight: int, home: bool, standby: bool, subject: Subject, nodes: LocalFleet
) -> None:
    """The stashed weights were lost once: minibatches in flight met newer weights the second time. With a
    standby some updates were made twice."""
    last = subject.last - home
    ends = [("pi", subject.last, subject.last)] if home else []

    def plan(worker: str, spare: str = "") -> Plan:
        also = (Shard(spare, (2, last)),) if spare else ()
        made: Plan = subject.plan(("pi", 0, 1), (worker, 2, last), *ends, stale=in_flight - 1,
                                  standby=also)  # fmt: skip
        return made

    first = plan("nuc", "cloud" if standby else "")
    expected, memory, _ = weights(nodes, subject, first, None)
    found, kept, events = weights(nodes, subject, first, plan("cloud"))
    assert [event["kind"] for event in events] == ["device_lost", "recovered"]
    assert found.keys() == expected.keys()
    assert kept.keys() == memory.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
    for name, tensor in memory.items():
        assert torch.equal(kept[name], tensor), name
