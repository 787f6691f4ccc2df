"""Figures 6 to 11 of HierTrain: seconds of an iteration over the bandwidth between edge and cloud.

draw_cores(Path("figure11.png"), ALEXNET, sweeps)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from weft.papers.hiertrain.measured import RealRun
from weft.papers.hiertrain.runs import BATCH, DEVICE_EDGE_MBPS, Setting, Sweep
from weft.report.canvas import FAINT, INK, sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Look:
    """How a method's curve is drawn."""

    label: str
    colour: str
    marker: str
    style: str = "-"
    width: float = 2.0


LOOKS = {  # so that overlapping curves stay visible: other markers, thick below thin, solid below dashed
    "hiertrain": Look("HierTrain", "#2f6fde", "o", width=2.4),
    "all-edge": Look("All-Edge", "#f08c2e", "s"),
    "all-cloud": Look("All-Cloud", "#2f9e63", "^"),
    "all-device": Look("All-Device", "#7a3fb8", "D", "--"),
    "jointdnn": Look("JointDNN", "#f08c2e", "s", width=4.0),
    "jointdnn+": Look("JointDNN+", "#7a3fb8", "D", "--"),
    "jalad": Look("JALAD", "#c2378b", "v", ":"),
}
CORE_COLOURS = ("#9dbcf0", "#6a97e8", "#2f6fde", "#173f8a")
GREY = "#7b8794"


@dataclass(frozen=True)
class Curve:
    """A method's seconds over the bandwidth."""

    look: Look
    seconds: tuple[float, ...]


def draw_methods(path: Path, figure: str, setting: Setting, sweep: Sweep, *names: str) -> None:
    """Figures 7 to 10: methods against each other."""
    curves = [Curve(LOOKS[name], sweep.seconds[name]) for name in names]
    draw(path, f"{figure}: {setting.title}, one iteration", setting.words(), sweep.mbps, curves)


def draw_cores(path: Path, setting: Setting, sweeps: dict[int, Sweep]) -> None:
    """Figure 11: HierTrain with one to four cores at the edge."""
    curves: list[Curve] = []
    for (cores, sweep), colour in zip(sweeps.items(), CORE_COLOURS, strict=True):
        label = f"{cores} edge core{'s' if cores > 1 else ''}"
        look = Look(label, colour, "o", width=1.4 + 0.9 * (len(sweeps) - cores))
        curves.append(Curve(look, sweep.seconds["hiertrain"]))
    title = f"Fig. 11: {setting.title}, HierTrain by cores of the edge server"
    draw(path, title, setting.words(), sweeps[1].mbps, curves)


def draw_validity(path: Path, setting: Setting, sweep: Sweep, links: Sequence[float]) -> None:
    """Figure 6: the formula's time of each plan beside its time on physical links."""
    curves = [
        Curve(Look("the paper's formula", "#2f6fde", "o"), sweep.seconds["hiertrain"]),
        Curve(Look("the same plan on physical links", "#f08c2e", "s"), tuple(links)),
    ]
    title = f"Fig. 6: {setting.title}, HierTrain's plans: formula and links"
    draw(path, title, setting.words(), sweep.mbps, curves)


def draw_measured(path: Path, setting: Setting, runs: Sequence[RealRun]) -> None:
    """Figure 6 again, with real processes and shaped links."""
    curves = [
        Curve(Look("the paper's formula", "#2f6fde", "o"), tuple(r.formula_s for r in runs)),
        Curve(Look("our simulator", "#7a3fb8", "D", "--"), tuple(r.simulated_s for r in runs)),
        Curve(Look("measured", "#f08c2e", "s"), tuple(r.measured_s for r in runs)),
    ]
    title = f"Fig. 6: {setting.title}, HierTrain's plans really run"
    draw(path, title, f"batch {BATCH}, emulated machines", [r.mbps for r in runs], curves)


def draw(
    path: Path, title: str, under: str, mbps: Sequence[float], curves: Sequence[Curve]
) -> None:
    """One figure of the paper: seconds over bandwidth."""
    with sheet(path, 8, 5, [1]) as panels:
        axes = panels[0]
        for order, curve in enumerate(curves):  # later curves are drawn above earlier ones
            look = curve.look
            axes.plot(
                mbps, curve.seconds, look.style, color=look.colour, marker=look.marker,
                lw=look.width, ms=3.5 + look.width, label=look.label, zorder=3 + order,
            )  # fmt: skip
        label(axes, mbps, max(max(curve.seconds) for curve in curves))
        axes.set_title(title, pad=50)
        note(axes, f"device-edge {DEVICE_EDGE_MBPS:g} Mbps, {under}", 1.085)
        axes.legend(
            ncols=len(curves), frameon=False, labelcolor=INK, fontsize=10, loc="lower left",
            bbox_to_anchor=(-0.01, 1.0), borderaxespad=0.2, columnspacing=1.4,
        )  # fmt: skip


def label(axes: Axes, mbps: Sequence[float], top: float) -> None:
    """Label the axes of such a figure."""
    axes.set_xlabel("edge-cloud bandwidth, Mbps")
    axes.set_ylabel("seconds")
    axes.set_xticks(list(mbps))
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes.set_ylim(0, top * 1.08)  # from zero, so that a ratio of heights is a speedup
    axes.grid(axis="y", color=FAINT, lw=0.8)
    axes.set_axisbelow(True)


def note(axes: Axes, text: str, height: float) -> None:
    """Write a line of text above the axes."""
    axes.text(0, height, text, transform=axes.transAxes, fontsize=9.5, color=GREY, va="bottom")
