"""A strip's segment makes the rows that the whole network makes there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from weft.errors import InputError
from weft.graph.execute import Runner
from weft.graph.network import Graph, Pick
from weft.graph.operators.rows import Range
from weft.graph.split.divide import divide, kind_of
from weft.graph.split.rows import needed_rows
from weft.graph.split.slices import rows_segment, units_segment
from weft.graph.split.state import sliced_state

pytestmark = pytest.mark.usefixtures("one_thread")

Chains = st.SearchStrategy[tuple[nn.Sequential, Tensor]]
GraphOf = Callable[[nn.Sequential, Tensor], Graph]


def run_strip(
    graph: Graph, module: nn.Module, x: Tensor, wanted: dict[str, Range]
) -> dict[str, Tensor]:
    layers = (0, len(graph.layers) - 1)
    division = divide(graph, layers, "rows")
    first, last = needed_rows(graph, division.own, wanted, division.rules)["x"]
    segment = rows_segment(graph, layers, 3, division, {"x": (first, last)}, wanted)
    assert segment.part == 3
    assert segment.inputs["x"].shape == (1, x.shape[1], last - first, x.shape[3])
    runner = Runner(segment, sliced_state(segment, module.state_dict()))
    with torch.no_grad():
        made = runner.forward({"x": x[:, :, first:last]})
    assert {n: t.shape[1:] for n, t in made.items()} == {
        n: v.shape[1:] for n, v in segment.outputs.items()
    }
    return made


@settings(deadline=None, max_examples=100, derandomize=True)
@given(st.data())
def test_a_strip_equals_those_rows_of_the_whole(
    any_chain: Callable[[], Chains], graph_of: GraphOf, data: st.DataObject
) -> None:
    module, x = data.draw(any_chain())
    with torch.no_grad():
        graph, whole = graph_of(module, x), module(x)
    first = data.draw(st.integers(0, whole.shape[2] - 1))
    last = data.draw(st.integers(first + 1, whole.shape[2]))
    made = run_strip(graph, module, x, {graph.output: (first, last)})[graph.output]
    torch.testing.assert_close(made, whole[:, :, first:last], rtol=1e-4, atol=1e-5)


def test_a_value_given_and_used_inside_is_cut_to_what_is_given(graph_of: GraphOf) -> None:
    x = torch.randn(2, 2, 12, 5)
    one, two = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 2, 5, padding=2)
    module = nn.Sequential(one, two)
    graph = graph_of(module, x)
    made = run_strip(graph, module, x, {"n0": (5, 6), "n1": (4, 8)})
    with torch.no_grad():
        torch.testing.assert_close(made["n0"], one(x)[:, :, 5:6])
        torch.testing.assert_close(made["n1"], module(x)[:, :, 4:8])


def test_whole_maps_keep_their_nodes(graph_of: GraphOf) -> None:
    x = torch.zeros(2, 1, 9, 9)
    module = nn.Sequential(
        nn.Conv2d(1, 1, 3, padding=1), nn.AvgPool2d(3, 2, 1, True, False), nn.ReLU()
    )
    graph = graph_of(module, x)
    division = divide(graph, (0, 0), "rows")
    whole = {"x": (0, 9)}, {graph.output: (0, 5)}
    assert rows_segment(graph, (0, 0), 1, division, *whole).nodes == graph.layers[0].nodes


def test_the_strips_of_a_padded_map_get_padding_at_their_own_border_only(graph_of: GraphOf) -> None:
    graph = graph_of(nn.Sequential(nn.Conv2d(1, 1, 3, padding=1)), torch.zeros(2, 1, 9, 9))
    division = divide(graph, (0, 0), "rows")

    def pads(takes: Range, gives: Range) -> list[object]:
        made = rows_segment(graph, (0, 0), 1, division, {"x": takes}, {graph.output: gives})
        return [node.args[1] for node in made.nodes if node.op == "aten.pad.default"]

    assert pads((0, 4), (0, 3)) == [[0, 0, 1, 0]]
    assert pads((2, 7), (3, 6)) == []
    assert pads((5, 9), (6, 9)) == [[0, 0, 0, 1]]


def test_units_of_a_layer_come_with_their_part_of_every_parameter(graph_of: GraphOf) -> None:
    module = nn.Sequential(nn.Linear(6, 10), nn.BatchNorm1d(10), nn.ReLU()).eval()
    x = torch.randn(3, 6)
    graph = graph_of(module, x)
    division = divide(graph, (0, 0), "model")
    assert not division.before
    assert not division.after
    takes, gives = {"x": (0, 6)}, {graph.output: (3, 7)}
    segment = units_segment(graph, (0, 0), 2, division, takes, gives, (3, 7))
    assert segment.picks["0.weight"] == Pick((10, 6), 0, 3, 7)
    assert segment.state["0.weight"].shape == (4, 6)
    assert segment.state["1.running_var"].shape == (4,)
    state = sliced_state(segment, module.state_dict())
    assert all(tensor.is_contiguous() for tensor in state.values())
    with torch.no_grad():
        made = Runner(segment, state).forward({"x": x})[graph.output]
        torch.testing.assert_close(made, module(x)[:, 3:7])


def test_parts_of_weights_are_copies(graph_of: GraphOf) -> None:
    module = nn.Sequential(nn.Linear(6, 10))
    graph = graph_of(module, torch.zeros(2, 6))
    division = divide(graph, (0, 0), "model")
    segment = units_segment(graph, (0, 0), 2, division, {"x": (0, 6)}, {"n0": (0, 2)}, (0, 2))
    weights = dict(module.state_dict())
    sliced_state(segment, weights)["0.weight"].zero_()
    assert weights["0.weight"].abs().sum() > 0


def test_kinds_of_layers(graph_of: GraphOf) -> None:
    pooled = nn.Sequential(
        nn.Conv2d(1, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 4), nn.Softmax(1)
    )
    graph = graph_of(pooled, torch.zeros(2, 1, 6, 6))
    assert [kind_of(graph, n) for n in range(2)] == ["rows", "units"]
    # the mean over the map and the softmax over the units are the gateway's
    assert [n.name for n in divide(graph, (0, 0), "rows").after] == ["n1"]
    assert [n.name for n in divide(graph, (1, 1), "model").before] == ["n2"]
    assert [n.name for n in divide(graph, (1, 1), "model").after] == ["n4"]
    sequence = graph_of(nn.Sequential(nn.Linear(3, 4)), torch.zeros(2, 5, 3))
    assert kind_of(sequence, 0) == "rows"  # of tokens


@pytest.mark.parametrize(
    ("layers", "mode", "words"),
    [
        ((0, 1), "rows", "needs whole values. Begin a new block"),
        ((0, 1), "rows+data", "n1 needs the whole map"),
        ((0, 0), "model", "needs one fully connected operator"),
        ((1, 2), "data", "for one fully connected layer"),
        ((0, 2), "hybrid", "two fully connected layers"),
        ((1, 2), "hybrid", "n4 needs the whole vector"),
        ((1, 2), "rows+data", "does not follow on a map"),
    ],
)
def test_a_block_that_cannot_be_cut_so_is_refused_with_the_reason(
    layers: tuple[int, int], mode: str, words: str, graph_of: GraphOf
) -> None:
    module = nn.Sequential(
        nn.Conv2d(1, 2, 1), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(8, 4), nn.Softmax(1), nn.Linear(4, 2),
    )  # fmt: skip
    graph = graph_of(module, torch.zeros(2, 1, 6, 6))
    with pytest.raises(InputError, match=words):
        divide(graph, layers, mode)
