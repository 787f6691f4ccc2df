"""New batch-norm statistics and logits on one scale, after decoupling and after averaging.

reestimate_norms(net, x)          # without it a decoupled network is no better than guessing
calibrate(net, public_x, public_y)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from weft.graph.split.classes.network import HEAD, DecoupledNet


def fresh_norms(net: nn.Module) -> list[nn.BatchNorm2d]:
    """The batch norms of a network's structures; all batch norms if it has no structures."""
    part = net.banks if isinstance(net, DecoupledNet) else net
    return [layer for layer in part.modules() if isinstance(layer, nn.BatchNorm2d)]


@torch.no_grad()
def reestimate_norms(net: nn.Module, x: Tensor, batch: int = 250) -> None:
    """Estimates batch-norm statistics again from samples. Decoupling changes the sums, so the old ones are
    wrong."""
    norms = fresh_norms(net)
    training, momenta = net.training, [norm.momentum for norm in norms]
    net.eval()
    for norm in norms:
        norm.train()
    for number, begin in enumerate(range(0, len(x), batch), start=1):
        for norm in norms:
            norm.momentum = 1 / number  # the plain mean over all batches
        net(x[begin : begin + batch])
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    net.train(training)


def calibrate(net: DecoupledNet, x: Tensor, y: Tensor, steps: int = 60, batch: int = 500) -> None:
    """A scale and a bias per class, fitted on public samples and folded into the logits' weights.

    Peers compare only their own classes. Only this step puts the logits of different peers on one scale.
    """
    training = net.training
    net.eval()
    with torch.no_grad():
        logits = torch.cat([net(x[i : i + batch]) for i in range(0, len(x), batch)])
    net.train(training)
    target = net.local_labels(y)
    # Its exponent, so that it stays positive.
    scale = torch.zeros(logits.shape[1], requires_grad=True)
    shift = torch.zeros(logits.shape[1], requires_grad=True)
    rule = torch.optim.Adam([scale, shift], lr=0.05)
    for _ in range(steps):
        rule.zero_grad()
        loss = functional.cross_entropy(logits * scale.exp() + shift, target)
        loss.backward()  # type: ignore[no-untyped-call]
        rule.step()
    for column, label in enumerate(net.classes):
        state = net.structure(label)
        factor = scale[column].detach().exp()
        state[f"{HEAD}.weight"] *= factor
        state[f"{HEAD}.bias"] = state[f"{HEAD}.bias"] * factor + shift[column].detach()
        net.put_structure(label, state)
