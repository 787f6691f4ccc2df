"""Figures 2 and 5 of EdgeMove.

draw_communication(Path("figure2.png"))
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from weft.papers.edgemove.figures import COLOURS, TICKS, legend
from weft.papers.edgemove.introduction import CLOUD, CYCLES, EDGE, lowest_layer, variation
from weft.papers.edgemove.runs import STEPS, WORKLOADS
from weft.report.canvas import FAINT, sheet
from weft.strategies.edgemove.online.pipeline import draw_noise

SHOWN = 1500  # minibatches that are drawn


def draw_communication(path: Path) -> None:
    """Figure 2: computing in full colour, communication pale above it."""
    schemes = (("On-Device", None, "on-device"), ("Device-Cloud", CLOUD, "device-cloud"),
               ("Device-Edge", EDGE, "edgemove"))  # fmt: skip
    with sheet(path, 9, 5, [1]) as (axes,):
        for index, (label, link, colour) in enumerate(schemes):
            cells = [lowest_layer(load, link) for load in WORKLOADS]
            place = np.arange(len(WORKLOADS)) + (index - 1) * 0.27
            computing = np.array([STEPS * cell.computing_s for cell in cells])
            crossing = np.array([STEPS * cell.communication_s for cell in cells])
            axes.bar(place, computing, 0.24, color=COLOURS[colour], label=label)
            axes.bar(place, crossing, 0.24, bottom=computing, color=COLOURS[colour], alpha=0.4)
        axes.set_xticks(range(len(WORKLOADS)), TICKS)
        axes.set_ylabel(f"seconds for {STEPS:,} minibatches")
        axes.set_title("Fig. 2: computing (full colour) and communication (pale)", pad=34)
        axes.grid(axis="y", color=FAINT, lw=0.8)
        axes.set_axisbelow(True)
        legend(axes, len(schemes))


def draw_variation(path: Path) -> None:
    """Figure 5: rolling averages of a worker's minibatches, for several cycle sizes."""
    times = np.array(draw_noise(np.random.default_rng([0, 6]), STEPS).worker)
    colours = ("#d5dae0", "#f08c2e", "#2f9e63", "#2f6fde")
    with sheet(path, 9, 5, [1]) as (axes,):
        for cycle, colour in zip(CYCLES, colours, strict=True):
            rolling = np.convolve(times, np.ones(cycle) / cycle, mode="valid")[:SHOWN]
            label = f"{cycle}: {variation(cycle):.3f}"
            axes.plot(rolling, color=colour, lw=1.4, label=label)
        axes.set_ylabel("seconds over the mean")
        axes.set_xlabel("minibatch")
        axes.set_title("Fig. 5: rolling averages by cycle size, with their variation", pad=34)
        legend(axes, len(CYCLES))
