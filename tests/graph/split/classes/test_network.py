"""Decoupled networks compute what the dense one did, in parts that go together again."""

from __future__ import annotations

import msgspec
import pytest
import torch
from torch import Tensor, nn

from weft import zoo
from weft.errors import InputError
from weft.graph.capture.module import capture_loss, state_of
from weft.graph.execute import Runner
from weft.graph.network import Ref
from weft.graph.split.classes.averaged import averaged
from weft.graph.split.classes.calibrate import calibrate, reestimate_norms
from weft.graph.split.classes.decouple import (
    Captured,
    by_importance,
    captured,
    decouple,
    numbers,
    score_filters,
)
from weft.graph.split.classes.network import DecoupledNet, compose
from weft.zoo.chains import cnn5

X = torch.randn(20, 3, 32, 32, generator=torch.Generator().manual_seed(0))
Y = torch.arange(20) % 10


@pytest.fixture(scope="module")
def dense() -> Captured:
    """A small network whose batch norms have seen something."""
    torch.manual_seed(0)
    net = cnn5((3, 32, 32), 10, width=4)
    with torch.no_grad():
        for _ in range(20):
            net(X + torch.randn(20, 3, 1, 1))
        for layer in net.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.weight.uniform_(0.5, 1.5)
                layer.bias.normal_(0, 0.2)
    return captured(net, X[:2])


@pytest.fixture(scope="module")
def scores(dense: Captured) -> list[Tensor]:
    return score_filters(dense, X, Y, last=3)


@pytest.fixture(scope="module")
def uneven(dense: Captured, scores: list[Tensor]) -> DecoupledNet:
    """Classes of two sizes, so that there are two banks."""
    net = decouple(
        dense, scores, last=3, keep=[[3, 4, 5] if c % 3 else [2, 2, 2] for c in range(10)]
    )
    return net.eval()


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "shape", "last"),
    [("cnn5", (3, 32, 32), 3), ("alexnet", (3, 64, 64), 3), ("vgg16", (3, 32, 32), 6)],
)
def test_keeping_all_filters_reproduces_the_dense_logits(
    name: str, shape: tuple[int, ...], last: int
) -> None:
    torch.manual_seed(1)
    net = averaged(zoo.build(name, shape, 2), 2)
    x = torch.randn(4, *shape)
    net(x)
    net.eval()
    whole = captured(net, x[:2])
    scored = score_filters(whole, x, torch.arange(4) % 2, last=last, how="random")
    again = decouple(whole, scored, last=last, keep=1.0).eval()
    expected = net(x)
    assert (again(x) - expected).abs().max() <= 1e-5 * max(1.0, float(expected.abs().max()))
    assert expected.std() > 0


@torch.no_grad()
def test_a_sub_model_gives_exactly_the_whole_model_s_logits_for_its_classes(
    uneven: DecoupledNet,
) -> None:
    wide = uneven.double()
    x = X.double()
    for classes in ([7, 2, 3], [0], [5, 1], list(range(10))):
        part = wide.sub_model(classes).double().eval()
        assert part.classes == tuple(classes)
        assert (part(x) - wide(x)[:, classes]).abs().max() < 1e-12
    uneven.float()


@torch.no_grad()
def test_untouched_sub_models_recompose_to_the_network_bit_for_bit(uneven: DecoupledNet) -> None:
    parts = [uneven.sub_model(held) for held in ((4, 5, 6, 7), (8, 9, 0, 1), (2, 3))]
    found = {c: part.structure(c) for part in parts for c in part.classes}
    again = compose(uneven.blueprint, parts[0].shared_state(), {c: found[c] for c in range(10)})
    for (name, a), (other, b) in zip(
        uneven.state_dict().items(), again.state_dict().items(), strict=True
    ):
        assert name == other
        assert torch.equal(a, b)
    assert torch.equal(uneven(X), again.eval()(X))


def test_there_is_one_grouped_computation_per_size_of_structure(
    dense: Captured, scores: list[Tensor], uneven: DecoupledNet
) -> None:
    even = decouple(dense, scores, last=3, keep=0.25)
    assert [len(held) for held in even.bank_classes] == [10]
    assert sorted(len(held) for held in uneven.bank_classes) == [4, 6]
    nodes = [n for layer in even.graph.layers for n in layer.nodes if "conv2d" in n.op]
    assert len(nodes) == 6  # five, and the logits
    assert [n.args[6] for n in nodes[2:]] == [1, 10, 10, 10]


@pytest.mark.parametrize("training", [True, False])
def test_a_node_computes_what_the_sub_model_does(uneven: DecoupledNet, training: bool) -> None:
    part = uneven.sub_model([1, 3, 4])
    graph = capture_loss(part.graph, nn.CrossEntropyLoss(), Y[:2])
    state = {name: tensor.clone() for name, tensor in state_of(part).items()}
    runner = Runner(graph.segment(0, len(graph.layers) - 1), state)
    got = runner.forward({graph.inputs[0]: X}, training=training)[graph.output]
    assert torch.equal(got, part.train(training)(X))
    if training:  # and its running statistics are the module's
        for name, tensor in part.named_buffers():
            assert torch.equal(state[name], tensor)


def test_structures_are_put_back_in_place(uneven: DecoupledNet) -> None:
    part = uneven.sub_model([1, 3])
    before = part.structure(3)
    pointers = [p.data_ptr() for p in part.parameters()]
    part.put_structure(1, {k: t + 1 for k, t in part.structure(1).items()})
    assert [p.data_ptr() for p in part.parameters()] == pointers
    for key, tensor in part.structure(3).items():
        assert torch.equal(tensor, before[key])
    for key, tensor in part.structure(1).items():
        assert torch.equal(tensor, uneven.structure(1)[key] + 1)


