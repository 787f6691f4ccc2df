"""The exact optimum of HierTrain's model: no cell and no split of the batch is faster.

    split = fastest_split(all_cells(costs))
    split.b_o, split.b_s, split.b_l, split.seconds

Cells are dropped by better and better lower bounds, all cells at once:

1. T >= A_j b_j for each worker alone, so T >= const + B / sum(1 / A_j). The first plan to beat is the
   best corner: all samples at one worker.
2. Over real shares, T has its minimum at a border or where two of the lines meet on which T bends. All
   these points are tried. The best one, rounded to whole samples, is often a better plan.
3. In the few remaining cells, the most promising first, whole samples are searched. For each b_l, T is
   a convex function of b_o that bends in six places, so an integer next to a bend is best.
"""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import numpy as np

from weft.strategies.hiertrain.model import Array, Cells, Ints, early, late

# A bound may be wrong by rounding: by a few last digits in step 1, and by more in step 2, where slopes
# of very different size enlarge the rounding of a point. A cell that is kept needlessly costs only time.
SAFE_BOUND = 1 + 1e-12
SAFE_POINTS = 1 + 1e-7
SOME = 64  # step 2 begins with so many cells
POINTS = 400_000  # points that step 3 computes at once: a few megabytes


class Split(NamedTuple):
    """The best cell, and how many samples each role gets."""

    cell: int
    b_o: int
    b_s: int
    b_l: int
    seconds: float


