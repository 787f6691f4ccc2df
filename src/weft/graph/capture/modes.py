"""Training and evaluation modes: which mode each part of a network is captured in, and who reads the mode.

A network is trained in the modes that its parts have: a part that the user froze with `.eval()` stays in
evaluation mode. If the whole network is in evaluation mode, it is trained as after `model.train()`. Inference
runs in evaluation mode.

One graph serves both modes if only batch norm and dropout read the mode, because nodes flip their flags. So
capture watches who reads `self.training`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from weft.errors import InputError
from weft.graph.network import Mode

# Modules of torch.nn whose results depend on the mode.
_DEPENDENT = (
    _NormBase, _DropoutNd, nn.RReLU, nn.RNNBase, nn.MultiheadAttention, nn.Transformer,
    nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.TransformerDecoder,
    nn.TransformerDecoderLayer,
)  # fmt: skip
_TORCH = f"{Path(torch.__file__).parent}{os.sep}"  # torchvision is no part of torch
_OWN = str(Path(__file__).parent)
# Code of torch in which the mode chooses more than a node's flag: the old and the new spectral norm too.
_OWN_BRANCHES = ("instancenorm.py", "spectral_norm.py", "parametrizations.py")


def check_modes(module: nn.Module, label: str) -> None:
    """Raises InputError if the network is in eval mode and a part of it is in training mode, where that
    matters. Nobody can tell then in which mode the network is to be trained."""
    if module.training:
        return
    odd = [
        f"{name} ({type(part).__name__})"
        for name, part in module.named_modules()
        if part.training and _matters(part)
    ]
    if not odd:
        return
    listed = ", ".join(odd[:5]) + (f" and {len(odd) - 5} more" if len(odd) > 5 else "")
    raise InputError(
        f"{label} is in eval mode but parts of it are in training mode: {listed}. Call model.train() on the "
        "whole, and then .eval() on the parts that are frozen; or call model.eval() on the whole"
    )


def _matters(part: nn.Module) -> bool:
    """Whether the mode can change what a module computes. A user's own class may read the mode."""
    if isinstance(part, _DEPENDENT):
        return True
    return not type(part).__module__.startswith("torch.nn.modules.")


@contextmanager
def in_mode(module: nn.Module, mode: Mode) -> Iterator[None]:
    """Puts all parts into the mode in which the network is trained or infers, and restores their modes at the
    end. A network in training mode is trained in the modes that its parts have."""
    modes = {part: part.training for part in module.modules()}
    try:
        if mode == "infer":
            module.eval()
        elif not module.training:
            module.train()
        yield
    finally:
        for part, training in modes.items():
            part.training = training


class Readers:
    """Where the code outside of torch reads the mode of a module: file names and lines."""

    def __init__(self) -> None:
        self.places: list[str] = []

    def note(self, frame: FrameType) -> None:
        """Notes the line of a reader, unless it is code of torch that turns the mode into a node's flag."""
        while frame.f_code.co_filename.startswith(_OWN) and frame.f_back is not None:
            frame = frame.f_back  # who looks at attributes too (python_state.py)
        file = frame.f_code.co_filename
        if file.startswith(_TORCH) and not file.endswith(_OWN_BRANCHES):
            return
        self.places.append(f"{Path(file).name}, line {frame.f_lineno}")


@contextmanager
def watched_modes() -> Iterator[Readers]:
    """Notes who reads the `training` attribute of any module.

    The attribute is in a module's `__dict__`. While this is active, the class has a property of the same
    name, which is asked first.
    """
    readers = Readers()

    def read(module: nn.Module) -> bool:
        readers.note(sys._getframe(1))
        return bool(module.__dict__["training"])

    def write(module: nn.Module, value: bool) -> None:
        module.__dict__["training"] = value

    kind: Any = nn.Module
    kind.training = property(read, write)
    try:
        yield readers
    finally:
        del kind.training
