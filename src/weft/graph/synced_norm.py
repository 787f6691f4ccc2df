"""The mathematics of a batch norm over the whole minibatch, of which each device has some samples.

own = sums_of(x)                         # of one piece
y = synced_norm(x, weight, bias, total, eps)
correct_gradient(gradient, x, d_total)   # what x did through the sums
"""

from __future__ import annotations

import torch
from torch import Tensor


def sums_of(x: Tensor) -> Tensor:
    """Of each channel the sum of its values and of their squares; then how many there are."""
    exact = x.detach().double()
    other = [d for d in range(x.dim()) if d != 1]
    count = exact.new_tensor([x.numel() / x.shape[1]])
    return torch.cat([exact.sum(other), exact.square().sum(other), count])


def moments(total: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance (not corrected) of each channel, and the number of values."""
    channels = (len(total) - 1) // 2
    count = total[-1]
    mean = total[:channels] / count
    return mean, (total[channels:-1] / count - mean.square()).clamp_min(0.0), count


def synced_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, total: Tensor, eps: float
) -> Tensor:
    """x normalised by the sums of the whole minibatch."""
    mean, variance, _ = moments(total)
    shape = [1, -1, *[1] * (x.dim() - 2)]
    scale = torch.rsqrt(variance + eps)
    if weight is not None:
        scale = scale * weight
    y = (x - mean.to(x.dtype).view(shape)) * scale.to(x.dtype).view(shape)
    return y if bias is None else y + bias.view(shape)


def correct_gradient(gradient: Tensor, x: Tensor, d_total: Tensor) -> None:
    """Adds, in place, what x did to the loss through the sums: each value to both of them."""
    channels = x.shape[1]
    shape = [1, -1, *[1] * (x.dim() - 2)]
    d_sum, d_squares = d_total[:channels], d_total[channels : 2 * channels]
    gradient += (d_sum.view(shape) + 2 * x.detach().double() * d_squares.view(shape)).to(x.dtype)


def follow(mean: Tensor, variance: Tensor, total: Tensor, momentum: float) -> None:
    """Running statistics after one more minibatch, as batch norm has them: the variance corrected."""
    now, spread, count = moments(total)
    mean.mul_(1 - momentum).add_(momentum * now.to(mean.dtype))
    corrected = spread * count / (count - 1)
    variance.mul_(1 - momentum).add_(momentum * corrected.to(variance.dtype))
