"""A captured network is the network: whole, cut anywhere, at any batch size, through JSON."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from weft.errors import InputError
from weft.graph.capture.module import capture, capture_loss, state_of
from weft.graph.execute import Runner
from weft.graph.network import decode, encode
from weft.graph.sequence import in_sequence

Pieces = Callable[..., Tensor]
Network = tuple[nn.Module, Tensor]


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_cut_at_any_place_it_computes_what_the_module_computes(
    network: Network, in_pieces: Pieces, training: bool
) -> None:
    module, x = network
    graph, state = capture(module, x[:2]), state_of(module)
    with torch.no_grad():
        expected = copy.deepcopy(module).train(training)(x)
    assert len(graph.layers) >= 3
    for m in range(1, len(graph.layers)):
        close(in_pieces(graph, state, x, [m], training=training), expected)
    every = list(range(1, len(graph.layers)))
    close(in_pieces(graph, state, x, every, training=training), expected)


@pytest.mark.parametrize("captured_with", [1, 2])
def test_the_batch_size_at_capture_does_not_matter(
    network: Network, in_pieces: Pieces, captured_with: int
) -> None:
    module, x = network
    graph = capture(module, x[:captured_with])
    module.eval()
    for batch in (1, 2, 7):
        with torch.no_grad():
            expected = module(x[:batch])
        close(in_pieces(graph, state_of(module), x[:batch], [1]), expected)


def test_the_graph_survives_json_and_runs_the_same(network: Network, in_pieces: Pieces) -> None:
    module, x = network
    graph = capture_loss(capture(module, x), nn.CrossEntropyLoss(), torch.zeros(7).long())
    again = decode(encode(graph))
    assert again == graph
    assert encode(again) == encode(graph)
    args = (state_of(module), x, [1, 2])
    assert torch.equal(in_pieces(graph, *args), in_pieces(again, *args))


def test_gradients_over_a_cut_are_those_of_the_module(network: Network) -> None:
    module, x = network
    graph, state = capture(module, x), state_of(module)
    reference = copy.deepcopy(module).train()
    reference(x).square().sum().backward()
    own = {name: tensor.clone() for name, tensor in state.items()}
    end = len(graph.layers)
    left, right = Runner(graph.segment(0, 0), own), Runner(graph.segment(1, end - 1), own)
    sent = left.forward({graph.inputs[0]: x}, training=True)
    received = {n: t.detach().requires_grad_() for n, t in sent.items()}
    right.forward(received, training=True)[graph.output].square().sum().backward()
    crossed = [n for n, t in sent.items() if t.requires_grad]  # the input may cross as well
    torch.autograd.backward([sent[n] for n in crossed], [received[n].grad for n in crossed])
    for name, parameter in reference.named_parameters():
        gradient = own[name].grad
        assert gradient is not None
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-4, atol=1e-5)


def test_capture_leaves_the_module_as_it_was(network: Network) -> None:
    module, x = network
    module.eval()
    before = {n: t.clone() for n, t in module.state_dict().items()}
    capture(module, x)
    assert not module.training
    assert all(torch.equal(before[n], t) for n, t in module.state_dict().items())


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.body = nn.Embedding(11, 6), nn.Linear(6, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight
        self.after = nn.Linear(11, 4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.after(self.head(torch.relu(self.body(self.embed(x)))))
        return result


def test_a_tied_parameter_is_in_one_place_and_crosses_cuts_as_a_value(in_pieces: Pieces) -> None:
    torch.manual_seed(0)
    module, x = Tied(), torch.randint(0, 11, (5, 3))
    graph = capture(module, x)
    holders = [i for i, layer in enumerate(graph.layers) if "embed.weight" in layer.state]
    assert len(holders) == 1
    assert "head.weight" not in graph.state
    assert len(graph.layers) == 4
    assert [m for m in range(5) if "embed.weight@tied" in graph.cut(m)] == [1, 2]
    for cuts in ([1], [2], [3], [1, 2, 3]):
        close(in_pieces(graph, state_of(module), x, cuts), module(x).detach())
    again = in_sequence(graph)
    close(in_pieces(again, state_of(module), x, [1, 2]), module(x).detach())


class Twice(nn.Module):
    """The same tensor is changed in place under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        y = h.relu_()
        h.add_(1.0)
        result: Tensor = self.second(y) + y
        return result


def test_a_change_in_place_is_seen_under_every_name_of_the_tensor(in_pieces: Pieces) -> None:
    torch.manual_seed(0)
    module, x = Twice(), torch.randn(3, 4)
    close(in_pieces(capture(module, x), state_of(module), x, [1]), module(x).detach())


