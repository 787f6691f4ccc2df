"""Inputs and outputs in the user's form: tuples, keywords, dicts, records; named tensors in the graph."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from weft.errors import InputError
from weft.graph.capture.module import capture, capture_loss, capture_signed, state_of
from weft.graph.execute import Runner
from weft.graph.network import Graph, Loss, Value, decode, encode
from weft.graph.sequence import in_sequence


class Answer(NamedTuple):
    logits: Tensor
    hidden: Tensor
    nothing: None = None


class Record(OrderedDict[str, Any]):
    """An output with attributes, as models of other libraries return them."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


pytree.register_pytree_node(
    Record,
    lambda record: (list(record.values()), list(record)),
    lambda values, names: Record(zip(names, values, strict=True)),
    serialized_type_name="tests.Record",
)


class Masked(nn.Module):
    """Token numbers and a boolean mask; the form of the answer is chosen."""

    def __init__(self, form: str = "dict") -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)
        self.form = form

    def forward(
        self, tokens: Tensor, *, mask: Tensor, unused: Tensor | None = None, scale: float = 1.0
    ) -> Any:
        hidden = torch.tanh(self.first(self.embed(tokens))) * scale
        hidden = self.second(hidden.masked_fill(~mask.unsqueeze(-1), 0.0))
        logits = self.head(hidden.masked_fill(~mask.unsqueeze(-1), 0.0).sum(1))
        if self.form == "dict":
            return {"logits": logits, "inner": (hidden, mask), "count": 3, "nothing": None}
        if self.form == "record":
            return Record(logits=logits, hidden=hidden)
        return Answer(logits, hidden)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 5), nn.Linear(3, 5), nn.Linear(5, 2)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.c(torch.relu(self.a(a) + self.b(b)))


TOKENS = torch.arange(20).view(4, 5) % 11
MASK = torch.arange(5).repeat(4, 1) < torch.tensor([[5], [3], [1], [4]])
INPUTS = {"tokens": TOKENS, "mask": MASK}


def ran(
    graph: Graph, module: nn.Module, inputs: dict[str, Tensor], cuts: bool
) -> dict[str, Tensor]:
    """Every output, computed in one piece or in as many as there are layers."""
    last = len(graph.layers) - 1
    spans = [(i, i) for i in range(last + 1)] if cuts else [(0, last)]
    values = {name: inputs[name] for name in graph.inputs}
    for span in spans:
        values = Runner(graph.segment(*span), state_of(module)).forward(values)
    return values


@pytest.mark.parametrize("form", ["dict", "record", "tuple"])
@pytest.mark.parametrize("cuts", [False, True], ids=["whole", "cut"])
def test_what_the_module_returns_is_rebuilt_as_it_was(form: str, cuts: bool) -> None:
    module = Masked(form).eval()
    graph, signature = capture_signed(module, INPUTS)
    assert graph.inputs == ["tokens", "mask"]
    assert len(graph.layers) == 4
    with torch.no_grad():
        expected = module(**INPUTS)
        answer = signature.rebuilt(ran(graph, module, signature.named(INPUTS), cuts))
    assert type(answer) is type(expected)
    leaves, spec = pytree.tree_flatten(answer)
    expected_leaves, expected_spec = pytree.tree_flatten(expected)
    assert spec == expected_spec
    for one, other in zip(leaves, expected_leaves, strict=True):
        assert torch.equal(one, other) if isinstance(one, Tensor) else one == other
    assert decode(encode(graph)) == graph
    if form == "record":
        assert torch.equal(answer.logits, expected.logits)


def test_a_mask_crosses_cuts_as_booleans_and_counts_its_bytes() -> None:
    graph = capture(Masked(), INPUTS)
    value = graph.values["mask"]
    assert value == Value((1, 5), "bool", 0)
    assert value.bytes == 5
    assert all("mask" in graph.cut(m) for m in range(len(graph.layers) + 1))
    assert graph.cut_bytes(0) == 5 * 8 + 5


