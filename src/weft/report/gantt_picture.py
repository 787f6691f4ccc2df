"""Draws a timeline: one row per device and channel, time to the right."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from weft.errors import WeftError
from weft.program.timeline import Span, Timeline
from weft.report.canvas import FAINT, INK, sheet
from weft.report.words import seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {
    "load": "#8d99a6",
    "forward": "#2f6fde",
    "loss": "#c2378b",
    "backward": "#f08c2e",
    "update": "#2f9e63",
    "emit": "#c2378b",
    "transfer": "#8a63d2",
}
STEP = "#9aa5b1"
NAMES = ("predicted", "measured")
OTHER_COLOUR = "#5b6770"
STEPS = 6  # shown of a longer run: more would be too thin to see
NARROW = 0.022  # bars below this share of the width carry no number


def draw_gantt(timeline: Timeline, path: str | Path, other: Timeline | None = None) -> None:
    """Draws `timeline`; with `other`, each row shows `timeline` above `other` on the same axis."""
    timelines = [timeline] if other is None else [timeline, other]
    if not all(side.spans for side in timelines):
        raise WeftError("the timeline is empty: there is nothing to draw")
    count = min(STEPS, *(len({span.step for span in side.spans}) for side in timelines))
    sides = [window(side, count) for side in timelines]
    rows = row_names(sides)
    lane = 0.8 / len(sides)
    height = 1.9 + len(rows) * (0.62 if len(sides) == 1 else 0.84)
    with sheet(Path(path), 13, height, [1]) as panels:
        axes = panels[0]
        width = max(side.makespan for side in sides)
        micros = any(span.micro for side in sides for span in side.spans)
        for index, side in enumerate(sides):
            tops = {name: row - 0.4 + index * lane for row, name in enumerate(rows)}
            for span in side.spans:
                draw_span(axes, span, tops[span.where], lane, width, micros)
            for end in side.step_ends:
                axes.axvline(end, color=STEP, lw=0.9, ls=step_style(index, sides), zorder=1)
        label_rows(axes, rows, sides, width)
        legend(axes, sides)
        axes.set_title(title(timelines, count), pad=34)


def window(timeline: Timeline, count: int) -> Timeline:
    """The first steps, from 0 on. Spans that take no time are left out."""
    steps = sorted({span.step for span in timeline.spans})[:count]
    spans = [span for span in timeline.spans if span.step <= steps[-1]]
    zero = min(span.start for span in spans)
    moved = tuple(
        Span(s.where, s.what, s.start - zero, s.end - zero, s.step, s.micro, s.label, s.bytes)
        for s in spans
        if s.end > s.start
    )
    ends = tuple(end - zero for end in sorted(timeline.step_ends)[: len(steps)])
    return Timeline(moved, ends, timeline.source)


def row_names(sides: list[Timeline]) -> list[str]:
    """Devices first, in the order in which they appear, then channels."""
    spans = [span for side in sides for span in side.spans]
    channels = dict.fromkeys(span.where for span in spans if span.what == "transfer")
    devices = dict.fromkeys(span.where for span in spans if span.where not in channels)
    return [*devices, *channels]


def draw_span(axes: Axes, span: Span, top: float, lane: float, width: float, micros: bool) -> None:
    """One span as a bar, with its label if there is room."""
    from matplotlib.colors import to_rgb

    length, middle = span.end - span.start, top + lane / 2
    if span.what == "wait":  # a thin line, because nothing happens
        axes.barh(middle, length, lane * 0.14, span.start, color=FAINT, zorder=2)
        return
    colour = to_rgb(COLOURS.get(span.what, OTHER_COLOUR))
    if span.step % 2:  # every second step is lighter, so that steps can be distinguished
        colour = tuple(0.72 * part + 0.28 for part in colour)  # type: ignore[assignment]
    # A white edge separates neighbours, but would hide a bar that is hardly wider than the edge.
    edge = "white" if length > 0.004 * width else colour
    axes.barh(middle, length, lane * 0.88, span.start, color=colour, ec=edge, lw=0.7, zorder=3)
    if length >= NARROW * width:
        text = f"{span.step}.{span.micro}" if micros else f"{span.step}"
        axes.text(
            span.start + length / 2, middle, text,
            ha="center", va="center", fontsize=8.5, color="white", zorder=4,
        )  # fmt: skip


def step_style(index: int, sides: list[Timeline]) -> str:
    """The line style of a timeline: solid, but dashed for the upper one of two."""
    return "--" if len(sides) > 1 and index == 0 else "-"


def label_rows(axes: Axes, rows: list[str], sides: list[Timeline], width: float) -> None:
    """The names of devices and channels at the left."""
    axes.set_yticks(range(len(rows)), [name.replace(">", " → ") for name in rows])
    axes.set_ylim(len(rows) - 0.45, -0.55)
    axes.set_xlim(0, width)
    if width < 1:
        axes.xaxis.set_major_formatter(lambda x, _: f"{x * 1e3:g}")
    unit = "milliseconds" if width < 1 else "seconds"
    axes.set_xlabel(f"{unit} (in the bars: step, or step.micro-batch)")
    for row in range(1, len(rows)):
        axes.axhline(row - 0.5, color=FAINT, lw=0.8, zorder=0)
    if len(sides) == 2:
        for row in range(len(rows)):
            for offset, name in zip((-0.2, 0.2), NAMES, strict=True):
                axes.annotate(
                    name, (1.005, row + offset), xycoords=("axes fraction", "data"),
                    va="center", fontsize=8.5, color="#7b8794",
                )  # fmt: skip


def legend(axes: Axes, sides: list[Timeline]) -> None:
    """What the colours mean."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    seen = {span.what for side in sides for span in side.spans}
    known = [kind for kind in COLOURS if kind in seen]
    other = sorted(seen - {*COLOURS, "wait"})
    handles: list[Patch | Line2D] = [Patch(color=COLOURS[kind], label=kind) for kind in known]
    handles += [Patch(color=OTHER_COLOUR, label=kind) for kind in other]
    if "wait" in seen:
        handles.append(Line2D([], [], color=FAINT, lw=3, label="wait"))
    for index in range(len(sides)):
        name = "step ends" if len(sides) == 1 else f"step ends, {NAMES[index]}"
        style = step_style(index, sides)
        handles.append(Line2D([], [], color=STEP, lw=1, ls=style, label=name))
    axes.legend(
        handles=handles, ncols=len(handles), frameon=False, labelcolor=INK, fontsize=10,
        loc="lower left", bbox_to_anchor=(0.0, 1.0), borderaxespad=0.2, handlelength=1.2,
        columnspacing=1.2,
    )  # fmt: skip


def title(timelines: list[Timeline], shown: int) -> str:
    """The step times that the picture shows."""
    if len(timelines) == 1:
        text = f"{timelines[0].source.capitalize()}: {seconds(timelines[0].step_s)} a step"
    else:
        text = ", ".join(f"{seconds(t.step_s)} {n}" for n, t in zip(NAMES, timelines, strict=True))
        text = f"A step: {text}"
    count = max(len(side.step_ends) for side in timelines)
    return f"{text} (the first {shown} of {count} steps)" if count > shown else text