def test_batch_norm_keeps_the_statistics_that_eager_training_keeps(batch_norms: nn.Module) -> None:
    torch.manual_seed(1)
    batches = [torch.randn(6, 1, 5, 5) for _ in range(3)]
    graph = capture(batch_norms, batches[0])
    state = {name: tensor.clone() for name, tensor in state_of(batch_norms).items()}
    runners = [Runner(graph.segment(i, i), state) for i in range(len(graph.layers))]
    batch_norms.train()
    for x in batches:
        batch_norms(x)
        values = {graph.inputs[0]: x}
        for runner in runners:
            values = runner.forward(values, training=True)
    buffers = dict(batch_norms.named_buffers())
    assert buffers["one.1.num_batches_tracked"] == 3
    for name, expected in buffers.items():
        close(state[name], expected)
    frozen = {name: state[name].clone() for name in buffers}
    for runner in runners[:1]:
        runner.forward({graph.inputs[0]: batches[0]}, training=False)
    assert all(torch.equal(frozen[name], state[name]) for name in frozen)


def test_dropout_follows_the_seed_and_not_the_split(
    random_network: Network, in_pieces: Pieces
) -> None:
    module, x = random_network
    graph, state = capture(module, x), state_of(module)
    end = len(graph.layers)
    whole = in_pieces(graph, state, x, [], training=True, seed=3)
    for cuts in ([1], [end - 1], list(range(1, end))):
        torch.manual_seed(len(cuts))  # what the process drew before does not count
        assert torch.equal(in_pieces(graph, state, x, cuts, training=True, seed=3), whole)
    assert not torch.equal(in_pieces(graph, state, x, [1], training=True, seed=4), whole)
    with torch.no_grad():
        close(in_pieces(graph, state, x, [1], seed=3), copy.deepcopy(module).eval()(x))


class Unknown(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.matrix_exp(x)  # the line that the error must name


class DataDependent(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:  # here as well
            return x * 2
        return x


class ViewChanged(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        y.view(-1).add_(1.0)
        return y


def line_of(text: str) -> int:
    with open(__file__) as file:
        return next(i for i, line in enumerate(file, start=1) if text in line)


def test_an_unknown_operator_is_named_with_its_line() -> None:
    with pytest.raises(InputError, match=r"matrix_exp") as caught:
        capture(Unknown(), torch.zeros(2, 3, 3))
    assert f"test_capture.py, line {line_of('the line that the error must name')}" in str(
        caught.value
    )


def test_control_flow_that_depends_on_data_is_named_with_its_line() -> None:
    with pytest.raises(InputError) as caught:
        capture(DataDependent(), torch.zeros(2, 3))
    assert f"test_capture.py, line {line_of('# here as well')}" in str(caught.value)


def test_a_view_that_is_changed_in_place_is_captured() -> None:
    x = torch.randn(2, 3)
    graph = capture(ViewChanged(), x)
    runner = Runner(graph.segment(0, len(graph.layers) - 1), {})
    assert torch.equal(runner.forward({graph.inputs[0]: x})[graph.output], ViewChanged()(x))
    with pytest.raises(InputError, match="no batch dimension"):
        capture(nn.Identity(), torch.tensor(1.0))


def test_a_tensor_that_a_network_does_not_own_is_refused() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 5000)
            self.scale = torch.rand(5000)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x) * self.scale

    with pytest.raises(
        InputError, match=r"scaled uses tensors \(of shape \(5000,\)\).*register_buffer"
    ):
        capture(Scaled(), torch.zeros(2, 4))


def test_what_cannot_be_captured_is_told_once_and_by_the_error(
    capfd: pytest.CaptureFixture[str],
) -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.fc(x)
            return y if y.sum() > 0 else -y

    with pytest.raises(InputError, match="branching cannot be captured"):
        capture(Branching(), torch.zeros(2, 4))
    assert capfd.readouterr() == ("", "")


class Masked(nn.Module):
    """Three layers that read one mask of n x n places, which follows from n numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor, length: Tensor) -> Tensor:
        places = torch.arange(40)
        mask = (places[None, :, None] < length[:, None]) & (places[None, None] < length[:, None])
        for part in self.parts:
            x = torch.where(mask, 0.02, 0.0) @ torch.relu(part(x))
        return x


def test_a_mask_is_rebuilt_in_each_layer_and_never_sent() -> None:
    torch.manual_seed(0)
    module = Masked()
    sample = (torch.randn(3, 40, 4), torch.tensor([[3], [40], [7]]))
    graph = capture(module, sample)
    assert len(graph.layers) == 3
    values = dict(zip(graph.inputs, sample, strict=True))
    for n in range(3):
        assert all(graph.values[name].bytes < 40 * 40 for name in graph.cut(n))
        values = Runner(graph.segment(n, n), state_of(module)).forward(values)
    close(values[graph.output].detach(), module(*sample).detach())
