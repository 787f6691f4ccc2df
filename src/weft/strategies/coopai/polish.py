"""Small changes to a candidate. A change is kept if the simulator finds it faster.

    seconds, best = polish(candidate, price, 400, changes(geometry, overlap=True))

Rows move from one device to another in one or several rounds, two rounds become one, one becomes two, or
inner rows are computed first or not. Changes are drawn from a seeded generator, so the same task gives the
same plan.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from weft.strategies.coopai.block_turns import proportional
from weft.strategies.coopai.clock import Candidate
from weft.strategies.coopai.geometry import Geometry
from weft.strategies.coopai.slicing import Block

SEEDS = (4, 6)  # two, because one alone may be unlucky
ROW_MODES = ("rows", "rows+data")


Price = Callable[[Candidate], float]
Change = Callable[[random.Random, Candidate, int], Candidate | None]


def polish(
    begin: Candidate, price: Price, tries: int, allowed: Sequence[Change], seed: int = SEEDS[0]
) -> tuple[float, Candidate]:
    """The fastest candidate after at most `tries` changes, and its price in seconds."""
    generator = random.Random(seed)
    seen = {begin}
    best, seconds = begin, price(begin)
    for _ in range(tries):
        change = generator.choice(allowed)
        changed = change(generator, best, generator.randrange(len(best.blocks)))
        if changed is None or changed in seen:
            continue
        seen.add(changed)
        spent = price(changed)
        if spent <= seconds:  # an equal price is kept too: it may lead to a better one
            best, seconds = changed, spent
    return seconds, best


def changes(geometry: Geometry, overlap: bool) -> list[Change]:
    """All kinds of changes. Moving rows is as likely as all others together."""

    def part(generator: random.Random, now: Candidate, n: int) -> Candidate | None:
        return _part(geometry, generator, now, n, overlap)

    def merge(generator: random.Random, now: Candidate, n: int) -> Candidate | None:
        return _merge(geometry, now, n)

    return [move, move, move, merge, part, *([_turn] if overlap else [])]


def move(generator: random.Random, now: Candidate, n: int) -> Candidate | None:
    """Move rows from one device to its neighbour, in round n and a few after it."""
    block = now.blocks[n]
    holders = [d for d, rows in enumerate(block.shares) if rows]
    if block.mode not in ROW_MODES or len(holders) < 2:
        return None
    place = generator.randrange(len(holders) - 1)
    giver, taker = holders[place : place + 2]
    if generator.random() < 0.5:
        giver, taker = taker, giver
    rows, total = generator.choice((1, 1, 2, 3)), sum(block.shares)
    blocks = list(now.blocks)
    for m in range(n, min(n + generator.choice((1, 1, 2, 4)), len(blocks))):
        shares = list(blocks[m].shares)
        moved = max(1, round(rows * sum(shares) / total))
        if blocks[m].mode not in ROW_MODES or shares[giver] < moved:
            break
        shares[giver] -= moved
        shares[taker] += moved
        blocks[m] = Block(blocks[m].layers, blocks[m].mode, tuple(shares))
    return now._replace(blocks=tuple(blocks))


def _merge(geometry: Geometry, now: Candidate, n: int) -> Candidate | None:
    """Join round n and the next one."""
    if n + 1 >= len(now.blocks):
        return None
    first, second = now.blocks[n : n + 2]
    end = geometry.rows(first.layers[1])
    if first.mode != "rows" or second.mode not in ROW_MODES or end is None or end.after:
        return None  # a round must end where the gateway computes something after it
    block = Block((first.layers[0], second.layers[1]), second.mode, second.shares)
    blocks = (*now.blocks[:n], block, *now.blocks[n + 2 :])
    overlap = (*now.overlap[:n], now.overlap[n + 1], *now.overlap[n + 2 :])
    return now._replace(blocks=blocks, overlap=overlap)


def _part(
    geometry: Geometry, generator: random.Random, now: Candidate, n: int, inner_first: bool
) -> Candidate | None:
    """Cut round n into two, with rows in the same proportion."""
    block = now.blocks[n]
    first, last = block.layers
    end = last if block.mode == "rows" else last - 1
    if block.mode not in ROW_MODES or first >= end:
        return None
    cut = generator.randrange(first, end)
    layer = geometry.rows(cut)
    assert layer is not None
    split = proportional(geometry.heights[layer.output], block.shares)
    upper = Block((first, cut), "rows", tuple(b - a for a, b in split))
    lower = Block((cut + 1, last), block.mode, block.shares)
    blocks = (*now.blocks[:n], upper, lower, *now.blocks[n + 1 :])
    overlap = (*now.overlap[: n + 1], inner_first, *now.overlap[n + 1 :])
    return now._replace(blocks=blocks, overlap=overlap)


def _turn(generator: random.Random, now: Candidate, n: int) -> Candidate | None:
    """Compute inner rows first, or not; in the first round the upper half first, or not."""
    overlap = (*now.overlap[:n], not now.overlap[n], *now.overlap[n + 1 :])
    halves = generator.choice((0.1, 0.3)) if n == 0 and overlap[0] else now.halves
    return now._replace(overlap=overlap, halves=halves)


def joined(candidate: Candidate) -> Candidate:
    """Join neighbouring blocks that the same device computes whole: nothing is sent between them."""
    blocks: list[Block] = []
    overlap: list[bool] = []
    for block, inner in zip(candidate.blocks, candidate.overlap, strict=True):
        last = blocks[-1] if blocks else None
        same = last is not None and last.mode == block.mode == "whole"
        if last is not None and same and last.shares == block.shares:
            blocks[-1] = Block((last.layers[0], block.layers[1]), "whole", block.shares)
        else:
            blocks.append(block)
            overlap.append(inner)
    return candidate._replace(blocks=tuple(blocks), overlap=tuple(overlap))