def test_positional_inputs_come_as_a_tuple() -> None:
    module = Two().eval()
    graph, signature = capture_signed(module, (torch.zeros(2, 4), torch.zeros(2, 3)))
    a, b = torch.randn(3, 4), torch.randn(3, 3)
    with torch.no_grad():
        (answer,) = ran(graph, module, signature.named((a, b)), cuts=True).values()
        torch.testing.assert_close(answer, module(a, b), rtol=0, atol=1e-6)


def test_the_order_of_keywords_does_not_matter() -> None:
    _, signature = capture_signed(Masked(), INPUTS)
    named = signature.named({"mask": MASK, "tokens": TOKENS})
    assert named["tokens"] is TOKENS
    assert named["mask"] is MASK


def test_an_input_that_nothing_reads_is_no_input_of_the_graph() -> None:
    inputs = {**INPUTS, "unused": torch.zeros(4, 2)}
    graph, signature = capture_signed(Masked(), inputs)
    assert graph.inputs == ["tokens", "mask"]
    assert set(signature.named(inputs)) == {"tokens", "mask", "unused"}


@pytest.mark.parametrize(
    ("sample", "says"),
    [
        ({"tokens": TOKENS}, "has no mask; give it as a dict with tokens, mask"),
        ({**INPUTS, "odd": TOKENS}, "has odd, which the example does not have"),
        (TOKENS, "has no tokens, mask; give it as a dict"),
        ({"tokens": TOKENS, "mask": 3}, "holds '3', which is not a tensor"),
        ({"tokens": TOKENS, "mask": MASK[:2]}, "different numbers of samples"),
    ],
)
def test_a_sample_of_another_form_is_refused(sample: Any, says: str) -> None:
    _, signature = capture_signed(Masked(), INPUTS)
    with pytest.raises(InputError, match=says):
        signature.named(sample)


@pytest.mark.parametrize(
    ("example", "says"),
    [
        ({**INPUTS, "scale": 2.0}, "holds '2.0', which is not a tensor"),
        ({"tokens": TOKENS, "mask": MASK[:1]}, "register_buffer"),
        ({"tokens": TOKENS, "mask": torch.tensor(True)}, "no batch dimension"),
        ((), "has no tensor"),
        ("text", "give a tensor, a tuple of tensors .* or a dict"),
    ],
)
def test_an_example_that_cannot_be_divided_by_samples_is_refused(example: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        capture(Masked(), example)


# --- losses -----------------------------------------------------------------------------------------


def first_loss(output: Any, target: Any) -> Tensor:
    return functional.cross_entropy(output["logits"], target)


def both_loss(output: Any, target: Any) -> Tensor:
    hidden, _ = output["inner"]
    return functional.cross_entropy(output["logits"], target["label"]) + functional.mse_loss(
        hidden, target["hidden"]
    )


TARGETS = {"label": torch.tensor([0, 2, 1, 1]), "hidden": torch.randn(4, 5, 6)}


def loss_of(graph: Graph) -> Loss:
    assert graph.loss is not None
    return graph.loss


def test_the_graph_ends_in_the_outputs_that_the_loss_reads() -> None:
    graph, signature = capture_signed(Masked(), INPUTS)
    assert len(graph.outputs) == 3
    one = capture_loss(graph, first_loss, TARGETS["label"], signature)
    assert one.outputs == loss_of(one).reads == (graph.outputs[0],)
    two = capture_loss(graph, both_loss, TARGETS, signature)
    assert two.outputs == loss_of(two).reads == graph.outputs[:2]
    assert list(loss_of(two).targets) == ["target", "target1"]
    assert loss_of(two).target_bytes == 8 + 5 * 6 * 4
    assert set(two.cut(len(two.layers))) == set(two.outputs)


def test_a_loss_gets_what_the_module_returns_and_the_targets_in_their_form() -> None:
    module = Masked()
    graph, signature = capture_signed(module, INPUTS)
    graph = capture_loss(graph, both_loss, TARGETS, signature)
    assert (loss_of(graph).reduction, loss_of(graph).over) == ("mean", "samples")
    runner = Runner(graph.segment(0, len(graph.layers) - 1, with_loss=True), state_of(module))
    outputs = runner.forward(INPUTS)
    read = [outputs[name] for name in loss_of(graph).reads]
    loss = runner.loss(read, list(TARGETS.values()), 4)
    expected = both_loss(module(**INPUTS), TARGETS)
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-6)


