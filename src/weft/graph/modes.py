"""Training and evaluation modes: a network is captured in one mode, so its parts must not differ.

`weft.train` trains every layer in training mode, as a training loop does after `model.train()`. Inference
runs in evaluation mode. If the parts of a network are in different modes (a frozen batch norm), Weft cannot
run it as it is, so it is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from weft.errors import InputError

# Modules of torch.nn whose results depend on the mode.
_DEPENDENT = (
    _NormBase, _DropoutNd, nn.RReLU, nn.RNNBase, nn.MultiheadAttention, nn.Transformer,
    nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.TransformerDecoder,
    nn.TransformerDecoderLayer,
)  # fmt: skip


def check_modes(module: nn.Module, label: str) -> None:
    """Raises InputError if a part is in another mode than the network and the mode matters; the error names
    the parts."""
    odd = [
        f"{name} ({type(part).__name__})"
        for name, part in module.named_modules()
        if part.training != module.training and _matters(part)
    ]
    if not odd:
        return
    mode, other = ("training", "eval") if module.training else ("eval", "training")
    listed = ", ".join(odd[:5]) + (f" and {len(odd) - 5} more" if len(odd) > 5 else "")
    raise InputError(
        f"{label} is in {mode} mode but parts of it are in {other} mode: {listed}. Weft runs a network "
        "in one mode, so a frozen batch norm would move and a dropout would come back. Call model.train() "
        "or model.eval() on the whole; to freeze a batch norm, put a layer without running statistics "
        "in its place"
    )


def _matters(part: nn.Module) -> bool:
    """Whether the mode can change what a module computes. A user's own class may read the mode."""
    if isinstance(part, _DEPENDENT):
        return True
    return not type(part).__module__.startswith("torch.nn.modules.")


@contextmanager
def in_training_mode(module: nn.Module) -> Iterator[None]:
    """Puts all parts into training mode, and restores their modes at the end."""
    modes = {part: part.training for part in module.modules()}
    try:
        module.train()
        yield
    finally:
        for part, training in modes.items():
            part.training = training
