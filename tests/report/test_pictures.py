"""Pictures are drawn without a display, for every plan and timeline, and say what they show."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from weft.errors import InputError, WeftError
from weft.plans.plan import Plan, Shard
from weft.plans.profile import DeviceTimes, LayerCost
from weft.program.timeline import Timeline
from weft.report.pictures import draw_gantt, draw_plan
from weft.report.plan_picture import Flow, flows


def words(path: Path) -> str:
    """The text of an SVG picture, which the canvas writes as text."""
    return path.read_text(encoding="utf-8")


def test_a_plan_picture_names_devices_layers_and_bytes(plan: Plan, tmp_path: Path) -> None:
    draw_plan(plan, tmp_path / "plan.svg")
    text = words(tmp_path / "plan.svg")
    for word in ("pi", "nuc", "cloud", "conv1", "fc2", "11.1 MB", "chain: alexnet", "3.21 s"):
        assert word in text


def test_arrows_carry_the_bytes_of_all_micro_batches_both_ways(plan: Plan) -> None:
    there = 128 * 86528
    assert flows(plan) == [
        Flow("pi", "nuc", 2, there, there),
        Flow("nuc", "cloud", 3, 128 * 43264, 128 * 43264),
    ]


def test_an_inference_brings_its_answer_home(plan: Plan, tmp_path: Path) -> None:
    asked = msgspec.structs.replace(
        plan, mode="infer", batch=1, micro_batches=1, source="cloud", predicted=None,
        shards=(Shard("pi", (0, 2)), Shard("nuc", (3, 4))),
    )  # fmt: skip
    assert flows(asked) == [
        Flow("cloud", "pi", 0, 49152),
        Flow("pi", "nuc", 3, 43264),
        Flow("nuc", "cloud", 5, 40),
    ]
    draw_plan(asked, tmp_path / "plan.png")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_a_deep_network_shows_numbers_instead_of_names(plan: Plan, tmp_path: Path) -> None:
    count = 60
    layers = tuple(LayerCost(f"layer{n}", 4, 4) for n in range(count))
    times = DeviceTimes((0.1,) * count, (0.1,) * count, (0.1,) * count)
    profile = msgspec.structs.replace(plan.profile, layers=layers, devices={"pi": times})
    deep = msgspec.structs.replace(plan, profile=profile, shards=(Shard("pi", (0, count - 1)),))
    draw_plan(deep, tmp_path / "plan.svg")
    assert "layer7" not in words(tmp_path / "plan.svg")
    assert "layers, by number" in words(tmp_path / "plan.svg")


def test_a_gantt_picture_has_a_row_for_each_device_and_channel(
    predicted: Timeline, tmp_path: Path
) -> None:
    draw_gantt(predicted, tmp_path / "gantt.svg")
    text = words(tmp_path / "gantt.svg")
    for word in ("pi", "nuc", "pi → nuc", "nuc → pi", "forward", "transfer", "wait", "420 ms"):
        assert word in text
    assert "measured" not in text


def test_predicted_is_drawn_above_measured_for_as_many_steps_as_both_have(
    predicted: Timeline, measured: Timeline, tmp_path: Path
) -> None:
    draw_gantt(predicted, tmp_path / "gantt.svg", measured)
    text = words(tmp_path / "gantt.svg")
    assert "A step: 420 ms predicted, 441 ms measured (the first 4 of 10 steps)" in text


def test_an_empty_timeline_cannot_be_drawn(tmp_path: Path) -> None:
    with pytest.raises(WeftError, match="empty"):
        draw_gantt(Timeline((), ()), tmp_path / "gantt.png")


@pytest.mark.parametrize(
    ("name", "message"),
    [("x.nothing", r"'\.nothing' is not one of .*png"), ("no/x.png", "No such")],
)
def test_a_picture_that_cannot_be_written_is_an_error_that_says_why(
    plan: Plan, tmp_path: Path, name: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        draw_plan(plan, tmp_path / name)


def test_matplotlib_is_not_imported_before_a_picture_is_drawn() -> None:
    code = (
        "import sys, weft.report.pictures, weft.report.tables; print('matplotlib' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert found.stdout.strip() == "False", found.stderr
