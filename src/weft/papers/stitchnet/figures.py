"""Figures 7 to 18 of StitchNet, and stitchnet+ beside Mix-Mapped.

draw_figures(Path("runs/reproduce/stitchnet"), study, prr, overhead(6))
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from weft.papers.stitchnet.study import LOSSY, Study
from weft.papers.stitchnet.tables import Overhead
from weft.report.canvas import FAINT, INK, sheet
from weft.strategies.stitchnet.topology import Figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, ORANGE, GREEN, PURPLE, PINK = "#2f6fde", "#f08c2e", "#2f9e63", "#7a3fb8", "#c2378b"
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, PINK)
LABELS = {
    "mix": "Mix-Mapped", "random": "Random", "vertical": "Vertical", "horizontal": "Horizontal",
    "average": "2.5 layers", "random mapping": "random mapping", "reverse mapping": "reverse mapping",
    "random coordinator": "random coordinator", "own": "own values", "none": "no partial update",
    "coordinator none": "coordinator, no partial update", "direct": "Direct",
    "coordinator": "Coordinator", "worse mix": "Mix-Mapped", "worse random": "Random",
    "plus": "stitchnet+",
}  # fmt: skip


def draw_figures(out: Path, study: Study, prr: Sequence[Figures], costs: Overhead) -> list[Path]:
    """Draw the paper's figures with our numbers; returns their files."""
    draw_partitions(out / "figure7.png", study)
    draw_exponents(out / "figure8.png", study)
    draw_learning(out / "figure9.png", "Fig. 9: partitions", study, ("mix", "random", "vertical"))
    draw_learning(
        out / "figure10.png", "Fig. 10: which devices are horizontal", study,
        ("mix", "random mapping", "reverse mapping"), loss=False,
    )  # fmt: skip
    draw_learning(
        out / "figure11.png", "Fig. 11: the coordinator elected or drawn", study,
        ("mix", "random coordinator"), loss=False,
    )  # fmt: skip
    draw_learning(
        out / "figure12.png", "Fig. 12: partial updates", study,
        ("mix", "own", "none", "coordinator", "coordinator none"), loss=False,
        names={"mix": "zeros for lost values", "coordinator": "coordinator, zeros"},
    )  # fmt: skip
    draw_prr(out / "figure13.png", prr)
    draw_learning(
        out / "figure14.png", "Fig. 14: paths", study, ("mix", "coordinator", "direct"),
        names={"mix": "Subpath"},
    )  # fmt: skip
    draw_worse(out / "figure15.png", study)
    draw_failures(out / "figure16.png", study)
    draw_overhead(out / "figure17.png", study, costs)
    draw_sets(out / "figure18.png", study)
    draw_plus(out / "stitchnet_plus.png", study)
    return [*(out / f"figure{n}.png" for n in range(7, 19)), out / "stitchnet_plus.png"]


def draw_partitions(path: Path, study: Study) -> None:
    """Figure 7: accuracy and packets by mapping."""
    names = ("vertical", "average", "mix", "horizontal", "random")
    with sheet(path, 8, 7, [1, 1]) as (top, below):
        bars(top, [LABELS[n] for n in names], [study.mean(n) for n in names],
             [study.deviation(n) for n in names])  # fmt: skip
        bars(below, [LABELS[n] for n in names], [study.packets(n) for n in names], colour=ORANGE)
        titled(top, "Fig. 7: accuracy by partition", "test accuracy, %")
        titled(below, "", "packets a batch")


def draw_exponents(path: Path, study: Study) -> None:
    """Figure 8: accuracy by path-loss exponent."""
    exponents = study.setting.exponents
    with sheet(path, 8, 8, [1, 1]) as panels:
        for axes, epoch in zip(panels, (0, -1), strict=True):
            for name, colour in (("mix", BLUE), ("random", ORANGE)):
                values = [study.curve(study.at(name, e))[epoch] for e in exponents]
                axes.plot(exponents, values, "-o", color=colour, label=LABELS[name])
            axes.set_xlabel("path-loss exponent")
            when = "the first epoch" if epoch == 0 else f"epoch {study.setting.epochs}"
            titled(axes, f"Fig. 8: accuracy after {when}", "test accuracy, %")
            legend(axes)


def draw_learning(
    path: Path, title: str, study: Study, shown: Sequence[str], *, loss: bool = True,
    names: dict[str, str] | None = None,
) -> None:  # fmt: skip
    """Accuracy and loss by epoch."""
    labels = {**LABELS, **(names or {})}
    with sheet(path, 8, 8 if loss else 5, [1, 1] if loss else [1]) as panels:
        for axes, what in zip(panels, ("accuracies", "losses"), strict=False):
            for name, colour in zip(shown, COLOURS, strict=False):
                curve = study.curve(name, what)
                axes.plot(range(1, len(curve) + 1), curve, color=colour, lw=2, label=labels[name])
            axes.set_xlabel("epoch")
            first = what == "accuracies"
            titled(axes, title if first else "", "test accuracy, %" if first else "training loss")
            legend(axes)


def draw_prr(path: Path, prr: Sequence[Figures]) -> None:
    """How many packets arrive, by path."""
    with sheet(path, 8, 5, [1]) as (axes,):
        names = ("all_links", "direct", "coordinator_high", "subpath", "coordinator_low")
        labels = ["all links", "direct", "coordinator\n(exponent 4.0)", "subpath",
                  "coordinator\n(exponent 3.5)"]  # fmt: skip
        values = [sum(getattr(f, name) for f in prr) / len(prr) for name in names]
        bars(axes, labels, values)
        titled(axes, "Fig. 13: mean packet reception ratio", "delivered")


