"""Where a search may cut a network: after every layer, or between blocks if there are very many layers.

    cut_places(profile.layers)        # (0, 1, 5, 9, ... 401, 402) for a transformer of 100 blocks

A planner that tries all pairs of cuts takes four times as long for twice as many layers. Between two blocks a
transformer carries the least, so little is lost there (docs/decisions/blocks.md). Only the search is coarser:
the plan names layers, and the devices run exactly these.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.plans.profile import LayerCost

MANY = 128  # a network of at most so many layers may be cut after each of them
ENOUGH = 32  # with fewer places than this the parts of a plan would be too unequal


def cut_places(layers: Sequence[LayerCost]) -> tuple[int, ...]:
    """The numbers of layers after which a search may cut, with 0 and the number of all layers."""
    everywhere = tuple(range(len(layers) + 1))
    if len(layers) <= MANY:
        return everywhere
    between = [
        m for m in everywhere[1:-1] if not layers[m].block or layers[m].block != layers[m - 1].block
    ]
    return (0, *between, len(layers)) if len(between) >= ENOUGH else everywhere
