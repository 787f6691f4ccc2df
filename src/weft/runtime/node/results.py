"""How much memory a network's results would take, without making them.

    check_results(segment, samples, most=256 << 20)     # InputError before any memory is taken

The network is run once on tensors without data (PyTorch's `meta` device). An operator that makes a tensor
from nothing is asked to make one without data too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from weft.dtypes import torch_dtype
from weft.errors import InputError
from weft.graph.execute import Runner
from weft.graph.network import Segment, Value


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the bytes of all results; every result is without data."""

    def __init__(self, most: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most, self.bytes = most, 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if any(argument.name == "device" for argument in func._schema.arguments):
            kwargs["device"] = torch.device("meta")
        result = func(*args, **kwargs)
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.bytes += tensor.nbytes
        if self.bytes > self.most:
            raise InputError(
                f"the network's results take more than {self.most} bytes (at {func}); "
                "this node takes no larger one"
            )
        return result


def check_results(segment: Segment, samples: int, most: int) -> None:
    """Raises InputError if all results of one forward pass together are larger than `most` bytes."""
    with torch.no_grad(), _Counting(most):
        state = {
            name: torch.empty(info.shape, dtype=torch_dtype(info.dtype), device="meta")
            for name, info in segment.state.items()
        }
        inputs = {name: _blank(value, samples) for name, value in segment.inputs.items()}
        try:
            Runner(segment, state).forward(inputs, training=True)
        except NotImplementedError as error:
            raise InputError(f"the size of the network's results is not known: {error}") from None


def _blank(value: Value, samples: int) -> torch.Tensor:
    shape = list(value.shape)
    if value.batch_dim is not None:
        shape[value.batch_dim] = samples
    return torch.empty(shape, dtype=torch_dtype(value.dtype), device="meta")
