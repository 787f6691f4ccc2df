"""The examples run as they stand."""

from __future__ import annotations

import os
import runpy
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_an_own_loader_with_a_schedule_and_clipping_learns() -> None:
    losses = runpy.run_path(str(EXAMPLES / "own_loader.py"))["main"](steps=24)
    assert len(losses) == 24
    assert losses[-1] < losses[0] / 2


@pytest.mark.proof
def test_the_notebook_runs_and_shows_plans_charts_and_results(tmp_path: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook: Any = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
    nbformat.validate(notebook)
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
        os.environ.setdefault(name, str(tmp_path))
    client = nbclient.NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": str(EXAMPLES)}}
    )
    updates = []
    hook = client.process_message

    def seen(message: Any, cell: Any, index: int) -> Any:
        updates.append(message["msg_type"])
        return hook(message, cell, index)

    client.process_message = seen
    client.execute()
    assert updates.count("update_display_data") >= 3  # the chart grew while it trained
    shown = [
        "".join(
            str(output.get("data", {}).get("text/html", "")) for output in cell.get("outputs", ())
        )
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]
    comparison, plan, chart, result, timeline = shown[1:]
    assert "times as fast" in comparison
    assert "data:image/svg+xml" in plan
    assert 'alt="the loss"' in chart
    assert "measured / predicted" in result
    assert 'alt="the timeline"' in timeline


@pytest.mark.proof
@pytest.mark.parametrize(("name", "steps"), [("text_classification", 60), ("segmentation", 30)])
def test_an_example_learns(name: str, steps: int) -> None:
    losses = runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](steps=steps)
    assert len(losses) == steps
    assert losses[-1] < losses[0] * 0.7
