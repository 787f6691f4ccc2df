"""A perceptron whose neurons belong to devices, with a batch's losses as 0/1 masks on its weights.

    y = x (W * Mf)^T + b        grad_x = g (W * Mb)        grad_W = (g^T x) * Mf

Mf[i, j] is 1 if the message from the owner of input j reached the owner of neuron i. Mb[i, j] is 1 if the
gradient reached the owner of input j. The result equals what the devices compute one by one with the messages
that reached them. A step costs about as much as a plain one, because the backward pass is written by hand and
all parameters lie in one vector for fused Adam.

    net = Perceptron((784, 64, 64, 64, 64, 10))
    net.step(x, y, masks.at(0))         # one training step under loss
    net.accuracy(test_x, test_y, masks) # every batch with its own losses
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from weft.graph.split.lost_values import LostValues


@dataclass(frozen=True)
class Masks:
    """Losses of several batches; the first dimension of every tensor counts them.

    All inputs belong to the coordinator, and so does the output layer: their masks have one value
    per hidden neuron. `whole` says which batches lost nothing. For `own`, `stand_in[b][i, j]` is the
    input that the owner of neuron i takes in place of a lost input j, and `has_own` where it has one.
    """

    first: Tensor  # batches x w_1: which neurons of the first layer received the input
    hidden: tuple[Tensor, ...]  # batches x w_(b+1) x w_b, forward
    last: Tensor  # batches x w_L: which neurons of the last hidden layer reached the output
    back_last: Tensor  # batches x w_L: which of them received their gradient
    back_hidden: tuple[Tensor, ...]  # batches x w_(b+1) x w_b
    whole: Tensor  # batches, bool
    stand_in: tuple[Tensor, ...] = ()
    has_own: tuple[Tensor, ...] = ()

    def __len__(self) -> int:
        return len(self.whole)

    def at(self, batch: int) -> Masks:
        """One batch's masks, without the first dimension."""
        return Masks(
            self.first[batch],
            tuple(m[batch] for m in self.hidden),
            self.last[batch],
            self.back_last[batch],
            tuple(m[batch] for m in self.back_hidden),
            self.whole[batch],
            self.stand_in,
            self.has_own,
        )