def draw_worse(path: Path, study: Study) -> None:
    """Figure 15: accuracy when the links become worse."""
    with sheet(path, 8, 5, [1]) as (axes,):
        for name, colour in (("worse mix", BLUE), ("worse random", ORANGE)):
            for index, one in enumerate(study.of(name)):
                label = LABELS[name] if index == 0 else None
                axes.plot(
                    one.steps, [100 * a for a in one.accuracies], color=colour, lw=1.5, label=label
                )
                if one.changed_at is not None:
                    axes.axvline(one.changed_at, color=colour, lw=0.8, ls=":")
        axes.set_xlabel("step (dotted: the exponent goes from 3.5 to 3.9)")
        titled(axes, "Fig. 15: the radio gets worse at 75%, by topology", "test accuracy, %")
        legend(axes)


def draw_failures(path: Path, study: Study) -> None:
    """Figure 16: accuracy by number of failed devices."""
    with sheet(path, 8, 9, [1, 1]) as panels:
        for axes, first in zip(panels, ("worst", "best"), strict=True):
            for name, colour in (("mix", BLUE), ("random", ORANGE)):
                for rule, style in (("cloned", "-o"), ("lost", ":")):
                    curve = study.after_failures(name, f"{rule} {first}")
                    axes.plot(curve, style, color=colour, label=f"{LABELS[name]}, {rule}")
            axes.set_xlabel("devices lost")
            titled(axes, f"Fig. 16: the {first} connected devices fail first", "test accuracy, %")
            legend(axes)


def draw_overhead(path: Path, study: Study, costs: Overhead) -> None:
    """Packets, times, accuracy and memory by the number of devices."""
    with sheet(path, 8, 12, [1, 1, 1]) as (top, middle, below):
        top.plot(costs.devices, costs.packets, "-o", color=BLUE)
        titled(top, "Fig. 17: packets a batch by number of devices", "packets")
        middle.plot(
            costs.devices, costs.compute_ms, "-o", color=BLUE, label="computing here, a device"
        )
        middle.plot(
            costs.devices, costs.network_ms, "-s", color=ORANGE, label="network, 100 ms a slot"
        )
        middle.set_yscale("log")
        titled(middle, "", "ms a batch")
        legend(middle)
        names = ["devices 1", *(f"devices {n}" for n in study.setting.devices), "mix"]
        counts = [1, *study.setting.devices, 9]
        below.plot(counts, [study.mean(n) for n in names], "-o", color=BLUE, label="accuracy, %")
        titled(below, "", "test accuracy, %")
        memory = below.twinx()
        memory.plot(costs.devices, costs.memory_kb, "--s", color=ORANGE)
        memory.set_ylabel("parameters of a device, kB (dashed)")
        below.set_xlabel("devices, the coordinator included")


def draw_sets(path: Path, study: Study) -> None:
    """Figure 18: accuracy by data set and width."""
    sets = study.setting.sets
    with sheet(path, 8, 5, [1]) as (axes,):
        for offset, (width, colour) in enumerate(((64, BLUE), (128, ORANGE))):
            names = [
                "mix" if (s, width) == (study.setting.data, 64) else f"{s} {width}" for s in sets
            ]
            places = [i + 0.4 * offset - 0.2 for i in range(len(sets))]
            axes.bar(
                places, [study.mean(n) for n in names], 0.38, color=colour, label=f"width {width}"
            )
        axes.set_xticks(range(len(sets)), sets)
        titled(axes, "Fig. 18: data sets and widths", "test accuracy, %")
        legend(axes)


def draw_plus(path: Path, study: Study) -> None:
    """`stitchnet+` beside Mix-Mapped: accuracy by epoch and by number of lost devices."""
    with sheet(path, 8, 9, [1, 1]) as (top, below):
        for name, label, colour in (
            (f"plus {LOSSY}", "stitchnet+", PURPLE), (f"mix {LOSSY}", "Mix-Mapped", BLUE),
        ):  # fmt: skip
            curve = study.curve(name)
            packets = study.packets(name)
            top.plot(
                range(1, len(curve) + 1), curve, color=colour, lw=2,
                label=f"{label}, {packets:.0f} packets a batch",
            )  # fmt: skip
            rule = "planned" if name.startswith("plus") else "cloned"
            for first, style in (("worst", "-o"), ("best", "--s")):
                after = study.after_failures(name, f"{rule} {first}")
                below.plot(after, style, color=colour, label=f"{label}, {first} first")
        top.set_xlabel("epoch")
        titled(top, f"stitchnet+ and Mix-Mapped at an exponent of {LOSSY}", "test accuracy, %")
        below.set_xlabel("devices lost")
        titled(below, "", "test accuracy, %")
        legend(top)
        legend(below)


def bars(
    axes: Axes, labels: Sequence[str], values: Sequence[float],
    deviations: Sequence[float] | None = None, colour: str = BLUE,
) -> None:  # fmt: skip
    """Bars with their deviations."""
    axes.bar(range(len(values)), values, 0.6, yerr=deviations, color=colour, ecolor=INK, capsize=4)
    axes.set_xticks(range(len(values)), labels)
    for place, number in enumerate(values):
        axes.text(place, number, f" {number:.3g}", ha="left", va="bottom", fontsize=9)


def titled(axes: Axes, title: str, unit: str) -> None:
    """Set the title, unit and grid of a panel."""
    axes.set_title(title)
    axes.set_ylabel(unit)
    axes.grid(axis="y", color=FAINT, lw=0.8)
    axes.set_axisbelow(True)


def legend(axes: Axes) -> None:
    """A legend in the style of the figures."""
    axes.legend(frameon=False, labelcolor=INK, fontsize=9.5)
