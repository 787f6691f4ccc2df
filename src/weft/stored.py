"""Reads tensors that somebody else wrote, in the format of safetensors: InputError where it cannot be done.

tensors = tensors_in(data)                               # from a message
tensors = tensors_of(path, "--weights", most=1 << 30)    # from a file

A head may name a type that PyTorch does not have, or a shape that no tensor has. The library then raises
whatever it comes to; callers expect one kind of error.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from weft.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


def tensors_in(data: bytes) -> dict[str, Tensor]:
    """The tensors in these bytes."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(data)
    except (SafetensorError, LookupError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"no tensors that PyTorch can hold: {_words(error)}") from None


def tensors_of(path: Path, what: str, most: int) -> dict[str, Tensor]:
    """The tensors in a file of at most so many bytes."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise InputError(f"{what} {path}: there is no such file")
    if path.stat().st_size > most:
        raise InputError(f"{what} {path} is larger than this machine's memory")
    try:
        return load_file(path)
    except (SafetensorError, OSError, LookupError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{what} {path} is not a safetensors file: {_words(error)}") from None


def _words(error: Exception) -> str:
    """The library's words; of an unknown type it gives the bare name."""
    text = f"the type {error}" if isinstance(error, KeyError) else str(error)
    return text[:300]
