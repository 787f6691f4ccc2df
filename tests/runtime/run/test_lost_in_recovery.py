"""Devices that are lost before the first minibatch, on the way home, or while the run recovers."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn

import weft
from weft.chaos.fleets import TIERS
from weft.errors import LostDevice, WeftError
from weft.fleet.fleet import Fleet
from weft.graph.optimizers.optimizer import Optimizer
from weft.plans.plan import Shard
from weft.program import instructions as ins
from weft.runtime.run.dispatch import Dispatch
from weft.runtime.run.migrate import Move
from weft.runtime.run.records.copies import Copy
from weft.runtime.run.recovery.go_back import GoBack, Standstill, stop_all
from weft.runtime.run.results import TrainResult
from weft.runtime.run.run import Run
from weft.runtime.run.survivors import Survivors
from weft.runtime.run.workload.one_network import OneNetwork
from weft.runtime.wire import messages as msg

RULE = Optimizer("momentum", 0.02)
X, Y = torch.randn(64, 6, generator=torch.Generator().manual_seed(0)), torch.arange(64) % 3
STEPS = 20


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3)
    )


def pairs(step: int) -> tuple[Tensor, Tensor]:
    rows = torch.arange(step * 8, step * 8 + 8) % 64
    return X[rows], Y[rows]


def alone() -> dict[str, Tensor]:
    module = net().train()
    optimizer = RULE.build(list(module.parameters()))
    for step in range(STEPS):
        x, y = pairs(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return module.state_dict()


def train(out: Path | None = None, **more: Any) -> TrainResult:
    """Each of three devices has a layer; the fourth has none at first."""
    devices = tuple(
        msgspec.structs.replace(d, gflops=(d.gflops or 1.0) / 20) for d in TIERS.devices
    )
    plan = weft.plan(net(), X[:2], Fleet(devices, TIERS.link), strategy="chain", batch=8,
                     optimizer=RULE.name)  # fmt: skip
    layers = len(plan.profile.layers)
    shards = (Shard("pi", (0, 0)), Shard("nuc", (1, 1)), Shard("cloud", (2, layers - 1)))
    return weft.train(
        net(), pairs, nn.CrossEntropyLoss(), plan=msgspec.structs.replace(plan, shards=shards),
        steps=STEPS, optimizer=RULE, local=True, keep_every=5, out=out, **more,
    )  # fmt: skip


def kill(run: Run, device: str) -> None:
    """Returns when the run's crew knows that the device is gone."""
    assert run.settings.machines is not None
    run.settings.machines.kill(device)
    deadline = time.monotonic() + 20.0
    while device in run.crew.present:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def first_time(
    monkeypatch: pytest.MonkeyPatch, owner: type, method: str, act: Callable[..., None]
) -> None:
    """`act` comes just before the first call of a method, with the same arguments."""
    before, calls = getattr(owner, method), []

    def called(*given: Any, **named: Any) -> Any:
        if not calls:
            calls.append(1)
            act(*given)
        return before(*given, **named)

    monkeypatch.setattr(owner, method, called)


def check(result: TrainResult, lost: set[str]) -> None:
    assert {e["device"] for e in result.events if e["kind"] == "device_lost"} == lost
    assert len(result.losses) == STEPS  # none is missing, none is counted twice
    for name, tensor in alone().items():
        assert torch.allclose(result.model.state_dict()[name], tensor, atol=1e-6), name


def test_a_device_is_lost_while_weights_are_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run ended with an error, though nothing had been computed and the others could do it all."""
    first_time(monkeypatch, Dispatch, "ship", lambda run, *_: kill(run, "nuc"))
    check(train(), {"nuc"})


def test_a_second_device_is_lost_in_the_recovery_on_the_way_home(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All minibatches were done, and the run ended with an error."""
    first_time(monkeypatch, OneNetwork, "result", lambda work, run, *_: kill(run, "nuc"))
    first_time(monkeypatch, GoBack, "_move", lambda recovery, run, *_: kill(run, "cloud"))
    check(train(), {"nuc", "cloud"})


