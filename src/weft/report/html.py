"""Plans, timelines, comparisons and results as HTML, for notebooks. Pictures are inside; nothing is loaded.

HTML.update(WRITERS)         # weft.api does that: `plan` alone in a cell then shows its table and picture
"""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.terminal_theme import DEFAULT_TERMINAL_THEME

from weft.errors import WeftError
from weft.report.tables import compare_table, plan_table, timeline_table

if TYPE_CHECKING:
    from weft.planning.comparison import Comparison
    from weft.plans.plan import Plan
    from weft.program.timeline import Timeline
    from weft.runtime.run.results import TrainResult

WIDTH = 110
PRE = '<pre style="line-height:1.25;font-size:90%;background:none;color:inherit">{code}</pre>'


def html(renderable: RenderableType) -> str:
    """A table of the terminal as HTML; its letters have the page's own colour."""
    console = Console(file=StringIO(), record=True, width=WIDTH, color_system="standard")
    console.print(renderable)
    return console.export_html(inline_styles=True, code_format=PRE, theme=DEFAULT_TERMINAL_THEME)


def picture(draw: Callable[[Path], None], words: str) -> str:
    """What a function draws, inside the page; nothing if there is nothing to draw."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "picture.svg"
        try:
            draw(path)
        except WeftError:
            return ""
        data = base64.b64encode(path.read_bytes()).decode()
    style = "max-width:100%;background:#fff"
    return f'<img alt="{words}" style="{style}" src="data:image/svg+xml;base64,{data}">'


def plan_html(plan: Plan) -> str:
    """The table and the picture of a plan."""
    from weft.report.pictures import draw_plan  # matplotlib takes half a second

    return html(plan_table(plan)) + picture(lambda path: draw_plan(plan, path), "the plan")


def timeline_html(timeline: Timeline) -> str:
    """What each device did when."""
    from weft.report.pictures import draw_gantt

    drawn = picture(lambda path: draw_gantt(timeline, path), "the timeline")
    return drawn + html(timeline_table(timeline))


def comparison_html(comparison: Comparison) -> str:
    """The table of a comparison, with its advice."""
    return html(compare_table(comparison.rows, comparison.title, comparison.best))


def result_html(result: TrainResult) -> str:
    """A run: its table, and the curve of its loss."""
    from weft.report.curves import draw_curves
    from weft.report.results import train_table

    curves = picture(lambda path: draw_curves(result.history, path), "the loss")
    return html(train_table(result)) + curves


WRITERS: dict[str, Callable[[Any], str]] = {
    "Plan": plan_html,
    "Timeline": timeline_html,
    "Comparison": comparison_html,
    "TrainResult": result_html,
}
