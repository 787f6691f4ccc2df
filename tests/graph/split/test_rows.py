"""Needed rows: exactly those on which the wanted ones depend."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from weft.errors import InputError
from weft.graph.capture.module import capture
from weft.graph.network import Graph
from weft.graph.split.rows import needed_rows, rule_of

pytestmark = pytest.mark.usefixtures("one_thread")

Chains = st.SearchStrategy[tuple[nn.Sequential, Tensor]]
GraphOf = Callable[[nn.Sequential, Tensor], Graph]


def needs(graph: Graph, wanted: tuple[int, int]) -> tuple[int, int]:
    nodes = [node for layer in graph.layers for node in layer.nodes]
    return needed_rows(graph, nodes, {graph.output: wanted})["x"]


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.data())
def test_rows_outside_the_needed_ones_change_nothing(
    any_chain: Callable[[], Chains], graph_of: GraphOf, data: st.DataObject
) -> None:
    module, x = data.draw(any_chain())
    with torch.no_grad():
        graph, whole = graph_of(module, x), module(x)
    first = data.draw(st.integers(0, whole.shape[2] - 1))
    last = data.draw(st.integers(first + 1, whole.shape[2]))
    top, bottom = needs(graph, (first, last))
    assert 0 <= top < bottom <= x.shape[2]
    noise = torch.full_like(x, 1e6)
    noise[:, :, top:bottom] = x[:, :, top:bottom]
    with torch.no_grad():
        assert torch.equal(module(noise)[:, :, first:last], whole[:, :, first:last])


def ones(module: nn.Sequential) -> nn.Sequential:
    """Every input of a window counts: no weight is zero."""
    for parameter in module.parameters():
        nn.init.ones_(parameter)
    return module.eval()


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Conv2d(1, 1, 3, 2, 1), nn.Conv2d(1, 1, 5, padding=2)),
        nn.Sequential(nn.Conv2d(1, 1, 3, dilation=2, padding=2), nn.AvgPool2d(2)),
        nn.Sequential(nn.Conv2d(1, 1, 2), nn.AvgPool2d(3, 2, 1, ceil_mode=True)),
        nn.Sequential(nn.Conv2d(1, 4, 1), nn.PixelShuffle(2), nn.Conv2d(1, 1, 3, padding=1)),
        nn.Sequential(nn.PixelUnshuffle(3), nn.Conv2d(9, 1, 1)),
        nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(1, 1, 3, padding=1)),
        nn.Sequential(nn.ZeroPad2d((0, 0, 2, 1)), nn.Conv2d(1, 1, 3)),
    ],
)
def test_the_first_and_the_last_needed_row_count(module: nn.Sequential, graph_of: GraphOf) -> None:
    x = torch.rand(2, 1, 15, 15)
    module = ones(module)
    with torch.no_grad():
        graph, whole = graph_of(module, x), module(x)
        for first in range(whole.shape[2]):
            top, bottom = needs(graph, (first, first + 1))
            for row in (top, bottom - 1):
                other = x.clone()
                other[:, :, row] += 1
                assert not torch.equal(module(other)[:, :, first], whole[:, :, first])


def test_a_value_that_is_read_twice_is_needed_for_both() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide, self.near = nn.Conv2d(1, 1, 5, padding=2), nn.Conv2d(1, 1, 3, padding=1)
            self.next = nn.Conv2d(1, 1, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(x)
            result: Tensor = torch.cat([self.next(self.near(x)) + x, self.wide(x) * x], 1)
            return result

    graph = capture(Twice(), torch.zeros(2, 1, 20, 20))
    nodes = [node for layer in graph.layers for node in layer.nodes]
    rows = needed_rows(graph, nodes, {graph.output: (10, 12), "relu": (14, 18)})
    assert rows["x"] == rows["relu"] == (8, 18)
    assert rows["conv2d"] == (9, 13)


@pytest.mark.parametrize("part", [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Softmax(2)])
def test_what_reads_all_rows_has_no_rule_and_is_refused(part: nn.Module, graph_of: GraphOf) -> None:
    graph = graph_of(nn.Sequential(nn.Conv2d(1, 2, 1), part), torch.zeros(2, 1, 6, 6))
    one, two = (node for layer in graph.layers for node in layer.nodes)
    assert rule_of(graph, one) is not None
    assert rule_of(graph, two) is None
    with pytest.raises(InputError, match="cannot be cut into rows"):
        needs(graph, (0, 1))


def test_pooling_a_map_to_its_own_size_and_a_softmax_over_channels_are_row_by_row(
    graph_of: GraphOf,
) -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 1), nn.AdaptiveAvgPool2d(6), nn.Softmax(1))
    assert needs(graph_of(module, torch.zeros(2, 1, 6, 6)), (2, 4)) == (2, 4)
