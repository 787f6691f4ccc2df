"""A search cuts a network of very many layers between its blocks, and any other one after every layer."""

from __future__ import annotations

from weft.plans.places import ENOUGH, MANY, cut_places
from weft.plans.profile import LayerCost


def layers(*blocks: str) -> list[LayerCost]:
    return [LayerCost("", 0, 0, block=block) for block in blocks]


def test_few_layers_may_be_cut_anywhere() -> None:
    assert cut_places(layers(*["a"] * MANY)) == tuple(range(MANY + 1))


def test_many_layers_are_cut_between_blocks_only() -> None:
    blocks = [f"b.{n}" for n in range(100) for _ in range(4)]
    places = cut_places(layers("", *blocks, ""))
    assert places == (0, *range(1, 402, 4), 402)


def test_layers_in_no_block_may_be_parted() -> None:
    assert cut_places(layers(*[""] * 200)) == tuple(range(201))


def test_a_few_large_blocks_are_cut_inside() -> None:
    blocks = [f"b.{n}" for n in range(ENOUGH - 1) for _ in range(10)]
    assert len(cut_places(layers(*blocks))) == len(blocks) + 1
