"""Pictures of decoupled training: convergence, overlap, topologies, computation.

draw_compute(Path("figure5.png"), loads())
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from weft.papers.decoupled.compute import Load
from weft.papers.decoupled.runs import Setting, Summary
from weft.report.canvas import FAINT, INK, sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {
    "dense": "#2f9e63", "central": "#7a3fb8", "4N_5Cls": "#2f6fde", "fedavg": "#f08c2e",
    "plus": "#c2378b",
}  # fmt: skip
GREY = "#7b8794"


def draw_convergence(path: Path, setting: Setting, summaries: Mapping[str, Summary]) -> None:
    """Figure 3: accuracy after each round, of the whole network and of the peers' own networks."""
    with sheet(path, 8, 5, [1]) as panels:
        axes = panels[0]
        for name, summary in summaries.items():
            if len(summary.curve) < 2:
                continue
            colour = COLOURS.get(name, GREY)
            rounds = range(1, len(summary.curve) + 1)
            axes.plot(rounds, summary.curve, color=colour, marker="o", ms=4, lw=2,
                      label=summary.method.label)  # fmt: skip
            if len(summary.local) == len(summary.curve):
                axes.plot(rounds, summary.local, color=colour, ls=":", lw=2,
                          label="its peers, each on its own classes")  # fmt: skip
        axes.set_xlabel("round")
        _accuracy_axis(axes)
        axes.set_title(f"Fig. 3: {setting.title}, accuracy after each round")
        axes.legend(frameon=False, labelcolor=INK, fontsize=9.5)


def draw_bars(
    path: Path, title: str, settings: Sequence[tuple[Setting, Sequence[Summary]]]
) -> None:
    """Figure 4 and topologies: one bar per method, with its deviation over the seeds."""
    with sheet(path, 8, 3.2 * len(settings) + 0.6, [1] * len(settings)) as panels:
        for axes, (setting, rows) in zip(panels, settings, strict=True):
            labels = [row.method.label for row in rows]
            heights = [row.mean for row in rows]
            colours = [COLOURS.get(row.method.name, "#6a97e8") for row in rows]
            axes.barh(labels, heights, xerr=[row.spread for row in rows], color=colours,
                      error_kw={"ecolor": INK, "lw": 1.2})  # fmt: skip
            for at, height in enumerate(heights):
                axes.text(0.6, at, f"{height:.1f}", va="center", color="white", fontsize=10)
            axes.invert_yaxis()
            axes.set_xlabel("test accuracy, percent")
            axes.grid(axis="x", color=FAINT, lw=0.8)
            axes.set_axisbelow(True)
            seeds = rows[0].seeds
            axes.set_title(f"{title}: {setting.title}, {seeds} seed{'s' if seeds > 1 else ''}")


def draw_compute(path: Path, loads: Sequence[Load]) -> None:
    """Figure 5: a peer's computation in an epoch, and that of averaging, against the dense network's."""
    with sheet(path, 8, 4.2, [1]) as panels:
        axes = panels[0]
        labels = [load.label for load in loads]
        peer = [100 / load.per_epoch for load in loads]
        average = [100 * load.aggregation_share / load.per_epoch for load in loads]
        axes.barh(labels, peer, color="#2f6fde", label="training")
        axes.barh(labels, average, left=peer, color="#d64545", label="averaging, once an epoch")
        for at, load in enumerate(loads):
            axes.text(peer[at] + average[at] + 0.6, at, f"{load.per_epoch:.2f}x less", va="center")
        axes.invert_yaxis()
        axes.set_xlabel("percent of the dense network's computation in an epoch")
        axes.set_xlim(0, max(peer) * 1.35)
        axes.set_title("Fig. 5: VGG-16, computation of one peer")
        axes.legend(frameon=False, labelcolor=INK, fontsize=10, loc="lower right")


def _accuracy_axis(axes: Axes) -> None:
    axes.set_ylabel("test accuracy, percent")
    axes.grid(axis="y", color=FAINT, lw=0.8)
    axes.set_axisbelow(True)
