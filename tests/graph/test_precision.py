"""Mixed precision: a split network computes what one process computes, and weights stay in float32."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import Tensor, nn

from weft import zoo
from weft.errors import InputError
from weft.graph import precision
from weft.graph.capture.module import capture, state_of
from weft.graph.execute import Runner
from weft.graph.network import Graph
from weft.graph.precision import check_bf16, check_precision, in_bf16
from weft.reference.mixed_precision import bf16_products


def forward(graph: Graph, state: dict[str, Tensor], x: Tensor, cuts: tuple[int, ...]) -> Tensor:
    """The output, computed part by part."""
    values = {graph.inputs[0]: x}
    ends = [0, *cuts, len(graph.layers)]
    for first, end in itertools.pairwise(ends):
        values = Runner(graph.segment(first, end - 1), state).forward(values, training=True)
    return values[graph.output]


@pytest.mark.parametrize("name", ["lenet5", "resnet8", "transformer"])
def test_parts_equal_the_eager_module_with_rounded_products(name: str) -> None:
    torch.manual_seed(0)
    shape = (3, 32, 32) if name == "resnet8" else (1, 32, 32)
    model = zoo.build(name, shape, 10).train()
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        if isinstance(part, nn.MultiheadAttention):
            part.dropout = 0.0
    graph = in_bf16(capture(model, torch.zeros(2, *shape), mode="train"))
    state = {n: t.clone() for n, t in state_of(model).items()}
    x, y = torch.rand(4, *shape), torch.randint(0, 10, (4,))
    eager = copy.deepcopy(model)
    with bf16_products():
        wanted = eager(x)
        nn.functional.cross_entropy(wanted, y).backward()
    output = forward(graph, state, x, (1, 3))
    nn.functional.cross_entropy(output, y).backward()
    assert output.dtype == torch.float32
    assert torch.equal(output, wanted)
    assert not torch.equal(wanted, model(x))  # it does round
    for path, parameter in eager.named_parameters():
        gradient = state[path].grad
        assert gradient is not None
        assert gradient.dtype == torch.float32
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-6, atol=1e-7)


def test_a_cut_carries_what_it_carried_before() -> None:
    graph = capture(zoo.build("lenet5", (1, 32, 32), 10), torch.zeros(2, 1, 32, 32))
    assert in_bf16(graph).cuts == graph.cuts


def test_other_numbers_than_float32_are_left_alone() -> None:
    graph = capture(nn.Linear(4, 2).double(), torch.zeros(2, 4, dtype=torch.float64))
    assert in_bf16(graph) == graph


def test_a_processor_without_bfloat16_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = capture(nn.Linear(4, 2), torch.zeros(2, 4))
    monkeypatch.setattr(precision, "has_bf16", lambda: False)
    check_bf16(graph.layers[0].nodes, "pi")
    with pytest.raises(
        InputError, match=r"pi: this processor has no bfloat16 .* --precision float32"
    ):
        check_bf16(in_bf16(graph).layers[0].nodes, "pi")


def test_other_words_are_refused() -> None:
    with pytest.raises(InputError, match="'fp8' is not allowed; it must be one of float32, bf16"):
        check_precision("fp8")
