"""Which networks can be taken apart by classes: those whose captured graph can, and no other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from weft import zoo
from weft.errors import InputError
from weft.graph.capture.module import capture
from weft.graph.split.classes.calibrate import calibrate, reestimate_norms
from weft.graph.split.classes.decouple import captured, decouple, score_filters
from weft.graph.split.classes.reader import read_classes

SHAPE = (3, 8, 8)
X = torch.randn(12, *SHAPE, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 4


class Residual(nn.Sequential):
    """A class derived from nn.Sequential: what it computes is more than its layers in a row."""

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = super().forward(x)
        return torch.relu(result + x)


def block(width: int) -> Residual:
    return Residual(
        nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width),
    )  # fmt: skip


def end(width: int, *before: nn.Module) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), *before, nn.Linear(width, 4)]


def residual() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), block(8), block(8), *end(8))


def depthwise() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 8, 1), nn.ReLU(),
        nn.Conv2d(8, 8, 3, groups=8), nn.BatchNorm2d(8), nn.ReLU6(), nn.Conv2d(8, 10, 1), *end(10),
    )  # fmt: skip


class Plain(nn.Module):
    """No nn.Sequential at all: squeeze and excite, a scale per channel, a concatenation, dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 6, 3, padding=1)
        self.narrow, self.wide = nn.Conv2d(6, 3, 1), nn.Conv2d(3, 6, 1)
        self.scale = nn.Parameter(torch.rand(6, 1, 1))
        self.third = nn.Conv2d(14, 5, 3, stride=2)
        self.hidden, self.norm = nn.Linear(5 * 3 * 3, 9), nn.BatchNorm1d(9)
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(9, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        y = torch.relu(self.second(x)) * self.scale
        y = y * torch.sigmoid(self.wide(torch.relu(self.narrow(y.mean((2, 3), keepdim=True)))))
        z = torch.relu(self.third(torch.cat([y, x], 1))).flatten(1)
        logits: Tensor = self.last(self.drop(torch.relu(self.norm(self.hidden(z)))))
        return logits


NETWORKS = {
    "residual": (residual, 4), "depthwise": (depthwise, 2), "plain": (Plain, 4),
    "dropout before the last layer": (
        lambda: nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 5, 3), nn.Tanh(),
                              *end(5, nn.Dropout(0.3))), 1),
    "perceptron": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 9), nn.Tanh(), nn.Linear(9, 7), nn.ReLU(),
                              nn.Linear(7, 4)), 1),
}  # fmt: skip


@pytest.fixture(params=list(NETWORKS))
def case(request: pytest.FixtureRequest) -> tuple[nn.Module, int]:
    build, last = NETWORKS[request.param]
    torch.manual_seed(0)
    net = build()
    for _ in range(3):
        net(X)
    return net.eval(), last


@torch.no_grad()
def test_keeping_all_channels_reproduces_the_logits(case: tuple[nn.Module, int]) -> None:
    net, most = case
    expected = net(X)
    assert expected.std() > 0
    for last in range(1, most + 1):
        dense = captured(net, X[:2])
        parts = decouple(dense, score_filters(dense, X, Y, last=last), last=last, keep=1.0).eval()
        torch.testing.assert_close(parts(X), expected, rtol=1e-4, atol=1e-5)


def test_structures_are_trained_apart_and_go_together_again(case: tuple[nn.Module, int]) -> None:
    net, last = case
    dense = captured(net, X[:2])
    parts = decouple(dense, score_filters(dense, X, Y, last=last), last=last, keep=0.4)
    reestimate_norms(parts, X)
    calibrate(parts, X, Y)
    part = parts.sub_model([2, 0]).eval()
    with torch.no_grad():
        torch.testing.assert_close(part(X), parts.eval()(X)[:, [2, 0]], rtol=1e-4, atol=1e-5)
    # a class's logit is its structure's alone
    part.train()
    part(X)[:, 0].sum().backward()  # type: ignore[no-untyped-call]
    grads = {n: p.grad for n, p in part.named_parameters() if n.startswith("banks.")}
    assert grads
    for grad in grads.values():
        assert grad is not None
        assert not grad.chunk(2)[1].any()
    assert any(grad is not None and grad.chunk(2)[0].any() for grad in grads.values())


