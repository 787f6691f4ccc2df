"""A convolutional network whose channels belong to devices, trained and tested under loss.

In a convolution a channel takes the place of a neuron. Masks have one value per pair of channels. The rules
are those of `graph/split/masked.py`, with a convolution in place of the matrix product.

    net = ConvNet((1, 28, 28), 10)       # hidden layers of 16, 32, 32 channels and 64 neurons
    net.step(x, y, masks.at(0))
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.grad import conv2d_input, conv2d_weight

from weft.graph.split.lost_values import LostValues
from weft.graph.split.masked import Masks

CHANNELS = (16, 32, 32)
DENSE = 64


class MaskedConv(torch.autograd.Function):
    """y = conv(x, used). The gradient of x uses `back`: the weights masked by the messages that arrived on
    the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, used: Tensor, back: Tensor, padding: int) -> Tensor:
        ctx.save_for_backward(x, used, back)
        ctx.padding = padding
        return F.conv2d(x, used, padding=padding)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (g,) = grads
        x, used, back = ctx.saved_tensors
        pad = ctx.padding
        into = conv2d_input(x.shape, back, g, padding=pad)  # type: ignore[no-untyped-call]
        weight_grad = conv2d_weight(x, used.shape, g, padding=pad)  # type: ignore[no-untyped-call]
        return into, weight_grad, None, None


class MaskedLinear(torch.autograd.Function):
    """y = x used^T. The gradient of x uses the weights `back`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, used: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(x, back)
        return x @ used.t()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (g,) = grads
        x, back = ctx.saved_tensors
        return g @ back, g.t() @ x, None


def heard_weights(weight: Tensor, b: int, masks: Masks) -> tuple[Tensor, Tensor]:
    """A layer's weights with those of lost messages removed, forward and backward, before hidden layer b + 1.

    Masks have one value per pair of channels. It holds for all places of a kernel, and for all inputs of a
    dense layer that come from one channel. If a receiver's own channel replaces a lost one, the lost
    channel's weights are used with it.
    """
    forth = masks.hidden[b]
    by_channel = weight.view(*forth.shape, -1)
    mask = forth[..., None]
    used = by_channel * mask
    if masks.stand_in:
        lost = by_channel * ((1 - forth) * masks.has_own[b])[..., None]
        used = used.scatter_add(1, masks.stand_in[b][..., None].expand_as(lost), lost)
    back = by_channel.detach() * masks.back_hidden[b][..., None]
    return used.view_as(weight), back.view_as(weight)


class ConvNet:
    """Three convolutions (two pooled) and a dense layer, hidden; Adam, Xavier uniform, zero bias."""

    def __init__(
        self,
        input_shape: tuple[int, ...],
        classes: int,
        *,
        seed: int = 0,
        rate: float = 1e-3,
        update: LostValues = "zero",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.update = update
        channels, height, width = input_shape
        self.places = (height // 4) * (width // 4)
        shapes = [
            (CHANNELS[0], channels, 5, 5),
            (CHANNELS[1], CHANNELS[0], 3, 3),
            (CHANNELS[2], CHANNELS[1], 3, 3),
            (DENSE, CHANNELS[2] * self.places),
            (classes, DENSE),
        ]
        random = torch.Generator().manual_seed(seed)
        self.weights: list[Tensor] = []
        for shape in shapes:
            kernel = shape[2] * shape[3] if len(shape) == 4 else 1
            bound = (6 / ((shape[0] + shape[1]) * kernel)) ** 0.5
            weight = torch.empty(shape, dtype=dtype).uniform_(-bound, bound, generator=random)
            self.weights.append(weight.requires_grad_())
        self.biases = [torch.zeros(shape[0], dtype=dtype).requires_grad_() for shape in shapes]
        self.optimizer = torch.optim.Adam([*self.weights, *self.biases], lr=rate, fused=True)

    @staticmethod
    def widths() -> tuple[int, ...]:
        """Widths of the hidden layers, which are spread over devices."""
        return (*CHANNELS, DENSE)

    @staticmethod
    def prepared(x: Tensor) -> Tensor:
        return x

    def output(self, x: Tensor, masks: Masks) -> Tensor:
        w, b = self.weights, self.biases
        first = F.conv2d(x, w[0], padding=2) * masks.first[:, None, None]
        h = F.max_pool2d((first + b[0][:, None, None]).relu(), 2)
        h = MaskedConv.apply(h, *heard_weights(w[1], 0, masks), 1)  # type: ignore[no-untyped-call]
        h = F.max_pool2d((h + b[1][:, None, None]).relu(), 2)
        h = MaskedConv.apply(h, *heard_weights(w[2], 1, masks), 1)  # type: ignore[no-untyped-call]
        h = (h + b[2][:, None, None]).relu().flatten(1)
        h = (MaskedLinear.apply(h, *heard_weights(w[3], 2, masks)) + b[3]).relu()  # type: ignore[no-untyped-call]
        back = w[4].detach() * masks.back_last
        logits: Tensor = MaskedLinear.apply(h, w[4] * masks.last, back) + b[4]  # type: ignore[no-untyped-call]
        if self.update == "none":
            logits = logits * masks.whole  # a skipped batch has no answer
        return logits

    def step(self, x: Tensor, y: Tensor, masks: Masks) -> Tensor | None:
        if self.update == "none" and not bool(masks.whole):
            return None
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.output(x, masks), y)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.detach()

    @torch.no_grad()
    def accuracy(self, x: Tensor, y: Tensor, masks: Masks) -> float:
        """The share of right answers; each batch under its own losses."""
        right = 0
        for index, (part, labels) in enumerate(
            zip(x.chunk(len(masks)), y.chunk(len(masks)), strict=True)
        ):
            answers = self.output(part, masks.at(index)).argmax(1)
            right += int((answers == labels).sum())
        return right / len(y)