def test_activation_scores_prefer_filters_that_only_one_class_excites() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 2, 1), nn.ReLU(), nn.Conv2d(2, 3, 1, bias=False), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2),
    )  # fmt: skip
    first, second = net[0], net[2]
    assert isinstance(first, nn.Conv2d)
    assert isinstance(second, nn.Conv2d)
    with torch.no_grad():
        first.weight.copy_(torch.tensor([1.0, -1.0]).view(2, 1, 1, 1))
        assert first.bias is not None
        first.bias.zero_()
        # filter 0 follows positive images, filter 1 negative ones, filter 2 both
        second.weight.copy_(torch.tensor([[1.0, 0], [0, 1.0], [1.0, 1.0]]).view(3, 2, 1, 1))
    x = torch.cat([torch.ones(4, 1, 2, 2), -torch.ones(4, 1, 2, 2)])
    y = torch.tensor([0] * 4 + [1] * 4)
    whole = captured(net, x[:2])
    scored = score_filters(whole, x, y, last=1)[0]
    assert torch.allclose(scored, torch.tensor([[1.0, 0, 0.5], [0, 1.0, 0.5]]))
    taylor = score_filters(whole, x, y, last=1, how="taylor")[0]
    assert taylor[0, 1] == taylor[1, 0] == 0
    assert taylor[0, 0] > 0


def test_random_scores_depend_on_the_seed_alone(dense: Captured) -> None:
    one, same, other = (
        score_filters(dense, X, Y, last=2, how="random", seed=s)[0] for s in (1, 1, 2)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@torch.no_grad()
def test_reestimated_statistics_are_those_of_the_samples(
    dense: Captured, scores: list[Tensor]
) -> None:
    net = decouple(dense, scores, last=3, keep=0.25).eval()
    shared = net.shared_state()
    reestimate_norms(net, X, batch=20)
    segment = net.graph.segment(0, 2)  # up to the first decoupled layer, before its batch norm
    node = next(n for n in segment.nodes if n.op.startswith("aten.batch_norm") and "@" in n.name)
    read = node.args[0]
    assert isinstance(read, Ref)
    asked = msgspec.structs.replace(segment, outputs={read.name: net.graph.values[read.name]})
    sums = Runner(asked, net.tensors()).forward({net.graph.inputs[0]: X})[read.name]
    mean = net.tensors()["banks.0.norm3.running_mean"]
    assert torch.allclose(mean, sums.mean((0, 2, 3)), atol=1e-5)
    assert all(torch.equal(t, shared[k]) for k, t in net.shared_state().items())


def test_calibration_moves_only_the_logits_scale_and_bias(uneven: DecoupledNet) -> None:
    net = uneven.sub_model(range(10)).eval()
    before = net.structures()
    # a class whose logits are far too large: everything is taken for it
    loud = net.structure(4)
    loud["fc.bias"] += 5
    net.put_structure(4, loud)
    assert (net(X).argmax(1) == 4).all()
    calibrate(net, X, Y, steps=150)
    with torch.no_grad():
        loss = nn.functional.cross_entropy(net(X), Y)
    assert loss < 2.5  # ten classes by guessing: 2.3
    for label, state in net.structures().items():
        same = [key for key in state if not key.startswith("fc")]
        assert all(torch.equal(state[key], before[label][key]) for key in same)


def test_labels_become_columns_and_foreign_ones_are_refused(uneven: DecoupledNet) -> None:
    part = uneven.sub_model([7, 2])
    assert part.local_labels(torch.tensor([2, 7, 7])).tolist() == [1, 0, 0]
    with pytest.raises(InputError, match=r"classes \[3, 9\].*holds \[7, 2\]"):
        part.local_labels(torch.tensor([2, 9, 3]))


def test_what_cannot_be_decoupled_says_why(dense: Captured, scores: list[Tensor]) -> None:
    with pytest.raises(InputError, match="without convolutions"):
        averaged(zoo.build("mlp"), 10)
    with pytest.raises(InputError, match=r"last = 5.*1 to 4"):
        decouple(dense, scores, last=5, keep=0.1)
    with pytest.raises(InputError, match="keep = 0"):
        numbers(scores, 0.0)
    with pytest.raises(InputError, match="one row for each of 10 classes"):
        numbers(scores, [[1, 2, 3]])
    net = decouple(dense, scores, last=3, keep=0.25)
    with pytest.raises(InputError, match="class 11 has no structure here"):
        net.sub_model([11])
    with pytest.raises(InputError, match="each may be named once"):
        net.sub_model([1, 1])
    with pytest.raises(InputError, match="'magic' is not one of activation, taylor, random"):
        score_filters(dense, X, Y, last=3, how="magic")  # type: ignore[arg-type]


def test_classes_with_spread_out_activity_get_more_filters(dense: Captured) -> None:
    scores = [torch.zeros(9, 16) for _ in range(3)]
    for layer in scores:
        for label in range(9):
            layer[label, : label + 1] = 1.0  # class c needs c + 1 filters
    rows = by_importance(scores, [0.5, 0.25, 0.25])
    assert rows == [[6, 3, 3]] * 3 + [[8, 4, 4]] * 3 + [[10, 5, 5]] * 3
    assert len({tuple(row) for row in rows}) == 3  # three banks at the most