def test_a_skip_connection_is_part_of_what_is_trained() -> None:
    reading = read_classes(capture(residual(), X[:2]), 2)
    # the two convolutions of the last block; the sum ties the second one's channels to shared ones
    assert reading.layers == ("3.0", "3.3", "6")
    assert reading.widths == (8, 8, 4)
    assert len(reading.picked) == 1


def test_dropout_before_the_last_layer_stays() -> None:
    build, last = NETWORKS["dropout before the last layer"]
    dense = captured(build().eval(), X[:2])
    parts = decouple(dense, score_filters(dense, X, Y, last=last), last=last, keep=1.0)
    ops = [node.op for layer in parts.graph.layers for node in layer.nodes]
    assert any(op.startswith("aten.dropout") for op in ops)
    one, two = parts(X), parts(X)
    assert not torch.equal(one, two)  # and draws anew at each minibatch
    assert torch.equal(parts.eval()(X), parts(X))


def test_lenet5_is_decoupled_with_its_own_dense_layers() -> None:
    graph = capture(zoo.build("lenet5"), torch.zeros(2, 1, 28, 28))
    reading = read_classes(graph)
    assert reading.layers == ("conv2", "fc3", "fc4", "fc5")
    assert graph.parameters == 61_706


class Attention(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x, 1)


class TwoHeads(nn.Sequential):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = super().forward(x)
        return logits, logits * 2


def test_a_network_with_two_outputs_is_refused() -> None:
    net = TwoHeads(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 6, 1), *end(6))
    with pytest.raises(InputError, match="returns 2 tensors; to be decoupled it must return one"):
        read_classes(capture(net, X[:2], name="net"), 1)


@pytest.mark.parametrize(
    ("layers", "last", "says"),
    [
        ([nn.Conv2d(8, 8, 3, groups=2), nn.Conv2d(8, 6, 1), *end(6)], 2, "layer 2 .*2 groups"),
        ([nn.Conv2d(8, 6, 1), nn.GroupNorm(2, 6), *end(6)], 1, "layer 3 .group_norm"),
        ([nn.Conv2d(8, 6, 1), Attention(), *end(6)], 1, r"\(softmax\)"),
        ([nn.Conv2d(8, 6, 1), nn.PReLU(), *end(6)], 1, "layer 3 .*each of its 6 channels"),
        ([nn.Conv2d(8, 6, 1), *end(6), nn.LogSoftmax(1)], 1, "log_softmax"),
        ([nn.Conv2d(8, 6, 1), *end(6), nn.ReLU()], 1, "must end in its logits"),
        ([nn.Conv2d(8, 4, 1)], 1, "one row of logits"),
        ([nn.Conv2d(8, 6, 1), *end(6)], 2, "last = 2 convolutions.*1 to 1"),
    ],
)
def test_what_cannot_be_taken_apart_is_refused_with_the_layer_s_name(
    layers: list[nn.Module], last: int, says: str
) -> None:
    first: list[nn.Module] = [nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1)]
    if layers[0].__class__ is nn.Conv2d and getattr(layers[0], "groups", 1) == 1:
        first = [nn.Conv2d(3, 8, 3), nn.ReLU()]
    with pytest.raises(InputError, match=says):
        read_classes(capture(nn.Sequential(*first, *layers), X[:2], name="net"), last)


def test_a_layer_in_two_places_is_refused() -> None:
    conv = nn.Conv2d(6, 6, 3, padding=1)
    net = nn.Sequential(nn.Conv2d(3, 6, 3), conv, nn.ReLU(), conv, nn.ReLU(), *end(6))
    with pytest.raises(InputError, match="used in several places"):
        read_classes(capture(net, X[:2]), 1)


def test_a_hook_is_part_of_the_network() -> None:
    net = nn.Sequential(nn.Conv2d(3, 6, 3), nn.Conv2d(6, 6, 3), *end(6))
    net.register_forward_hook(lambda module, given, result: 2 * result)
    with pytest.raises(InputError, match="must end in its logits"):
        read_classes(capture(net, X[:2]), 1)
