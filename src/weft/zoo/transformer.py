"""A tiny transformer encoder that reads an image row by row, or a text as token numbers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from weft.errors import InputError
from weft.zoo.parts import Shape


class Transformer(nn.Module):
    """Embeds tokens, adds their learned positions, encodes, averages and classifies.

    An image of (channels, height, width) is `height` tokens of channels * width numbers; an input
    of one dimension is that many token numbers below `vocabulary`.
    """

    def __init__(
        self,
        input_shape: Shape,
        classes: int,
        *,
        width: int = 32,
        layers: int = 2,
        heads: int = 4,
        hidden: int = 64,
        dropout: float = 0.1,
        vocabulary: int = 8192,
    ) -> None:
        super().__init__()
        self.reads_images = len(input_shape) == 3
        if self.reads_images:
            channels, tokens, pixels = input_shape
            self.embed: nn.Module = nn.Linear(channels * pixels, width)
        else:
            (tokens,) = input_shape
            self.embed = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.empty(tokens, width))
        nn.init.normal_(self.position, std=0.02)
        layer = nn.TransformerEncoderLayer(width, heads, hidden, dropout, batch_first=True)
        # Nested tensors are only for padded batches, and cannot be exported.
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.classify = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        if self.reads_images:
            x = x.transpose(1, 2).flatten(2)
        encoded: Tensor = self.encoder(self.embed(x) + self.position)
        logits: Tensor = self.classify(encoded.mean(1))
        return logits


def transformer(input_shape: Shape, classes: int, *, dropout: float = 0.1) -> Transformer:
    """A tiny transformer encoder for images, read row by row, or for token numbers."""
    if len(input_shape) not in (1, 3):
        raise InputError(
            f"model 'transformer': input_shape {input_shape} has {len(input_shape)} dimensions; "
            "3 (channels, height, width) or 1 (tokens) are allowed"
        )
    return Transformer(input_shape, classes, dropout=dropout)
