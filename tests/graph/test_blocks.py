"""Blocks are recognised, and a cut between two blocks carries one tensor."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from weft.graph.blocks import blocks_of
from weft.graph.capture.module import capture, state_of
from weft.graph.execute import Runner


class Block(nn.Module):
    """A block of a transformer with its norms before the work."""

    def __init__(self, width: int, by_hand: bool) -> None:
        super().__init__()
        self.by_hand = by_hand
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.rand(width))
        self.mix, self.wide, self.narrow = (
            nn.Linear(width, width),
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        if self.by_hand:  # as Llama writes it
            n = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale
        else:
            n = self.first(x)
        x = x + self.mix(n)
        y: Tensor = x + self.narrow(functional.gelu(self.wide(self.second(x))))
        return y


def network(by_hand: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), *(Block(8, by_hand) for _ in range(3)), nn.Linear(8, 2))


def test_the_innermost_numbered_part_with_two_layers_is_a_block() -> None:
    paths = ["stem", "stages.0.blocks.0.a", "stages.0.blocks.0.b", "stages.0.blocks.1.ff.0",
             "stages.0.blocks.1.ff.2", "head"]  # fmt: skip
    first, second = "stages.0.blocks.0", "stages.0.blocks.1"
    assert blocks_of(paths) == ["", first, first, second, second, ""]


def test_layers_know_their_block() -> None:
    graph = capture(network(), torch.zeros(2, 5, 8))
    assert [layer.block for layer in graph.layers] == ["", *"111222333", ""]


def test_a_cut_between_blocks_carries_one_tensor_and_no_norm_of_it() -> None:
    for by_hand in (False, True):
        graph = capture(network(by_hand), torch.zeros(2, 5, 8))
        for m in (1, 2, 4, 5, 7, 8):  # after each sum
            assert len(graph.cut(m)) == 1, (by_hand, m, graph.cut(m))


def test_what_moves_is_computed_as_before() -> None:
    model = network(by_hand=True)
    graph = capture(model, torch.zeros(2, 5, 8))
    x = torch.rand(3, 5, 8)
    values = {graph.inputs[0]: x}
    for m in range(len(graph.layers)):
        values = Runner(graph.segment(m, m), state_of(model)).forward(values)
    assert torch.equal(values[graph.output], model(x))


def test_a_norm_whose_input_nobody_else_reads_stays_where_it_is() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    graph = capture(model, torch.zeros(2, 4))
    assert [len(layer.nodes) for layer in graph.layers] == [2, 1]
