"""Masked networks beside torch's own: nothing lost is plain training; channels are like neurons."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from weft.graph.split.masked import Masks, Perceptron
from weft.graph.split.masked_conv import ConvNet, MaskedConv, MaskedLinear, heard_weights

pytestmark = pytest.mark.usefixtures("one_thread")


def masks_of(widths: tuple[int, ...], share: float, dtype: torch.dtype, seed: int = 0) -> Masks:
    random = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return (torch.rand(1, *shape, generator=random) < share).to(dtype)

    pairs = list(zip(widths[1:], widths[:-1], strict=True))
    return Masks(
        draw(widths[0]), tuple(draw(*p) for p in pairs), draw(widths[-1]), draw(widths[-1]),
        tuple(draw(*p) for p in pairs), torch.ones(1, dtype=torch.bool),
    )  # fmt: skip


def test_with_nothing_lost_it_is_plain_training_with_adam() -> None:
    sizes = (6, 5, 4, 4, 3)
    net = Perceptron(sizes, dtype=torch.float64)
    layers = []
    for weight, bias in zip(net.weights, net.biases, strict=True):
        layer = nn.Linear(weight.shape[1], weight.shape[0], dtype=torch.float64)
        layer.weight.data.copy_(weight)
        layer.bias.data.copy_(bias)
        layers += [layer, nn.ReLU()]
    plain = nn.Sequential(*layers[:-1])
    rule = torch.optim.Adam(plain.parameters(), lr=1e-3)
    masks = masks_of(sizes[1:-1], 2.0, torch.float64).at(0)
    for step in range(5):
        x = torch.rand(8, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        y = torch.arange(8) % 3
        rule.zero_grad()
        loss = F.cross_entropy(plain(x), y)
        loss.backward()
        rule.step()
        found = net.step(x, y, masks)
        assert found is not None
        torch.testing.assert_close(found, loss.detach())
    for layer, weight, bias in zip(layers[::2], net.weights, net.biases, strict=True):
        torch.testing.assert_close(layer.weight.data, weight)
        torch.testing.assert_close(layer.bias.data, bias)


def one_boundary(forth: torch.Tensor, back: torch.Tensor) -> Masks:
    none = torch.ones(0)
    return Masks(none, (forth,), none, none, (back,), torch.tensor(True))


def test_masked_layers_follow_the_three_rules() -> None:
    random = torch.Generator().manual_seed(1)
    x = torch.rand(4, 3, 5, 5, generator=random, dtype=torch.float64, requires_grad=True)
    w = torch.rand(2, 3, 3, 3, generator=random, dtype=torch.float64, requires_grad=True)
    forth = torch.tensor([[1.0, 0, 1], [0, 1, 1]], dtype=torch.float64)
    back = torch.tensor([[0.0, 1, 1], [1, 1, 0]], dtype=torch.float64)
    g = torch.rand(4, 2, 5, 5, generator=random, dtype=torch.float64)
    y = MaskedConv.apply(x, *heard_weights(w, 0, one_boundary(forth, back)), 1)
    y.backward(g)
    torch.testing.assert_close(y, F.conv2d(x, w * forth[:, :, None, None], padding=1))
    a, b = x.detach().requires_grad_(), w.detach().requires_grad_()
    F.conv2d(a, w.detach() * back[:, :, None, None], padding=1).backward(g)
    F.conv2d(x.detach(), b * forth[:, :, None, None], padding=1).backward(g)
    torch.testing.assert_close(x.grad, a.grad)
    torch.testing.assert_close(w.grad, b.grad)


def test_a_convolution_of_one_place_is_a_dense_layer() -> None:
    random = torch.Generator().manual_seed(2)
    x = torch.rand(4, 3, generator=random, requires_grad=True)
    w = torch.rand(2, 3, generator=random, requires_grad=True)
    forth, back = torch.tensor([[1.0, 0, 1], [0, 1, 1]]), torch.tensor([[0.0, 1, 1], [1, 1, 0]])
    masks = one_boundary(forth, back)
    MaskedLinear.apply(x, *heard_weights(w, 0, masks)).sum().backward()
    dense = (x.grad, w.grad)
    x2, w2 = x.detach().requires_grad_(), w.detach().requires_grad_()
    used, back_again = heard_weights(w2[:, :, None, None], 0, masks)
    MaskedConv.apply(x2[:, :, None, None], used, back_again, 0).sum().backward()
    torch.testing.assert_close(x2.grad, dense[0])
    torch.testing.assert_close(w2.grad, dense[1])


def test_a_convolutional_network_learns_under_loss() -> None:
    random = torch.Generator().manual_seed(0)
    y = torch.arange(80) % 4
    x = 0.3 * torch.rand(80, 1, 8, 8, generator=random)
    for label in range(4):
        x[y == label, :, 2 * label : 2 * label + 2] += 1.0
    net = ConvNet((1, 8, 8), 4, rate=3e-3)
    test = masks_of(net.widths(), 0.8, torch.float32, seed=1000)
    before = net.accuracy(x, y, test)
    for step in range(120):
        net.step(x, y, masks_of(net.widths(), 0.8, torch.float32, seed=step).at(0))
    assert before < 0.5
    assert net.accuracy(x, y, test) > 0.9
