"""What a codec is: a way to write the floating-point values of a tensor with fewer bytes.

A codec is one class in one file. It knows its name, how many bytes a message takes, and how values are
written and read:

    class Fp16(Codec):
        name = "fp16"
        summary = "half precision: 2 bytes for each number"

        def payload_bytes(self, elements, value_bytes): ...
        def encode(self, values): ...
        def decode(self, coded, elements, dtype): ...

PyTorch is imported only when values are coded, because planners need only sizes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, NamedTuple

if TYPE_CHECKING:
    import torch
    from torch import Tensor

FLOAT32_BYTES = 4
MAX_EXTRA_BYTES = 64  # that a codec may put into the header of a message, for each tensor


class Encoded(NamedTuple):
    """A tensor's coded values: a contiguous CPU tensor, and a few bytes for the header."""

    data: Tensor
    extra: bytes = b""


class Received(NamedTuple):
    """The same at the receiver. Both sizes have been checked."""

    data: memoryview
    extra: bytes


class Codec(ABC):
    """One way to write values. A codec has no state, so one object is used for all tensors."""

    name: ClassVar[str]  # the name in `--set codec=NAME`, plans and messages
    summary: ClassVar[str]  # one line of help
    extra_bytes: ClassVar[int] = 0  # exactly so many bytes in the header for each coded tensor

    def wire_bytes(self, raw: int) -> int:
        """Bytes of one message that holds `raw` bytes of float32 values. A plan counts these bytes.

        A message that carries several tensors counts as one tensor of their total size.
        """
        elements = -(-raw // FLOAT32_BYTES)
        return self.payload_bytes(elements, FLOAT32_BYTES) + self.extra_bytes

    @abstractmethod
    def payload_bytes(self, elements: int, value_bytes: int) -> int:
        """Bytes of one coded tensor, without those in the header."""

    @abstractmethod
    def encode(self, values: Tensor) -> Encoded | None:
        """The coded values. None if this codec cannot code them; then they are sent uncoded.

        `values` is not empty, has a floating-point type and may lie in memory in any order.
        """

    @abstractmethod
    def decode(self, received: Received, elements: int, dtype: torch.dtype) -> Tensor:
        """The values in one row. Raises ValueError if the bytes cannot come from `encode`."""

    def problem(self, extra: bytes) -> str | None:
        """Why these bytes of a header cannot come from `encode`, or None."""
        if len(extra) != self.extra_bytes:
            return f"{len(extra)} bytes for codec {self.name} in the header, not {self.extra_bytes}"
        return None
