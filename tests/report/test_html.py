"""What a notebook shows: tables and pictures that need no other file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import weft
from weft.errors import InputError, WeftError
from weft.program.lower.lower import lower
from weft.report.curves import LiveChart, draw_curves
from weft.runtime.run.watch.callbacks import StepDone
from weft.simulate.simulate import simulate

FLEET = Path(__file__).parents[2] / "examples" / "fleets" / "first.toml"


@pytest.fixture(scope="module")
def comparison() -> weft.Comparison:
    model, example = weft.load_model("lenet5")
    fleet = weft.Fleet.load(FLEET)
    return weft.compare(model, example, fleet, strategies=["chain", "all-device"], batch=64)


def shown(value: object) -> str:
    text = value._repr_html_()  # type: ignore[attr-defined]
    assert isinstance(text, str)
    assert not re.search(r"(src|href)=\"(?!data:)", text)
    return text


def test_compare_from_python_is_the_commands_table(comparison: weft.Comparison) -> None:
    assert len(comparison) == 2
    assert comparison.best is not None
    assert comparison.best.strategy == next(iter(comparison)).strategy == "chain"
    assert comparison["all-device"].seconds == pytest.approx(0.292, rel=0.05)
    assert "times as fast" in str(comparison)
    with pytest.raises(KeyError):
        comparison["nobody"]


def test_a_comparison_a_plan_and_a_timeline_are_shown_as_html(comparison: weft.Comparison) -> None:
    assert "all-device" in shown(comparison)
    assert comparison.best is not None
    plan = comparison.best.plan
    assert 'alt="the plan"' in shown(plan)
    assert 'alt="the timeline"' in shown(simulate(lower(plan), steps=2))


def test_curves_are_drawn_and_an_empty_run_has_none(tmp_path: Path) -> None:
    draw_curves({"loss": [(0, 2.0), (1, 1.0)], "lr": [(0, 0.1)], "test/loss": [(1, 1.5)]},
                tmp_path / "c.svg")  # fmt: skip
    assert (tmp_path / "c.svg").stat().st_size > 1000
    with pytest.raises(WeftError, match="nothing to draw"):
        draw_curves({"loss": []}, tmp_path / "d.svg")


def test_a_live_chart_is_drawn_at_the_end_at_the_latest(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("IPython")
    with pytest.raises(InputError):
        LiveChart(every_s=0)
    charts: list[object] = []

    class Handle:
        def update(self, chart: object) -> None:
            charts.append(chart)

    monkeypatch.setattr("IPython.display.display", lambda chart, display_id: Handle())
    chart = LiveChart(every_s=3600.0)
    for step in range(5):
        chart.on_step(StepDone(step, 1.0 / (step + 1), 0.1))
    assert len(charts) == 1  # the first minibatch; the next only after an hour
    chart.close()
    assert len(charts) == 2
