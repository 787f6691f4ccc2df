"""The sheet for pictures: fonts, colours, panels, and how it is saved.

Matplotlib is slow to import, so nothing imports it before a picture is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#1f2933"
FAINT = "#d5dbe1"
FONTS: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 11,
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 14,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.fonttype": "none",
}


@contextmanager
def sheet(path: Path, width: float, height: float, ratios: Sequence[float]) -> Iterator[list[Axes]]:
    """One column of panels, saved to `path` when the block ends. Needs no display."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with rc_context(FONTS):
        figure = Figure(
            figsize=(width, height),
            layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.14, hspace=0.04),
        )
        FigureCanvasAgg(figure)
        grid = figure.subplots(len(ratios), 1, squeeze=False, height_ratios=list(ratios))
        axes: list[Axes] = [row[0] for row in grid]
        for panel in axes:
            panel.spines[["top", "right", "left"]].set_visible(False)
            panel.tick_params(length=0)
        yield axes
        save(figure, path)


def save(figure: Figure, path: Path) -> None:
    """Writes a picture. Raises InputError if the file's ending or folder is wrong."""
    try:
        figure.savefig(path, dpi=160)
    except OSError as error:
        raise InputError(f"picture {path}: {error.strerror or error}") from None
    except ValueError:
        endings = ", ".join(sorted(figure.canvas.get_supported_filetypes()))
        raise InputError(
            f"picture {path}: ending {path.suffix!r} is not one of {endings}"
        ) from None