def test_a_loss_of_several_outputs_that_is_no_mean_is_found_out() -> None:
    graph, signature = capture_signed(Masked(), INPUTS)

    def root(output: Any, target: Any) -> Tensor:
        return both_loss(output, target).sqrt()

    assert loss_of(capture_loss(graph, root, TARGETS, signature)).over == "batch"


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.tensor([1.0, 1.0, 1.0]))

    def forward(self, output: Any, target: Tensor) -> Tensor:
        assert isinstance(self.weight, Tensor)
        return functional.cross_entropy(output["logits"] * self.weight, target)


def test_the_buffers_of_a_loss_of_a_dict_travel_with_the_state() -> None:
    module, loss = Masked(), Weighted()
    graph, signature = capture_signed(module, INPUTS)
    graph = capture_loss(graph, loss, TARGETS["label"], signature)
    assert loss_of(graph).state == ["loss_weight"]
    assert set(graph.state) == set(state_of(module, loss))


class OwnLoss(nn.Module):
    """As models of other libraries do it: the labels are an input, the loss an output."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.body(x))
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def test_a_loss_inside_of_the_network_is_refused_with_a_way_out() -> None:
    inputs = {"x": torch.randn(4, 4), "labels": TARGETS["label"]}
    graph, signature = capture_signed(OwnLoss(), inputs)
    with pytest.raises(
        InputError, match="leave the labels out of the inputs, give them as targets"
    ):
        capture_loss(graph, lambda output, _: output["loss"], TARGETS["label"], signature)


def test_a_loss_without_a_gradient_is_refused() -> None:
    graph, signature = capture_signed(Masked(), INPUTS)

    def of_mask(output: Any, target: Tensor) -> Tensor:
        return output["inner"][1].float().mean() + target.float().mean()

    with pytest.raises(InputError, match="reads no output of the network that has a gradient"):
        capture_loss(graph, of_mask, TARGETS["label"], signature)


class Constants(nn.Module):
    """Returns a tensor that depends on neither input nor weights, and its input."""

    def __init__(self, parameter: bool = False) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)
        self.parameter = parameter

    def forward(self, x: Tensor) -> Any:
        places = torch.arange(3) * 2
        y = self.b(torch.relu(self.a(x)))
        return (y, self.a.weight) if self.parameter else (y, places, x, y)


@pytest.mark.parametrize("cuts", [False, True], ids=["whole", "cut"])
def test_constants_inputs_and_doubles_may_be_returned(cuts: bool) -> None:
    module, x = Constants().eval(), torch.randn(3, 4)
    graph, signature = capture_signed(module, x)
    with torch.no_grad():
        answer = signature.rebuilt(ran(graph, module, signature.named(x), cuts))
        for one, other in zip(answer, module(x), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def test_a_parameter_is_no_output() -> None:
    with pytest.raises(InputError, match="which is a parameter or a buffer and no result"):
        capture(Constants(parameter=True), torch.randn(3, 4))


def test_layers_in_sequence_keep_every_output() -> None:
    graph = in_sequence(capture(Masked(), INPUTS))
    assert len(graph.outputs) == 3
    assert set(graph.cut(len(graph.layers))) == set(graph.outputs)


def test_a_loss_of_an_older_version_reads_one_output_and_one_target() -> None:
    old = Loss([], ("y", "target"), "loss", Value((1,), "int64"), "mean")
    assert old.reads == ("y",)
    assert list(old.targets) == ["target"]
