"""Listed units of dense layers: together they are the layer, and their weights find their way home."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from weft import zoo
from weft.errors import InputError, WeftError
from weft.graph.capture.module import capture, state_of
from weft.graph.execute import Runner
from weft.graph.network import Graph
from weft.graph.split.state import place_state, sliced_memory, sliced_state
from weft.graph.split.units import listed_segment, unit_widths

torch.manual_seed(0)
MODEL = nn.Sequential(
    nn.Flatten(), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 3)
)
GRAPH = capture(MODEL, torch.zeros(2, 2, 3), name="small")
STATE = {name: tensor.detach() for name, tensor in state_of(MODEL).items()}


CHAIN = nn.Sequential(
    nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(6, 5, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2),
    nn.Flatten(), nn.Linear(5 * 4, 4), nn.ReLU(), nn.Linear(4, 2),
)  # fmt: skip


class Viewed(nn.Module):
    """The same chain, whose map is made a vector by naming its size."""

    def __init__(self, chain: nn.Sequential) -> None:
        super().__init__()
        self.chain = chain

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.chain[7:](self.chain[:6](x).view(-1, 20))
        return found


@cache
def chain(viewed: bool) -> tuple[Graph, dict[str, Tensor]]:
    model = Viewed(CHAIN) if viewed else CHAIN
    state = {name: tensor.detach() for name, tensor in state_of(model).items()}
    return capture(model, torch.zeros(2, 3, 8, 8), name="chain"), state


def run(layer: int, x: Tensor, units: list[int], columns: list[int]) -> Tensor:
    return part(GRAPH, STATE, layer, x, units, columns)


def part(
    graph: Graph, state: dict[str, Tensor], layer: int, x: Tensor, units: list[int],
    columns: list[int],
) -> Tensor:  # fmt: skip
    segment = listed_segment(graph, layer, 1, units, columns)
    runner = Runner(segment, sliced_state(segment, state))
    (name,) = segment.inputs
    (out,) = runner.forward({name: x}).values()
    return out


@settings(deadline=None, max_examples=25)
@given(st.permutations(range(8)), st.permutations(range(5)), st.integers(1, 4))
def test_parts_in_any_order_are_the_layer(columns: list[int], units: list[int], cut: int) -> None:
    torch.manual_seed(1)
    x = torch.rand(4, 8)
    with torch.no_grad():
        whole = MODEL[4](MODEL[3](x))
        parts = [run(1, x[:, columns], units[a:b], columns) for a, b in ((0, cut), (cut, 5))]
    torch.testing.assert_close(torch.cat(parts, 1), whole[:, units])


def test_the_first_layer_takes_the_input_as_it_is_and_the_last_gives_all() -> None:
    x, h = torch.rand(4, 2, 3), torch.rand(4, 5)
    with torch.no_grad():
        torch.testing.assert_close(run(0, x, [7, 0], []), MODEL[:3](x)[:, [7, 0]])
        torch.testing.assert_close(run(2, h[:, [3, 1, 0, 2, 4]], [], [3, 1, 0, 2, 4]), MODEL[5](h))
    assert unit_widths(GRAPH) == (8, 5)


@settings(deadline=None, max_examples=25)
@given(st.permutations(range(8)), st.permutations(range(5)), st.integers(1, 4))
def test_weights_and_memory_come_back_to_where_they_were(
    columns: list[int], units: list[int], cut: int
) -> None:
    memory = {"3.weight/exp_avg": torch.rand(5, 8), "3.weight/step": torch.tensor(7.0)}
    state, found = {"3.weight": torch.zeros(5, 8), "3.bias": torch.zeros(5)}, {}
    for mine in (units[:cut], units[cut:]):
        segment = listed_segment(GRAPH, 1, 1, mine, columns)
        place_state(segment, sliced_state(segment, STATE), state)
        place_state(segment, sliced_memory(segment, memory), found)
    assert all(torch.equal(state[name], STATE[name]) for name in state)
    assert {name: t.tolist() for name, t in found.items()} == {
        name: t.tolist() for name, t in memory.items()
    }


def test_a_unit_that_nobody_gives_back_stays_as_it_was() -> None:
    segment = listed_segment(GRAPH, 1, 1, [1, 4], [0, 2])
    state = {"3.weight": STATE["3.weight"].clone()}
    place_state(segment, {"3.weight": torch.zeros(2, 2)}, state)
    expected = STATE["3.weight"].clone()
    expected[torch.tensor([1, 4])[:, None], torch.tensor([0, 2])] = 0.0
    assert torch.equal(state["3.weight"], expected)
    with pytest.raises(WeftError, match=r"3\.weight came back in shape \(2, 3\), not \(2, 2\)"):
        place_state(segment, {"3.weight": torch.zeros(2, 3)}, state)


@settings(deadline=None, max_examples=15)
@given(st.permutations(range(6)), st.permutations(range(5)), st.integers(1, 4), st.booleans())
def test_channels_in_any_order_are_the_convolution_and_what_reads_it(
    columns: list[int], units: list[int], cut: int, viewed: bool
) -> None:
    torch.manual_seed(2)
    graph, state = chain(viewed)
    assert unit_widths(graph) == (6, 5, 4)
    h = torch.rand(3, 6, 4, 4)
    with torch.no_grad():
        middle = CHAIN[3:6](h)
        expected = torch.relu(CHAIN[7](middle.flatten(1)))
        ends = ((0, cut), (cut, 5))
        maps = [part(graph, state, 1, h[:, columns], units[a:b], columns) for a, b in ends]
        torch.testing.assert_close(torch.cat(maps, 1), middle[:, units])
        found = part(graph, state, 2, middle[:, units], [3, 1], units)
    torch.testing.assert_close(found, expected[:, [3, 1]])


def test_channels_and_their_places_come_back_to_where_they_were() -> None:
    graph, mine = chain(viewed=False)
    home = {name: torch.zeros_like(tensor) for name, tensor in mine.items()}
    for layer, before, width in ((0, [], 6), (1, [5, 0, 3, 1, 2, 4], 5), (2, [4, 2, 0, 1, 3], 4)):
        for units in ([1, 3], [u for u in range(width) if u not in (1, 3)]):
            segment = listed_segment(graph, layer, 1, units, before)
            place_state(segment, sliced_state(segment, mine), home)
    segment = listed_segment(graph, 3, 1, [], [2, 0, 3, 1])
    place_state(segment, sliced_state(segment, mine), home)
    assert all(torch.equal(home[name], mine[name]) for name in mine)


def test_what_cannot_be_spread_is_refused() -> None:
    norms = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(16, 2))
    with pytest.raises(InputError, match=r"spread by units: .* has weights or mixes channels"):
        unit_widths(capture(norms, torch.zeros(2, 3, 4, 4), name="norms"))
    batch_norms = capture(zoo.build("cnn5"), torch.zeros(2, 3, 32, 32), name="cnn5")
    assert len(unit_widths(batch_norms)) == len(batch_norms.layers) - 1
    groups = nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(), nn.Linear(16, 2))
    with pytest.raises(InputError, match=r"spread by units: .* reads its channels in groups"):
        unit_widths(capture(groups, torch.zeros(2, 4, 4, 4), name="groups"))
    with pytest.raises(InputError, match="mode model needs one fully connected operator"):
        unit_widths(capture(CHAIN[:5], torch.zeros(2, 3, 8, 8), name="maps"))
    soft = nn.Sequential(nn.Linear(4, 4), nn.Softmax(1), nn.Linear(4, 2))
    with pytest.raises(InputError, match=r"cannot be spread by units: .* needs the whole vector"):
        unit_widths(capture(soft, torch.zeros(2, 4), name="soft"))
    with pytest.raises(InputError, match="one layer"):
        unit_widths(capture(nn.Linear(4, 2), torch.zeros(2, 4), name="one"))
