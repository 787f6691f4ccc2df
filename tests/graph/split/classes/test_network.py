"""Decoupled networks compute what the dense one did, in parts that go together again."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from weft.runtime.run.train_peers import with_average

from weft import zoo
from weft.errors import InputError
from weft.graph.capture import capture, capture_loss, state_of
from weft.graph.execute import Runner
from weft.graph.split.classes.calibrate import calibrate, reestimate_norms
from weft.graph.split.classes.decouple import (
    averaged,
    by_importance,
    check_chain,
    decouple,
    numbers,
    read_chain,
    score_filters,
)
from weft.graph.split.classes.network import Bank, DecoupledNet, compose
from weft.zoo.chains import cnn5

X = torch.randn(20, 3, 32, 32, generator=torch.Generator().manual_seed(0))
Y = torch.arange(20) % 10


@pytest.fixture(scope="module")
def dense() -> nn.Sequential:
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
    return net.eval()


@pytest.fixture(scope="module")
def scores(dense: nn.Sequential) -> list[Tensor]:
    return score_filters(dense, X, Y, last=3)


@pytest.fixture(scope="module")
def uneven(dense: nn.Sequential, scores: list[Tensor]) -> DecoupledNet:
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
    scored = score_filters(net, x, torch.arange(4) % 2, last=last, how="random")
    again = decouple(net, scored, last=last, keep=1.0).eval()
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
    dense: nn.Sequential, scores: list[Tensor], uneven: DecoupledNet
) -> None:
    even = decouple(dense, scores, last=3, keep=0.25)
    assert [len(held) for held in even.bank_classes] == [10]
    assert sorted(len(held) for held in uneven.bank_classes) == [4, 6]
    bank = even.banks[0]
    assert isinstance(bank, Bank)
    groups = [layer.groups for layer in bank.modules() if isinstance(layer, nn.Conv2d)]
    assert groups == [1, 10, 10, 10]
    graph = capture(even, X[:2])
    convolutions = [n for layer in graph.layers for n in layer.nodes if "conv2d" in n.op]
    assert len(convolutions) == 6  # five, and the logits


@pytest.mark.parametrize("training", [True, False])
def test_a_sub_model_can_be_captured_and_run_by_a_node(
    uneven: DecoupledNet, training: bool
) -> None:
    part = uneven.sub_model([1, 3, 4])
    graph = capture_loss(capture(part, X[:2], name="part"), nn.CrossEntropyLoss(), Y[:2])
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
    scored = score_filters(net, x, y, last=1)[0]
    assert torch.allclose(scored, torch.tensor([[1.0, 0, 0.5], [0, 1.0, 0.5]]))
    taylor = score_filters(net, x, y, last=1, how="taylor")[0]
    assert taylor[0, 1] == taylor[1, 0] == 0
    assert taylor[0, 0] > 0


def test_random_scores_depend_on_the_seed_alone(dense: nn.Sequential) -> None:
    one, same, other = (
        score_filters(dense, X, Y, last=2, how="random", seed=s)[0] for s in (1, 1, 2)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@torch.no_grad()
def test_reestimated_statistics_are_those_of_the_samples(
    dense: nn.Sequential, scores: list[Tensor]
) -> None:
    net = decouple(dense, scores, last=3, keep=0.25).eval()
    shared = net.shared_state()
    reestimate_norms(net, X, batch=20)
    bank = net.banks[0]
    assert isinstance(bank, Bank)
    sums = bank.layers[:2](net.shared(X))  # the convolution and its pooling
    norm = bank.layers.get_submodule("conv3_norm")
    assert torch.allclose(norm.running_mean, sums.mean((0, 2, 3)), atol=1e-5)
    assert all(torch.equal(t, shared[k]) for k, t in net.shared_state().items())


def test_calibration_moves_only_the_logits_scale_and_bias(uneven: DecoupledNet) -> None:
    net = uneven.sub_model(range(10)).eval()
    before = net.structures()
    # a class whose logits are far too large: everything is taken for it
    loud = net.structure(4)
    loud["head.bias"] += 5
    net.put_structure(4, loud)
    assert (net(X).argmax(1) == 4).all()
    calibrate(net, X, Y, steps=150)
    with torch.no_grad():
        loss = nn.functional.cross_entropy(net(X), Y)
    assert loss < 2.5  # ten classes by guessing: 2.3
    for label, state in net.structures().items():
        same = [key for key in state if not key.startswith("head")]
        assert all(torch.equal(state[key], before[label][key]) for key in same)


def test_labels_become_columns_and_foreign_ones_are_refused(uneven: DecoupledNet) -> None:
    part = uneven.sub_model([7, 2])
    assert part.local_labels(torch.tensor([2, 7, 7])).tolist() == [1, 0, 0]
    with pytest.raises(InputError, match=r"classes \[3, 9\].*holds \[7, 2\]"):
        part.local_labels(torch.tensor([2, 9, 3]))


def test_what_cannot_be_decoupled_says_why(dense: nn.Sequential, scores: list[Tensor]) -> None:
    with pytest.raises(InputError, match="ends in Flatten, Linear"):
        read_chain(zoo.build("vgg-small"))
    with pytest.raises(InputError, match="cannot be decoupled"):
        read_chain(zoo.build("resnet8"))
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


def test_classes_with_spread_out_activity_get_more_filters(dense: nn.Sequential) -> None:
    scores = [torch.zeros(9, 16) for _ in range(3)]
    for layer in scores:
        for label in range(9):
            layer[label, : label + 1] = 1.0  # class c needs c + 1 filters
    rows = by_importance(scores, [0.5, 0.25, 0.25])
    assert rows == [[6, 3, 3]] * 3 + [[8, 4, 4]] * 3 + [[10, 5, 5]] * 3
    assert len({tuple(row) for row in rows}) == 3  # three banks at the most


def ending(*end: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.ReLU(), *end)


def usual() -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 10)]


class Twice(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = super().forward(x)
        return 2 * result


class Doubled(nn.ReLU):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    ("net", "says"),
    [
        (Twice(*ending(*usual())), "a Twice cannot be decoupled"),
        (
            nn.Sequential(Twice(nn.Conv2d(3, 4, 3), nn.ReLU()), nn.Conv2d(4, 6, 3), *usual()),
            "Twice",
        ),
        (nn.Sequential(nn.Conv2d(3, 4, 3), Doubled(), nn.Conv2d(4, 6, 3), *usual()), "Doubled"),
        (ending(nn.Flatten(), nn.AdaptiveAvgPool2d(1), nn.Linear(1, 10)), "ends in Flatten, Adapt"),
        (ending(nn.AdaptiveAvgPool2d(1), nn.Sigmoid(), nn.Flatten(), nn.Linear(6, 10)), "Sigmoid"),
        (ending(*usual(), nn.Softmax(1)), "Softmax"),
        (ending(*usual(), nn.Unflatten(1, (10, 1, 1)), nn.Conv2d(10, 10, 1)), "Unflatten"),
    ],
)
def test_a_network_that_reading_would_change_is_refused(net: nn.Module, says: str) -> None:
    with pytest.raises(InputError, match=says):
        score_filters(with_average(net, 10, X[:2]), X, Y, last=1)


def test_a_flatten_that_mixes_samples_is_refused() -> None:
    net = ending(nn.AdaptiveAvgPool2d(1), nn.Flatten(2), nn.Linear(1, 10))
    with pytest.raises(InputError, match="start_dim=2"):
        read_chain(net)


def test_weights_in_two_places_are_refused_and_one_activation_for_all_is_not() -> None:
    conv, relu = nn.Conv2d(3, 3, 3), nn.ReLU()
    with pytest.raises(InputError, match="several places"):
        read_chain(nn.Sequential(conv, relu, conv, relu, *usual()))
    net = nn.Sequential(conv, relu, nn.Conv2d(3, 6, 3), relu, *usual())
    assert [type(layer) for _, layer in read_chain(net).body] == [
        nn.Conv2d, nn.ReLU, nn.Conv2d, nn.ReLU,
    ]  # fmt: skip
    scores = score_filters(net.eval(), X, Y, last=1)
    torch.testing.assert_close(decouple(net, scores, last=1, keep=1.0).eval()(X), net(X))


def test_a_network_with_a_hook_does_not_compute_what_its_layers_do() -> None:
    net = ending(*usual())
    check_chain(net, X[:2])
    net.register_forward_hook(lambda module, given, result: result + 1)
    with pytest.raises(InputError, match="hooks"):
        check_chain(net, X[:2])
    assert net.training
