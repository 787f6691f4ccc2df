"""Weights that peers share: how they are blended, and what rounding drops."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from weft.codecs.registry import CODECS
from weft.codecs.tensors import rounded
from weft.errors import WeftError
from weft.runtime.node.groups import Groups
from weft.runtime.wire import messages as msg


def test_a_blend_is_the_weighted_mean_and_touches_only_its_own_places() -> None:
    state = {"w": torch.arange(6.0), "b": torch.ones(2)}
    groups = Groups({3: (msg.Slice("w", "w", 2, 4), msg.Slice("b", "b"))}, state)
    theirs = {"w": torch.tensor([10.0, 20.0]), "b": torch.zeros(2)}
    groups.blend(3, 1.0, [(3.0, theirs)], total=0.0)
    assert state["w"].tolist() == [0.0, 1.0, 8.0, 15.75, 4.0, 5.0]
    assert state["b"].tolist() == [0.25, 0.25]
    row = groups.share_row(3, 2.0)["row"]
    assert row.tolist() == [0.5, 0.5, 16.0, 31.5]
    groups.blend(3, 0.0, [(1.0, {"row": row})], total=2.0)
    assert state["w"].tolist() == [0.0, 1.0, 8.0, 15.75, 4.0, 5.0]


@pytest.mark.parametrize("codec", [name for name in CODECS if name != "none"])
def test_what_rounding_drops_is_part_of_the_next_share(codec: str) -> None:
    state = {"w": torch.tensor([-1.0, 0.336, 1.0])}
    groups = Groups({3: (msg.Slice("w", "w"),)}, state)
    shares = [groups.share(3, codec)["w"] for _ in range(50)]
    arrived = torch.stack([rounded(share, codec) for share in shares]).double()
    once, on_average = (
        float((values - state["w"].double()).abs().max())
        for values in (arrived[0], arrived.mean(0))
    )
    assert once > 0
    assert on_average < once / 3
    assert torch.equal(groups.share(3)["w"], state["w"])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"w": torch.zeros(2)}, "b are on one side only"),
        ({"w": torch.zeros(3), "b": torch.zeros(2)}, "came with shape"),
        ({"row": torch.zeros(3)}, "4 numbers are needed"),
    ],
)
def test_what_does_not_fit_is_not_blended(values: dict[str, Tensor], words: str) -> None:
    groups = Groups(
        {3: (msg.Slice("w", "w", 2, 4), msg.Slice("b", "b"))},
        {"w": torch.arange(6.0), "b": torch.ones(2)},
    )
    with pytest.raises(WeftError, match=words):
        groups.blend(3, 1.0, [(1.0, values)], total=0.0)
