"""The number of samples while a module is exported: `len(x)`, and lines that make it a fixed number.

    with symbolic_len():                # len(x) is x.shape[0], which stays variable
        torch.export.export(...)
    with watched_counts() as fixed:     # fixed.places: the lines that fixed the number of samples
        torch.export.export(...)

Python's `len` must return an ordinary int, so `len(x)` would fix the number of samples at the example's.
While `symbolic_len` is active, `len` of a tensor gives what `x.shape[0]` gives. It does the same otherwise.
"""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import ShapeEnv

_TORCH = f"{Path(torch.__file__).parent}{os.sep}"  # torchvision is no part of torch
_OWN = str(Path(__file__).parent)


@contextmanager
def symbolic_len() -> Iterator[None]:
    """`len` of a tensor is the size of its first dimension, as torch.export knows it."""
    plain = builtins.len

    def length(sized: Any) -> Any:
        return sized.shape[0] if isinstance(sized, Tensor) and sized.dim() else plain(sized)

    builtins.len = length
    try:
        yield
    finally:
        builtins.len = plain


class FixedCounts:
    """The lines outside of torch at which a size became a fixed number: file names and lines."""

    def __init__(self) -> None:
        self.places: list[str] = []

    def note(self) -> None:
        """Notes the innermost line that is neither torch's nor Weft's."""
        frame: Any = sys._getframe(2)
        while frame is not None:
            file = frame.f_code.co_filename
            if not file.startswith((_TORCH, _OWN, "<")):
                self.places.append(f"{Path(file).name}, line {frame.f_lineno}")
                return
            frame = frame.f_back


@contextmanager
def watched_counts() -> Iterator[FixedCounts]:
    """Notes where a variable size is replaced by a number."""
    fixed = FixedCounts()
    kind: Any = ShapeEnv
    plain = kind._set_replacement

    def replaced(environment: Any, symbol: Any, target: Any, message: str) -> None:
        if not target.free_symbols:
            fixed.note()
        plain(environment, symbol, target, message)

    kind._set_replacement = replaced
    try:
        yield fixed
    finally:
        kind._set_replacement = plain
