"""Small rules of recovery that a run once broke."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from weft.adapt.adaptive import _known
from weft.chaos.fleets import TIERS
from weft.errors import LostDevice
from weft.runtime.run.recovery.clone import Clone
from weft.runtime.run.recovery.protocol import Returned
from weft.runtime.run.run import MOST_FAULTS, Run


def test_a_swarm_waits_for_a_silent_device_only_without_slots_of_time() -> None:
    def plan(slot_ms: float) -> Any:
        return SimpleNamespace(swarm=SimpleNamespace(slot_ms=slot_ms))

    assert Clone().waits(plan(0))
    assert not Clone().waits(plan(20))


def test_a_plan_knows_its_devices_though_one_has_just_gone() -> None:
    """The run ended with `the fleet has no device 'nuc'` once."""
    run: Any = SimpleNamespace(fleet=TIERS, devices=("pi", "nuc"))
    assert set(_known(run, frozenset({"pi", "box"})).names) == {"pi", "nuc", "box"}


def run_with(errors: list[LostDevice]) -> Any:
    """A run whose series raise these, one after the other, and then end. No minibatch is done meanwhile."""
    left = list(errors)

    def series(begins: dict[str, int], last: int, on_progress: object) -> dict[str, int]:
        if left:
            raise left.pop(0)
        return dict.fromkeys(begins, last)

    return SimpleNamespace(
        workload=SimpleNamespace(losses="mean"), devices=("a", "b"), working=("a", "b"), fault=None,
        advanced=False, _began=True, extended=lambda last: last, _series=series,
        recover=lambda fault, last: {"a": 0, "b": 0},
    )  # fmt: skip


def test_devices_that_come_back_do_not_end_a_run() -> None:
    """A run of peers ended with `desk came back`: three were lost and three came back, and the machine was
    so busy that no minibatch was done between. Only losses count."""
    back = [LostDevice("a", "lost"), *(Returned("a", "back") for _ in range(2 * MOST_FAULTS))]
    assert Run.steps(run_with(back), 0, 5).done == {"a": -1, "b": -1}
    with pytest.raises(LostDevice, match="lost"):
        Run.steps(run_with([LostDevice("a", "lost")] * (MOST_FAULTS + 1)), 0, 5)
