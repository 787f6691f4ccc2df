"""The geometry of networks that are cut by rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from weft.errors import InputError
from weft.graph.capture.module import capture
from weft.graph.sequence import in_sequence
from weft.strategies.coopai.geometry import geometry_of

IMAGE = torch.zeros(2, 3, 8, 8)


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 3, 3, padding=1)

    def forward(self, image: Tensor, other: Tensor | None = None) -> Any:
        inner = torch.relu(self.first(image))
        outer = self.second(inner)
        return (outer, inner) if other is None else outer + other


@pytest.mark.parametrize(
    ("example", "says"),
    [(IMAGE, "1 inputs and 2 outputs"), ((IMAGE, IMAGE), "2 inputs and 1 outputs")],
)
def test_several_inputs_or_outputs_are_refused_with_a_way_out(example: Any, says: str) -> None:
    graph = in_sequence(capture(Convolutions(), example))
    with pytest.raises(InputError, match=f"{says}.*cuts between layers"):
        geometry_of(graph)
