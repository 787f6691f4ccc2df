"""Listed units of dense layers: together they are the layer, and their weights find their way home."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from weft import zoo
from weft.errors import InputError, WeftError
from weft.graph.capture import capture, state_of
from weft.graph.execute import Runner
from weft.graph.sliced_state import place_state, sliced_memory, sliced_state
from weft.graph.unit_lists import listed_segment, unit_widths

torch.manual_seed(0)
MODEL = nn.Sequential(
    nn.Flatten(), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 3)
)
GRAPH = capture(MODEL, torch.zeros(2, 2, 3), name="small")
STATE = {name: tensor.detach() for name, tensor in state_of(MODEL).items()}


def run(layer: int, x: Tensor, units: list[int], columns: list[int]) -> Tensor:
    segment = listed_segment(GRAPH, layer, 1, units, columns)
    runner = Runner(segment, sliced_state(segment, STATE))
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


def test_what_cannot_be_spread_is_refused() -> None:
    lenet = capture(zoo.build("lenet5"), torch.zeros(2, 1, 28, 28), name="lenet5")
    with pytest.raises(InputError, match="mode model needs one fully connected operator"):
        unit_widths(lenet)
    soft = nn.Sequential(nn.Linear(4, 4), nn.Softmax(1), nn.Linear(4, 2))
    with pytest.raises(InputError, match=r"cannot be spread by units: .* needs the whole vector"):
        unit_widths(capture(soft, torch.zeros(2, 4), name="soft"))
    with pytest.raises(InputError, match="one layer"):
        unit_widths(capture(nn.Linear(4, 2), torch.zeros(2, 4), name="one"))