def test_when_the_data_is_lost_what_is_known_is_saved_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without --save-every nothing was saved, though the newest copy of all weights was here."""

    def lose_the_data(run: Run, kept: msg.Kept) -> None:
        if run.copies.newest.step >= 10:
            kill(run, "pi")

    taken = Run._take_copy
    monkeypatch.setattr(
        Run, "_take_copy", lambda run, kept: (taken(run, kept), lose_the_data(run, kept))
    )
    with pytest.raises(LostDevice, match=r"pi is gone.*1\d minibatches are saved in .*--resume"):
        train(tmp_path / "run")
    monkeypatch.undo()
    result = train(tmp_path / "run", resume=True)
    assert result.first >= 10
    rows = (tmp_path / "run" / "metrics.jsonl").read_bytes().splitlines()
    assert sorted(msgspec.json.decode(row)["step"] for row in rows) == [*range(STEPS)]
    for name, tensor in alone().items():
        assert torch.allclose(result.model.state_dict()[name], tensor, atol=1e-6), name


class _Asked:
    """A crew whose devices answer what a test says."""

    def __init__(self, present: tuple[str, ...], answers: dict[str, list[Any]]) -> None:
        self.present, self.answers = present, answers

    def ask(self, device: str, command: msg.Command, seconds: float) -> list[Any]:
        answer = self.answers[device].pop(0)
        if isinstance(answer, Exception):
            raise answer
        return [answer]


def standing(answers: dict[str, list[Any]]) -> Any:
    """A run of two devices that update weights."""
    run = Dispatch.__new__(Dispatch)
    names = tuple(answers)
    code = dict.fromkeys(names, (ins.Update((0, 0)),))
    run.__dict__.update(
        crew=_Asked(names, answers), run_id="run", working=names,
        program=type("Program", (), {"code": code}), settings=type("S", (), {"deadline_s": 2.0}),
        outcome=type("Outcome", (), {"done": {}}), cancel=lambda why: None,
    )  # fmt: skip
    return run


def test_where_a_device_stands_that_does_not_answer_is_not_guessed() -> None:
    """Such a device may have made an update more than the others: then weights of two minibatches were put
    together."""
    at = msg.At(7, 7, 7)
    assert stop_all(standing({"a": [at], "b": [at]}), "c", "why", 0).together
    assert not stop_all(standing({"a": [at], "b": [WeftError("busy")]}), "c", "why", 0).together


def test_weights_that_were_handed_out_in_part_are_not_relied_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A device was lost in a change of plan, before another one had its new weights. The next change took
    them for held, and the run ended with `has no weights for`."""
    still = Standstill(resume=9, begun=9, together=True)
    run, change = standing({"a": [], "b": []}), type("Change", (), {"plan": None})
    run.__dict__.update(plan=type("Plan", (), {"standby": ("b",), "version": 4}), devices=("a", "b"),
                        copies=type("Copies", (), {"newest": Copy(5, {}, {})}))  # fmt: skip
    monkeypatch.setattr("weft.runtime.run.recovery.go_back.migrate", lambda *_, **__: Move())
    monkeypatch.setattr("weft.runtime.run.recovery.go_back.go_back", lambda *_: Move(back_to=5))
    run._ready = 4
    assert GoBack()._move(run, change, {"c"}, still).back_to is None
    run._ready = 3
    assert GoBack()._move(run, change, {"c"}, still).back_to == 5


def test_a_device_may_finish_a_long_instruction_before_it_stops() -> None:
    """A run of peers or of a swarm ended if an instruction took over 5 s when another device was lost."""
    busy, at = WeftError("b is still at work"), msg.At(7, 7, 7)
    assert standing({"a": [at], "b": [busy, busy, at]}).stopped(("a", "b")) == {"a": at, "b": at}
    with pytest.raises(LostDevice, match="b does not stop: b is still at work"):
        standing({"b": [busy] * 1000}).stopped(("b",))


def test_a_device_that_comes_back_and_goes_again_stops_nobody() -> None:
    """The others went back to a copy for a device that had no part."""
    run: Any = type("Run", (), {})()
    run.absent, run.notes = {"nuc"}, []
    run.returned = lambda: {"nuc"}

    def enlist(device: str) -> None:
        raise LostDevice(device, "gone again")

    run.enlist, run.note = enlist, lambda *given, **what: run.notes.append(given)
    survivors = Survivors.__new__(Survivors)
    assert survivors.look(run, 30) is None
    assert run.absent == {"nuc"}
    assert run.notes == []
