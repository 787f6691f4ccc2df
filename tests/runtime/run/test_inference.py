"""`weft infer` when a device is lost: the others answer, or the command stops, as it was asked to."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from weft.errors import LostDevice
from weft.fleet.fleet import Fleet
from weft.report.results import infer_document
from weft.runtime.emulate.local import LocalFleet
from weft.runtime.run.inference import infer
from weft.runtime.run.serving.answering import Answering


@pytest.fixture
def killer(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names in this list are killed when the first requests are asked for."""
    doomed: list[str] = []
    ask = Answering.ask_to_run

    def kill_and_ask(run: Answering, *args: Any) -> None:
        fleets = [thing for thing in gc.get_objects() if type(thing) is LocalFleet]
        fleet = next(fleet for fleet in fleets if fleet.group == run.crew.group)
        while doomed:
            fleet.kill(doomed.pop())
        ask(run, *args)

    monkeypatch.setattr(Answering, "ask_to_run", kill_and_ask)
    return doomed


def test_the_others_answer_when_a_device_is_lost(triangle: Fleet, killer: list[str]) -> None:
    killer.append("nuc")
    result = infer("mlp", triangle, "chain", repeat=40, local=True, deadline=20.0,
                   options={"devices": "pi,nuc"})  # fmt: skip
    assert result.max_difference < 1e-5
    assert "nuc" not in result.plan.devices
    document = infer_document(result)
    assert [event["kind"] for event in document["events"]] == ["device_lost", "recovered"]
    assert document["events"][0]["device"] == "nuc"


def test_with_stop_a_lost_device_ends_it_with_its_name(triangle: Fleet, killer: list[str]) -> None:
    killer.append("nuc")
    with pytest.raises(LostDevice, match="nuc"):
        infer("mlp", triangle, "chain", repeat=40, local=True, deadline=20.0,
              options={"devices": "pi,nuc"}, on_loss="stop")  # fmt: skip
