"""Mixed precision in one process: what a run with `--precision bf16` must equal.

    with bf16_products():
        loss = criterion(model(x), y)
    loss.backward()

Convolutions, dense layers and matrix products of an eager module get operands that are rounded to bfloat16,
and their results are float32. `torch.autocast` rounds the values between them too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

# Where modules of torch look these functions up. An `@` in a module's own code is not among them.
PRODUCTS: tuple[tuple[Any, str], ...] = (
    (functional, "linear"), (functional, "conv1d"), (functional, "conv2d"), (functional, "conv3d"),
    (torch, "matmul"), (torch, "bmm"),
)  # fmt: skip


@contextmanager
def bf16_products() -> Iterator[None]:
    """Products inside of the block are computed in bfloat16."""
    before = [getattr(place, name) for place, name in PRODUCTS]
    try:
        for (place, name), function in zip(PRODUCTS, before, strict=True):
            setattr(place, name, _rounding(function))
        yield
    finally:
        for (place, name), function in zip(PRODUCTS, before, strict=True):
            setattr(place, name, function)


def _rounding(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @wraps(function)
    def product(*args: Any, **kwargs: Any) -> Tensor:
        named = {key: _rounded(value) for key, value in kwargs.items()}
        return function(*(_rounded(a) for a in args), **named).float()

    return product


def _rounded(value: Any) -> Any:
    return value.bfloat16() if isinstance(value, Tensor) and value.dtype == torch.float32 else value