def fastest_split(cells: Cells) -> Split:
    """The fastest of all roles, cuts and shares."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        alone = _alone(cells)
        best = _best_corner(cells, alone)
        bound = cells.const + cells.batch / np.sum(1 / alone, axis=0)
        order = np.argsort(bound)
        bound, best = _tighten(cells, order, bound[order], best)
        kept = np.flatnonzero(bound < best.seconds * SAFE_POINTS)
        kept = kept[np.argsort(bound[kept])]
        return _search(cells.take(order[kept]), order[kept], bound[kept], best)


def _tighten(cells: Cells, order: Ints, bound: Array, best: Split) -> tuple[Array, Split]:
    """Step 2 for all cells that can still beat the best plan: their new bounds, and the best plan.

    The first cells, rounded, are nearly the optimum. So few of the other cells remain.
    """
    bounds: list[Array] = [np.empty(0)]
    begin, count = 0, SOME
    while begin < (end := int(np.searchsorted(bound, best.seconds * SAFE_BOUND))):
        some = order[begin : min(begin + count, end)]
        near = cells.take(some)
        least, shares = _real_optimum(near)
        best = _better(best, _best_rounded(near, shares), some)
        bounds.append(least)
        begin, count = begin + count, 8 * count
    return np.concatenate(bounds), best


def _alone(cells: Cells) -> Array:
    """[worker, cell]: seconds per sample if this worker has all samples."""
    o1, s1, l1, o2, s2, l2 = cells.first
    o3, l3, o4, l4 = cells.rest
    return np.stack([o1 + o2 + o3 + o4, s1 + s2 + o3 + o4, l1 + l2 + l3 + l4])


def _best_corner(cells: Cells, alone: Array) -> Split:
    corner = cells.const + cells.batch * alone
    worker, cell = divmod(int(np.argmin(corner)), len(cells))
    b_o, b_s, b_l = (cells.batch if role == worker else 0 for role in range(3))
    return Split(cell, b_o, b_s, b_l, float(corner[worker, cell]))


def _better(best: Split, other: Split, names: Ints) -> Split:
    """The faster of the two. `names` are the caller's numbers for the other's cells."""
    if other.seconds < best.seconds:
        return other._replace(cell=int(names[other.cell]))
    return best


# Step 2: shares as real numbers.

# Lines n . b = 0: three borders, three for each first maximum, one for each later maximum.
LINES = 11
# The three lines of one maximum meet in one point, so two of them are enough.
SKIPPED = {(3, 5), (4, 5), (6, 8), (7, 8), (9, 10)}
PAIRS = np.array([pair for pair in combinations(range(LINES), 2) if pair not in SKIPPED]).T


def _real_optimum(cells: Cells) -> tuple[Array, Array]:
    """The least T over real shares in each cell, and these shares [worker, cell]."""
    x, y, z = _lines(cells)
    one, two = PAIRS
    # [worker, pair, cell]: the direction of the point where both lines meet.
    points = np.stack(
        [
            y[one] * z[two] - z[one] * y[two],
            z[one] * x[two] - x[one] * z[two],
            x[one] * y[two] - y[one] * x[two],
        ]
    )
    points *= cells.batch / np.sum(points, axis=0)
    # Parallel lines do not meet (nan, inf). A share below 0 is outside; -1e-9 is left for rounding.
    valid = np.all(points > -1e-9 * cells.batch, axis=0) & np.all(np.isfinite(points), axis=0)
    points = np.where(valid, np.maximum(points, 0.0), 0.0)
    seconds = np.where(valid, cells.seconds(*points), np.inf)
    least = np.argmin(seconds, axis=0)
    each = np.arange(len(cells))
    return seconds[least, each], points[:, least, each]


def _lines(cells: Cells) -> tuple[Array, Array, Array]:
    """The normals of the lines on which T bends and of the borders: [line, cell] for o, s, l.

    They are scaled to at most 1, so that the product of two slopes cannot overflow.
    """
    o1, s1, l1, o2, s2, l2 = cells.first / np.max(cells.first, axis=0)
    o3, l3, o4, l4 = cells.rest / np.max(cells.rest, axis=0)
    no, yes = np.zeros(len(cells)), np.ones(len(cells))
    return (
        np.nan_to_num(np.stack([yes, no, no, o1, o1, no, o2, o2, no, o3, o4])),
        np.nan_to_num(np.stack([no, yes, no, -s1, no, s1, -s2, no, s2, o3, o4])),
        np.nan_to_num(np.stack([no, no, yes, no, -l1, -l1, no, -l2, -l2, -l3, -l4])),
    )


def _best_rounded(cells: Cells, shares: Array) -> Split:
    """Real shares rounded down. The remaining samples go to one or two workers; all ways are tried."""
    down = np.floor(shares)
    missing = cells.batch - np.sum(down, axis=0)
    turns = (np.arange(3)[:, None] + np.arange(3)) % 3  # [worker, way]
    whole = down[:, None, :] + (turns[:, :, None] < missing)
    seconds = cells.seconds(*whole)
    way, cell = divmod(int(np.argmin(seconds)), len(cells))
    b_o, b_s, b_l = (int(share) for share in whole[:, way, cell])
    return Split(cell, b_o, b_s, b_l, float(seconds[way, cell]))


# Step 3: shares as whole numbers.


def _search(cells: Cells, names: Ints, bound: Array, best: Split) -> Split:
    """Search the cells in the order of their bounds, until no bound is below the best plan."""
    most = max(1, POINTS // (12 * (cells.batch + 1)))
    begin, count = 0, 1
    while begin < len(cells) and bound[begin] < best.seconds * SAFE_POINTS:
        end = int(np.searchsorted(bound, best.seconds * SAFE_POINTS))
        some = np.arange(begin, min(begin + count, end))
        best = _better(best, _best_integers(cells.take(some)), names[some])
        begin, count = begin + count, min(4 * count, most)
    return best


def _best_integers(cells: Cells) -> Split:
    """The best whole shares in these cells; all b_l are computed at once."""
    b_l = np.arange(cells.batch + 1.0)[:, None]  # from this line on, arrays are [b_l, cell]
    left = cells.batch - b_l
    down = np.floor(_bends(cells, left, b_l))
    b_o = np.concatenate([down, np.minimum(down + 1, left)])
    seconds = early(cells.first, b_o, left - b_o, b_l)
    seconds += late(cells.rest, left, b_l) + cells.const
    bend, third, cell = np.unravel_index(int(np.argmin(seconds)), seconds.shape)
    share = int(b_o[bend, third, cell])
    rest = cells.batch - int(third) - share
    return Split(int(cell), share, rest, int(third), float(seconds[bend, third, cell]))


def _bends(cells: Cells, left: Array, b_l: Array) -> Array:
    """Where T bends as b_o grows from 0 to `left` and b_s shrinks: [bend, b_l, cell].

    Each maximum first falls or stays, and then rises or stays. So T has its minimum at a bend.
    """
    bends = []
    for o, s, l in (cells.first[:3], cells.first[3:]):  # noqa: E741 - the paper's letter
        bends += [left * (s / (o + s)), b_l * (l / o), left - b_l * (l / s)]
    # Where slopes are 0 there is no bend: fmax and fmin then replace nan by a border.
    return np.asarray(np.fmin(np.fmax(np.stack(bends), 0.0), left))
