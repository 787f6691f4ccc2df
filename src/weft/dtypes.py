"""The types of numbers that a tensor may have, with their sizes in bytes.

A name from outside (a graph file, a message) is looked up here before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.errors import InputError

if TYPE_CHECKING:
    import torch

DTYPE_BYTES = {
    "float32": 4, "float64": 8, "float16": 2, "bfloat16": 2,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip


def torch_dtype(name: str) -> torch.dtype:
    """PyTorch's type of that name."""
    import torch

    if name not in DTYPE_BYTES:
        raise InputError(f"dtype {name[:40]!r} is not one of {', '.join(DTYPE_BYTES)}")
    dtype: torch.dtype = getattr(torch, name)
    return dtype
