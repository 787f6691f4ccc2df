"""The points of hiertrain+'s search: the first ones, and the neighbours of a point.

split = next(simple_splits(workers, {"pi1": 20, "pi2": 12}, layers=8))
neighbours(split, range(9), batch=32)       # each differs in some samples, one cut, the pieces or a role
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from typing import NamedTuple

from weft.plans.task import Task
from weft.strategies.hiertrain.model import HierCosts, all_cells
from weft.strategies.hiertrain.search import fastest_split

PIECES = (4, 8, 16)


class Split(NamedTuple):
    """A point of the search.

    `o` trains all layers. Device `others[i]` trains the first `cuts[i]` layers on its share, and o computes
    the remaining layers of these samples. `shares` has one row for each device with data: the samples of
    o, then those of the others.
    """

    o: str
    others: tuple[str, ...]
    cuts: tuple[int, ...]
    shares: tuple[tuple[int, ...], ...]
    pieces: int = 8
    eager: bool = True
    stream: bool = True

    def lanes(self, layers: int, owners: Sequence[str]) -> list[tuple[str, int, int, str]]:
        """(device, number of its first layers, samples, owner of the samples) in the order of the samples."""
        lanes = []
        for owner, row in zip(owners, self.shares, strict=True):
            others = zip(self.others, self.cuts, row[1:], strict=True)
            lanes += [(device, m, samples, owner) for device, m, samples in others]
            lanes.append((self.o, layers, row[0], owner))
        return lanes


def paper_split(task: Task, paper: tuple[str, ...], workers: tuple[str, ...]) -> Split:
    """The optimum of the paper's model. Workers that are not in the model get no samples."""
    cells = all_cells(HierCosts.of(task, paper))
    best = fastest_split(cells)
    o, *roles = cells.roles[:, best.cell]
    cuts_of = cells.m_s[best.cell], cells.m_l[best.cell]
    lanes = [
        (paper[index], max(1, int(m)), share)
        for index, m, share in zip(roles, cuts_of, (best.b_s, best.b_l), strict=True)
        if index < len(paper)
    ]
    known = (paper[o], *(device for device, _, _ in lanes))
    lanes += [(device, 1, 0) for device in workers if device not in known]
    others, cuts, shares = zip(*lanes, strict=True)
    return Split(paper[o], others, cuts, ((best.b_o, *shares),))


def simple_splits(
    workers: tuple[str, ...], batches: Mapping[str, int], layers: int
) -> Iterator[Split]:
    """Simple splits for each choice of o: all others get equal shares; one other gets half of the samples.

    If several devices have data, each of them also keeps all its samples, with one layer or half of them.
    """
    middle = max(1, layers // 2)
    for o in workers:
        others = tuple(device for device in workers if device != o)
        even = []
        for batch in batches.values():
            each = batch // (2 * len(others))
            even.append((batch - each * len(others), *[each] * len(others)))
        yield Split(o, others, (middle,) * len(others), tuple(even))
        for chosen in range(len(others)):
            rows = []
            for batch in batches.values():
                half = [batch // 2 if n == chosen else 0 for n in range(len(others))]
                rows.append((batch - batch // 2, *half))
            yield Split(o, others, (1,) * len(others), tuple(rows))
        if len(batches) > 1:
            at_home = tuple(
                tuple(batch if device == home else 0 for device in (o, *others))
                if home in workers
                else (batch, *[0] * len(others))
                for home, batch in batches.items()
            )
            for cut in dict.fromkeys((1, middle)):
                yield Split(o, others, (cut,) * len(others), at_home)


def neighbours(split: Split, places: Sequence[int], batch: int) -> Iterator[Split]:
    """All splits that differ from this one in one thing. A cut moves by one layer or to the next place, where
    the last place is after all layers."""
    for step in dict.fromkeys(max(1, batch // n) for n in (4, 8, 16, 32, batch)):
        for number, row in enumerate(split.shares):
            for give, take in permutations(range(len(row)), 2):
                if row[give] >= step:
                    moved = list(row)
                    moved[give] -= step
                    moved[take] += step
                    rows = (*split.shares[:number], tuple(moved), *split.shares[number + 1 :])
                    yield split._replace(shares=rows)
    for i, m in enumerate(split.cuts):
        before, after = bisect.bisect_left(places, m) - 1, bisect.bisect_right(places, m)
        further = places[max(before, 0)], places[min(after, len(places) - 1)]
        for cut in dict.fromkeys((m - 1, m + 1, *further)):
            if 1 <= cut <= places[-1] and cut != m:
                yield split._replace(cuts=(*split.cuts[:i], cut, *split.cuts[i + 1 :]))
    yield split._replace(eager=not split.eager)
    yield split._replace(stream=not split.stream)
    for pieces in PIECES:
        if pieces != split.pieces and pieces <= batch:
            yield split._replace(pieces=pieces)
    for i, other in enumerate(split.others):
        others = (*split.others[:i], split.o, *split.others[i + 1 :])
        yield split._replace(o=other, others=others)
