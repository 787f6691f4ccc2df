"""Figures 8 and 9 of CoopAI: completion time over the number of devices and over the bandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from weft.papers.coopai.runs import DEVICES, GFLOPS, MBPS, SWEEP, Method, NetworkRuns
from weft.report.canvas import FAINT, INK, sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GREY = "#7b8794"
# By method: its name, the colour of computing, the colour of transmitting.
LOOKS: dict[Method, tuple[str, str, str]] = {
    "mls": ("MLS", "#2f6fde", "#9dbcf0"),
    "sls": ("SLS", "#e07b1f", "#f7c99a"),
}
BAR = 0.38


def draw_devices(path: Path, runs: Sequence[NetworkRuns]) -> None:
    """Figure 8: computing and transmitting by number of devices, one bar above the other."""
    with sheet(path, 9, 3.3 * len(runs), [1] * len(runs)) as panels:
        for axes, run in zip(panels, runs, strict=True):
            _bars(axes, run)
        _title(panels[0], f"Fig. 8: completion time by devices ({GFLOPS:g} GFLOPS, {MBPS:g} Mbps)")
        panels[-1].set_xlabel("devices")


def draw_bandwidths(path: Path, runs: Sequence[NetworkRuns]) -> None:
    """Figure 9: the best of up to ten devices at every bandwidth."""
    with sheet(path, 9, 2.9 * len(runs), [1] * len(runs)) as panels:
        for axes, run in zip(panels, runs, strict=True):
            for method, (label, colour, _) in LOOKS.items():
                axes.plot(SWEEP, run.by_mbps[method], color=colour, marker="o", lw=2.2, label=label)
            axes.set_xticks(SWEEP)
            _frame(axes, run.title, max(map(max, run.by_mbps.values())))
        _title(panels[0], f"Fig. 9: completion time by bandwidth (up to {DEVICES} devices)")
        panels[-1].set_xlabel("gateway bandwidth, Mbps")


def _bars(axes: Axes, run: NetworkRuns) -> None:
    places = range(1, DEVICES + 1)
    for side, (method, (label, dark, light)) in zip((-0.5, 0.5), LOOKS.items(), strict=True):
        at = [place + side * BAR for place in places]
        compute = [split.compute_s for split in run.splits[method]]
        transfer = [split.transfer_s for split in run.splits[method]]
        axes.bar(at, compute, BAR * 0.92, color=dark, label=f"{label}: computing")
        axes.bar(
            at, transfer, BAR * 0.92, bottom=compute, color=light, label=f"{label}: transmitting"
        )
        best = run.best(method)
        axes.plot(at[best.devices - 1], best.seconds, "v", color=INK, ms=6)
    axes.set_xticks(list(places))
    _frame(axes, run.title, max(max(run.seconds(method)) for method in LOOKS))


def _frame(axes: Axes, name: str, top: float) -> None:
    axes.set_ylim(0, top * 1.12)  # from zero, so that a ratio of heights is a speedup
    axes.set_ylabel(f"{name}, seconds")
    axes.grid(axis="y", color=FAINT, lw=0.8)
    axes.set_axisbelow(True)


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, pad=34)
    axes.legend(
        ncols=4, frameon=False, labelcolor=INK, fontsize=10, loc="lower left",
        bbox_to_anchor=(-0.01, 1.0), borderaxespad=0.2, columnspacing=1.4,
    )  # fmt: skip