class Perceptron:
    """Dense layers with ReLU, trained with Adam; Xavier uniform weights, zero bias."""

    def __init__(
        self,
        sizes: Sequence[int],
        *,
        seed: int = 0,
        rate: float = 1e-3,
        update: LostValues = "zero",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.sizes = tuple(sizes)
        self.update = update
        shapes = list(zip(self.sizes[1:], self.sizes[:-1], strict=True))
        count = sum(out * (into + 1) for out, into in shapes)
        self.flat = torch.zeros(count, dtype=dtype)
        self.flat.grad = torch.zeros_like(self.flat)
        self.weights, self.biases = self._views(self.flat, shapes)
        self.weight_grads, self.bias_grads = self._views(self.flat.grad, shapes)
        random = torch.Generator().manual_seed(seed)
        for weight, (out, into) in zip(self.weights, shapes, strict=True):
            bound = (6 / (out + into)) ** 0.5
            weight.uniform_(-bound, bound, generator=random)
        self.optimizer = torch.optim.Adam([self.flat], lr=rate, fused=True)

    @staticmethod
    def _views(flat: Tensor, shapes: list[tuple[int, int]]) -> tuple[list[Tensor], list[Tensor]]:
        weights, biases, begin = [], [], 0
        for out, into in shapes:
            weights.append(flat[begin : begin + out * into].view(out, into))
            begin += out * into
            biases.append(flat[begin : begin + out])
            begin += out
        return weights, biases

    @staticmethod
    def prepared(x: Tensor) -> Tensor:
        """Images as rows of features."""
        return x.flatten(1)

    def step(self, x: Tensor, y: Tensor, masks: Masks) -> Tensor | None:
        """One training step. Returns the loss, or None if the batch was skipped (`none`)."""
        if self.update == "none" and not bool(masks.whole):
            return None
        loss = self.gradients(x, y, masks)
        self.optimizer.step()
        return loss

    @torch.no_grad()
    def gradients(self, x: Tensor, y: Tensor, masks: Masks) -> Tensor:
        """Forward and backward pass. The gradients are in `weight_grads` and `bias_grads` afterwards."""
        weights, biases = self.weights, self.biases
        z = torch.mm(x, weights[0].t()).mul_(masks.first).add_(biases[0])
        active = [z.relu_()]
        masked: list[Tensor] = []
        for b, mask in enumerate(masks.hidden):
            weight = weights[b + 1]
            masked.append(weight * mask)
            used = self._folded(b, weight, masked[b], masks) if masks.stand_in else masked[b]
            active.append(torch.addmm(biases[b + 1], active[b], used.t()).relu_())
        seen = active[-1] * masks.last
        output = torch.addmm(biases[-1], seen, weights[-1].t())
        logs = torch.log_softmax(output, 1)
        g = logs.exp()
        g[torch.arange(len(y)), y] -= 1
        g.div_(len(y))
        self._backward(x, g, active, seen, masks)
        return F.nll_loss(logs, y)

    def _backward(
        self, x: Tensor, g: Tensor, active: list[Tensor], seen: Tensor, masks: Masks
    ) -> None:
        torch.mm(g.t(), seen, out=self.weight_grads[-1])
        torch.sum(g, 0, out=self.bias_grads[-1])
        g = torch.mm(g, self.weights[-1]).mul_(masks.back_last)
        for b in reversed(range(len(masks.hidden))):
            g = torch.ops.aten.threshold_backward(g, active[b + 1], 0)
            grad = self.weight_grads[b + 1]
            torch.mm(g.t(), active[b], out=grad)
            if masks.stand_in:
                grad.copy_(self._unfolded(b, grad, masks))
            else:
                grad.mul_(masks.hidden[b])
            torch.sum(g, 0, out=self.bias_grads[b + 1])
            g = torch.mm(g, self.weights[b + 1] * masks.back_hidden[b])
        g = torch.ops.aten.threshold_backward(g, active[0], 0)
        torch.sum(g, 0, out=self.bias_grads[0])
        torch.mm(g.mul_(masks.first).t(), x, out=self.weight_grads[0])

    @staticmethod
    def _folded(b: int, weight: Tensor, masked: Tensor, masks: Masks) -> Tensor:
        """The masked weight, plus the weights of lost inputs at the columns of the neurons that replace
        them."""
        lost = (weight - masked) * masks.has_own[b]
        return masked.scatter_add(1, masks.stand_in[b], lost)

    @staticmethod
    def _unfolded(b: int, grad: Tensor, masks: Masks) -> Tensor:
        """The gradient of each weight, taken from the column of the input that it was really multiplied
        with."""
        mask = masks.hidden[b]
        return grad * mask + grad.gather(1, masks.stand_in[b]) * masks.has_own[b] * (1 - mask)

    @torch.no_grad()
    def logits(self, x: Tensor, masks: Masks) -> Tensor:
        """Answers to batches x samples x features, each batch under its own losses."""
        h = F.linear(x, self.weights[0]) * masks.first[:, None]
        h = (h + self.biases[0]).relu_()
        for b, mask in enumerate(masks.hidden):
            weight = self.weights[b + 1] * mask
            if masks.stand_in:
                weight = torch.stack(
                    [self._folded(b, self.weights[b + 1], w, masks) for w in weight]
                )
            h = torch.baddbmm(self.biases[b + 1][None, None], h, weight.transpose(1, 2)).relu_()
        output = F.linear(h * masks.last[:, None], self.weights[-1], self.biases[-1])
        if self.update == "none":
            output = output * masks.whole[:, None, None]  # a skipped batch has no answer
        return output

    def accuracy(self, x: Tensor, y: Tensor, masks: Masks) -> float:
        """The share of right answers. The samples are cut into as many batches as masks hold."""
        parts = len(masks)
        answers = self.logits(x.view(parts, len(x) // parts, -1), masks).argmax(2)
        return float((answers.flatten() == y).double().mean())
