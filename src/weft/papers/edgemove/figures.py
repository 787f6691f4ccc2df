"""Figures 6, 8, 9 and 10 of EdgeMove, and a map of one trajectory with the servers that were used.

draw_cuts(Path("figure10.png"))
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from weft.fleet.city import CLOUD, City, Day
from weft.papers.edgemove.claims import CONDITIONS, LABELS, cut_seconds
from weft.papers.edgemove.runs import DOUBLED, SPEED, STEPS, WORKLOADS, Runs
from weft.report.canvas import FAINT, INK, sheet
from weft.strategies.edgemove.online.journey import Journey

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {
    "on-device": "#7b8794",
    "device-cloud": "#2f9e63",
    "pipedream-e": "#f08c2e",
    "edgemove": "#2f6fde",
    "edgemove+": "#c2378b",
}
SERVERS = ("#2f6fde", "#f08c2e", "#2f9e63", "#c2378b", "#7a3fb8", "#12908e", "#b8860b", "#d1495b")
GREY = "#7b8794"
TICKS = [load.title.replace(", ", "\n") for load in WORKLOADS]
NAMES = {**LABELS, "edgemove+": "edgemove+ (ours)"}


def draw_convergence(path: Path, runs: Runs) -> None:
    """Figure 6. Nothing is trained in the city: the number of minibatches stands for accuracy."""
    with sheet(path, 9, 13, [1] * len(WORKLOADS)) as panels:
        for axes, load in zip(panels, WORKLOADS, strict=True):
            for name, colour in COLOURS.items():
                ends = runs.progress[load.id, name]
                share = np.arange(1, len(ends) + 1) / len(ends) * 100
                axes.plot(ends[::50], share[::50], color=colour, lw=1.8, label=NAMES[name])
            axes.set_title(load.title, pad=10)
            axes.set_ylabel("% of the minibatches")
            axes.grid(axis="y", color=FAINT, lw=0.8)
        panels[-1].set_xlabel("seconds")
        panels[0].set_title(f"Fig. 6, first trajectory: {WORKLOADS[0].title}", pad=34)
        legend(panels[0], len(COLOURS))


def draw_speeds(path: Path, runs: Runs) -> None:
    """Figure 8: each scheme's time at both speeds."""
    with sheet(path, 9, 5, [1]) as panels:
        axes = panels[0]
        width = 0.8 / (2 * len(LABELS))
        for index, name in enumerate(LABELS):
            for second, speed in enumerate((SPEED, DOUBLED)):
                place = np.arange(len(WORKLOADS)) - 0.4 + (2 * index + second + 0.5) * width
                heights = [runs.mean(load.id, name, speed=speed) for load in WORKLOADS]
                label = LABELS[name] if second == 0 else None
                axes.bar(
                    place, heights, width * 0.92, color=COLOURS[name], label=label,
                    alpha=1.0 if second == 0 else 0.45,
                )  # fmt: skip
        axes.set_xticks(range(len(WORKLOADS)), TICKS)
        axes.set_ylabel(f"seconds for {STEPS:,} minibatches")
        axes.set_title(f"Fig. 8: {SPEED:g} m/s (full colour) and {DOUBLED:g} m/s (pale)", pad=34)
        axes.grid(axis="y", color=FAINT, lw=0.8)
        axes.set_axisbelow(True)
        legend(axes, len(LABELS))


def draw_overheads(path: Path, runs: Runs) -> None:
    """Figure 9: how often EdgeMove and PipeDream-E adapt, and how long that takes."""
    with sheet(path, 9, 9, [1, 1]) as panels:
        counts, times = panels
        places = np.arange(len(WORKLOADS), dtype=float)
        bars = (
            ("edgemove", "cut_moves", "EdgeMove: the cut", 0.45),
            ("edgemove", "worker_changes", "EdgeMove: the worker", 1.0),
            ("pipedream-e", "worker_changes", "PipeDream-E: the worker", 1.0),
        )
        for index, (name, what, label, alpha) in enumerate(bars):
            heights = [runs.mean(load.id, name, what) for load in WORKLOADS]
            place = places + (index - 1) * 0.25
            counts.bar(place, heights, 0.22, color=COLOURS[name], alpha=alpha, label=label)
        for index, name in enumerate(("edgemove", "pipedream-e")):
            whole = np.array([runs.mean(load.id, name) for load in WORKLOADS])
            paused = np.array([runs.mean(load.id, name, "paused_s") for load in WORKLOADS])
            place, colour = places + (index - 0.5) * 0.3, COLOURS[name]
            times.bar(place, whole - paused, 0.26, color=colour, label=f"{LABELS[name]}: training")
            times.bar(
                place, paused, 0.26, bottom=whole - paused, color=colour, alpha=0.45,
                label=f"{LABELS[name]}: adapting",
            )  # fmt: skip
        counts.set_title("Fig. 9a: changes per trajectory", pad=34)
        counts.set_ylabel("changes")
        times.set_title("Fig. 9c: seconds per trajectory", pad=34)
        times.set_ylabel("seconds")
        for axes, columns in ((counts, 3), (times, 4)):
            axes.set_xticks(range(len(WORKLOADS)), TICKS)
            axes.grid(axis="y", color=FAINT, lw=0.8)
            axes.set_axisbelow(True)
            legend(axes, columns)


