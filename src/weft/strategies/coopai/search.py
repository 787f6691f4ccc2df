"""MLS and SLS: the best blocks for every number of devices, exactly, under CoopAI's cost model.

splits = best_splits(geometry, speeds, devices=10)      # MLS, k = 1..10; equation (2)
min(splits, key=lambda split: split.seconds)            # equation (1)
best_splits(geometry, speeds, 10, single=True)          # SLS: every layer is a block
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.strategies.coopai.geometry import Geometry
from weft.strategies.coopai.model import MODES, BlockCosts, Speeds, block_costs, one_device
from weft.strategies.coopai.rows import Floats, RowWork, row_work
from weft.strategies.coopai.slicing import Block

SAME = 1 + 1e-12  # the same numbers added in another order count as equal


@dataclass(frozen=True)
class Split:
    """The blocks for k devices, and the model's seconds: those of the slowest device in every round."""

    devices: int
    blocks: tuple[Block, ...]
    compute_s: float
    transfer_s: float

    @property
    def seconds(self) -> float:
        """Computing and sending together."""
        return self.compute_s + self.transfer_s


def best_splits(
    geometry: Geometry,
    speeds: Speeds,
    devices: int,
    *,
    single: bool = False,
    work: RowWork | None = None,
) -> list[Split]:
    """The best split for every k from 1 to `devices`. `work` is row_work, if it was already computed."""
    work = row_work(geometry, devices) if work is None else work
    costs = block_costs(geometry, work, speeds)
    whole = (Block((0, len(geometry.layers) - 1), "whole"),)
    splits = [Split(1, whole, *one_device(geometry, speeds))]
    before = _single(costs) if single else _shortest(costs.seconds)
    splits += [_split(k, before[:, k - 2], costs) for k in range(2, devices + 1)]
    return splits


def _shortest(seconds: Floats) -> np.ndarray:
    """Equation (2) for all k together: by last layer and k, the first layer of the last block.

    Among equally good ways the one with the longest last block is taken.
    """
    numbers, layers, _ = seconds.shape
    total = np.zeros((layers + 1, numbers))
    before = np.zeros((layers, numbers), dtype=int)
    for j in range(layers):
        ways = total[: j + 1] + seconds[:, : j + 1, j].T
        least = np.min(ways, axis=0)
        before[j] = np.argmax(ways <= least * SAME, axis=0)
        total[j + 1] = np.take_along_axis(ways, before[j][None], axis=0)[0]
    return before


def _single(costs: BlockCosts) -> np.ndarray:
    numbers, layers, _ = costs.compute_s.shape
    return np.repeat(np.arange(layers)[:, None], numbers, axis=1)


def _split(k: int, before: np.ndarray, costs: BlockCosts) -> Split:
    blocks: list[Block] = []
    compute = transfer = 0.0
    j = len(before) - 1
    while j >= 0:
        i = int(before[j])
        blocks.append(Block((i, j), MODES[costs.mode[k - 2, i, j]]))
        compute += float(costs.compute_s[k - 2, i, j])
        transfer += float(costs.transfer_s[k - 2, i, j])
        j = i - 1
    return Split(k, tuple(reversed(blocks)), compute, transfer)
