"""Small rules of recovery that a run once broke."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from weft.adapt.adaptive import _known
from weft.chaos.fleets import TIERS
from weft.runtime.run.recovery.clone import Clone


def test_a_swarm_waits_for_a_silent_device_only_without_slots_of_time() -> None:
    def plan(slot_ms: float) -> Any:
        return SimpleNamespace(swarm=SimpleNamespace(slot_ms=slot_ms))

    assert Clone().waits(plan(0))
    assert not Clone().waits(plan(20))


def test_a_plan_knows_its_devices_though_one_has_just_gone() -> None:
    """The run ended with `the fleet has no device 'nuc'` once."""
    run: Any = SimpleNamespace(fleet=TIERS, devices=("pi", "nuc"))
    assert set(_known(run, frozenset({"pi", "box"})).names) == {"pi", "nuc", "box"}