def draw_cuts(path: Path) -> None:
    """Figure 10: VGG-16 by cut under four network conditions; a star marks the best cut."""
    with sheet(path, 8, 12, [1] * len(CONDITIONS)) as panels:
        for axes, (name, seconds) in zip(panels, cut_seconds().items(), strict=True):
            cuts = np.arange(1, len(seconds) + 1)
            best = int(seconds.argmin())
            axes.bar(cuts, seconds * STEPS, 0.7, color=COLOURS["edgemove"])
            axes.plot(cuts[best], seconds[best] * STEPS, "*", color="#d1495b", ms=16, zorder=4)
            up, down, rtt = CONDITIONS[name]
            axes.set_title(f"{name}: {up:g} / {down:g} Mbps, {rtt * 1e3:g} ms", pad=10)
            axes.set_ylabel("seconds")
            axes.set_xticks(cuts)
            axes.grid(axis="y", color=FAINT, lw=0.8)
            axes.set_axisbelow(True)
        panels[0].set_title(
            f"Fig. 10: VGG-16, {STEPS:,} minibatches. {panels[0].get_title('left')}"
        )
        panels[-1].set_xlabel("layers on the client")


def draw_map(path: Path, city: City, day: Day, journey: Journey, title: str) -> None:
    """The walk, coloured by the worker that was used, and the used servers with their cells."""
    names = city.names
    with sheet(path, 9, 6.6, [1]) as panels:
        axes = panels[0]
        places = city.places[:-1]
        axes.plot(places[:, 0], places[:, 1], ".", color=FAINT, ms=7, zorder=1)
        used = workers(journey)
        for index, name in enumerate(used):
            colour = SERVERS[index % len(SERVERS)]
            server = names.index(name)
            x, y = city.places[server]
            circle(axes, x, y, float(city.radius[server]), colour)
            axes.plot(x, y, "^", color=colour, ms=9, zorder=4)
            axes.annotate(
                name, (x, y), (4, 5), textcoords="offset points", color=INK, fontsize=8, zorder=5
            )
        for begin, end, worker in stretches(journey):
            way = day.walk.at(np.linspace(begin, end, max(int(end - begin), 2)))
            colour = GREY if worker is None else SERVERS[used.index(worker) % len(SERVERS)]
            axes.plot(way[:, 0], way[:, 1], "-", color=colour, lw=3, zorder=3)
        start = day.walk.at(np.zeros(1))[0]
        axes.plot(*start, "o", color=INK, ms=7, zorder=5)
        axes.set_aspect("equal")
        axes.set_xlim(-150, city.box[0] + 150)
        axes.set_ylim(-150, city.box[1] + 150)
        where = "Melbourne's business district" if city.real else "a generated city"
        axes.set_title(f"{title}: {where}, {len(used)} servers used")
        axes.set_xlabel("metres; the dot is the start, grey points are servers never used")


def workers(journey: Journey) -> list[str]:
    """The edge servers in the order of their first use."""
    names = (change.after.worker for change in journey.changes)
    return list(dict.fromkeys(name for name in names if name not in (None, CLOUD)))


def stretches(journey: Journey) -> list[tuple[float, float, str | None]]:
    """(begin, end, worker): in which seconds which worker was used."""
    times = [change.now_s for change in journey.changes] + [journey.seconds]
    names = [change.after.worker for change in journey.changes]
    return list(zip(times, times[1:], names, strict=False))


def circle(axes: Axes, x: float, y: float, radius: float, colour: str) -> None:
    """A circle around a server: its reach."""
    angle = np.linspace(0, 2 * np.pi, 100)
    ring: Sequence[np.ndarray[tuple[int], np.dtype[np.float64]]]
    ring = (x + radius * np.cos(angle), y + radius * np.sin(angle))
    axes.plot(*ring, color=colour, lw=0.8, alpha=0.35, zorder=2)


def legend(axes: Axes, columns: int) -> None:
    """A legend above the axes."""
    axes.legend(
        ncols=columns, frameon=False, labelcolor=INK, fontsize=9.5, loc="lower left",
        bbox_to_anchor=(-0.01, 1.0), borderaxespad=0.2, columnspacing=1.2, handlelength=1.6,
    )  # fmt: skip
