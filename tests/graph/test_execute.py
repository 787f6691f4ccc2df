"""A graph from elsewhere runs nothing that is not on the list; optimizers; measuring."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
import torch
from torch import nn
from torch.nn import functional

from weft.errors import InputError
from weft.graph.capture.module import capture, capture_loss, state_of
from weft.graph.execute import Runner
from weft.graph.measure import measure
from weft.graph.network import DType, Graph, Infinite, Node, Ref, decode, encode
from weft.graph.optimizers.optimizer import Optimizer, load_state_tensors, state_tensors


@pytest.fixture
def graph() -> tuple[Graph, nn.Module]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    return capture(module, torch.zeros(2, 4)), module


def spoiled(graph: Graph, change: Callable[[Node], Node]) -> Graph:
    """The graph with its last node changed, as it would come from the network."""
    layer = graph.layers[-1]
    nodes = [*layer.nodes[:-1], change(layer.nodes[-1])]
    layers = [*graph.layers[:-1], msgspec.structs.replace(layer, nodes=nodes)]
    return decode(encode(msgspec.structs.replace(graph, layers=layers)))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda n: msgspec.structs.replace(n, op="os.system"), "os.system"),
        (lambda n: msgspec.structs.replace(n, op="aten.from_file.default"), "from_file"),
        (lambda n: msgspec.structs.replace(n, args=[*n.args, DType("object")]), "object"),
        (lambda n: msgspec.structs.replace(n, args=[Infinite("1e3"), *n.args[1:]]), "1e3"),
        (lambda n: msgspec.structs.replace(n, args=[Ref("ghost"), *n.args[1:]]), "ghost"),
    ],
)
def test_a_graph_with_something_unknown_in_it_is_refused_before_anything_runs(
    graph: tuple[Graph, nn.Module], change: Callable[[Node], Node], says: str
) -> None:
    network, module = graph
    with pytest.raises(InputError, match=says):
        Runner(spoiled(network, change).segment(0, 1), state_of(module))


@pytest.mark.parametrize("rule", [
    Optimizer("sgd", 0.1), Optimizer("momentum", 0.1), Optimizer("adam", 0.01),
    Optimizer("adamw", 0.01, weight_decay=0.1),
], ids=lambda rule: rule.name)  # fmt: skip
def test_an_optimizer_goes_on_from_its_saved_memory(rule: Optimizer) -> None:
    def named() -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        return {n: torch.randn(3).requires_grad_() for n in ("a.weight", "b")}

    def step(parameters: dict[str, torch.Tensor], optimizer: torch.optim.Optimizer, n: int) -> None:
        for tensor in parameters.values():
            tensor.grad = torch.full((3,), 0.1 * n) * tensor.detach()
        optimizer.step()

    straight = named()
    whole = rule.build(list(straight.values()))
    for n in range(6):
        step(straight, whole, n)
    first = named()
    before = rule.build(list(first.values()))
    for n in range(3):
        step(first, before, n)
    saved = {n: t.clone() for n, t in state_tensors(before, first).items()}
    then = {n: t.detach().clone().requires_grad_() for n, t in first.items()}
    after = rule.build(list(then.values()))
    load_state_tensors(after, then, {**saved, "elsewhere/exp_avg": torch.zeros(3)})
    for n in range(3, 6):
        step(then, after, n)
    assert all(torch.equal(straight[n], then[n]) for n in straight)
    if rule.name == "adam":
        assert set(saved) == {
            f"{n}/{key}" for n in first for key in ("exp_avg", "exp_avg_sq", "step")
        }


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("batch", [1, 8])
def test_measuring_gives_a_time_for_every_layer_and_leaves_the_weights_alone(
    graph: tuple[Graph, nn.Module], training: bool, batch: int
) -> None:
    network, module = graph
    before = {n: t.clone() for n, t in module.state_dict().items()}
    with_loss = capture_loss(network, functional.mse_loss, torch.zeros(2, 2))
    times = measure(with_loss, state_of(module), batch=batch, repeats=2, training=training)
    for found in (times.forward_s, times.backward_s, times.update_s, times.forward_call_s,
                  times.backward_call_s):  # fmt: skip
        assert len(found) == len(network.layers)
        assert all(t >= 0 for t in found)
    assert sum(times.forward_s) + sum(times.forward_call_s) > 0
    assert all(torch.equal(before[n], t) for n, t in module.state_dict().items())
    with pytest.raises(InputError, match="batch 0"):
        measure(network, state_of(module), batch=0)


def test_a_dropout_is_not_called_in_inference() -> None:
    module, x = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2)), torch.randn(3, 4)
    graph = capture(module, x)
    runner = Runner(graph.segment(0, len(graph.layers) - 1), state_of(module))
    calls = {mode: [step.function for step in steps] for mode, steps in runner._steps.items()}
    assert len(calls[True]) == len(calls[False]) + 1
    answer = runner.forward({graph.inputs[0]: x})[graph.output]
    assert torch.equal(answer, module.eval()(x))
