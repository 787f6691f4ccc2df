"""What forward asks torch, or tells it, that a graph cannot hold.

    with watched_questions("infer", readers) as seeds:
        torch.export.export(...)

Forward may ask whether gradients are computed (`torch.is_grad_enabled()`, `x.requires_grad`). The answer is
yes in training and no in inference, so such a network is captured in both modes, like one that reads
`self.training`. Forward may also seed torch's random numbers. Devices draw from generators of their own, so
this is refused.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from weft.graph.capture.modes import Readers
from weft.graph.network import Mode

_TORCH = f"{Path(torch.__file__).parent}{os.sep}"
_SEEDS = ("manual_seed", "seed", "set_rng_state")


class Seeds:
    """The lines outside of torch that seed its random numbers: file names and lines."""

    def __init__(self) -> None:
        self.places: list[str] = []


@contextmanager
def watched_questions(mode: Mode, readers: Readers) -> Iterator[Seeds]:
    """Answers questions about gradients as they are answered in this mode, and notes who asks; notes who
    seeds."""
    seeds = Seeds()
    library: Any = torch
    tensors: Any = Tensor
    enabled, learned = library.is_grad_enabled, tensors.requires_grad
    plain: dict[str, Callable[..., Any]] = {name: getattr(library, name) for name in _SEEDS}

    def is_enabled() -> bool:
        frame = sys._getframe(1)
        if _of_torch(frame):
            return bool(enabled())
        readers.note(frame)
        return mode == "train" and bool(enabled())

    def needs_gradient(tensor: Tensor) -> bool:
        needed, frame = bool(learned.__get__(tensor)), sys._getframe(1)
        if not needed or _of_torch(frame) or tensor.is_leaf:
            return needed
        readers.note(frame)
        return mode == "train"

    def seeding(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            frame = sys._getframe(1)
            if not _of_torch(frame):
                seeds.places.append(f"{Path(frame.f_code.co_filename).name}, line {frame.f_lineno}")
            return plain[name](*args, **kwargs)

        return call

    library.is_grad_enabled = is_enabled
    tensors.requires_grad = property(needs_gradient, learned.__set__)
    for name in _SEEDS:
        setattr(library, name, seeding(name))
    try:
        yield seeds
    finally:
        library.is_grad_enabled = enabled
        del tensors.requires_grad
        for name, function in plain.items():
            setattr(library, name, function)


def _of_torch(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith((_TORCH, "<"))
