"""Recordings as small pictures: what a network for images can learn words from.

spectrograms(waves)        # (N, 1, 8000) at 8 kHz -> (N, 1, 32, 32)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

SIDE = 32


def spectrograms(waves: Tensor, side: int = SIDE, rate: int = 8000, batch: int = 512) -> Tensor:
    """Logarithms of the energy in `side` mel bands at `side` moments, standardised per recording."""
    window, hop = 256, waves.shape[-1] // side
    bands = _mel(side, window, rate)
    shape = torch.hann_window(window)
    found = []
    for part in torch.split(waves.flatten(1), batch):
        spectrum = torch.stft(part, window, hop, window=shape, return_complex=True).abs().square()
        energy = (bands @ spectrum[:, :, :side]).clamp_min(1e-8).log()
        energy = energy - energy.mean((1, 2), keepdim=True)
        found.append(energy / energy.std((1, 2), keepdim=True).clamp_min(1e-3))
    return torch.cat(found)[:, None]


def _mel(bands: int, window: int, rate: int) -> Tensor:
    """Triangles over the frequencies, evenly spaced as the ear hears them."""
    top = 2595 * math.log10(1 + rate / 2 / 700)
    edges = 700 * (10 ** (torch.linspace(0, top, bands + 2) / 2595) - 1)
    heard = torch.linspace(0, rate / 2, window // 2 + 1)
    # Low triangles are narrower than the grid of frequencies: each is at least one step wide.
    step = rate / window
    left, middle, right = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    up = (heard - left) / (middle - left).clamp_min(step)
    down = (right - heard) / (right - middle).clamp_min(step)
    return torch.minimum(up, down).clamp_min(0)
