"""Turns text into token numbers without a vocabulary file: words are hashed."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

LENGTH = 64
VOCABULARY = 8192
PADDING = 0

_WORD = re.compile(r"[a-z0-9]+")


def tokens(text: str, length: int = LENGTH, vocabulary: int = VOCABULARY) -> list[int]:
    """The first `length` words as numbers 1..vocabulary-1, filled up with PADDING.

    CRC-32 and not Python's `hash`, which differs from process to process.
    """
    words = _WORD.findall(text.lower())[:length]
    numbers = [1 + zlib.crc32(word.encode()) % (vocabulary - 1) for word in words]
    return numbers + [PADDING] * (length - len(numbers))


def tokenize(texts: Sequence[str]) -> Tensor:
    """One row of LENGTH token numbers per text, int64."""
    return torch.tensor([tokens(text) for text in texts], dtype=torch.int64).reshape(-1, LENGTH)
