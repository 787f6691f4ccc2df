"""What a codec is: a way to write the floating-point values of a tensor with fewer bytes.

A codec is one class in one file. It knows its name, how many bytes a message takes, and how values are
written and read:

    class Fp16(Codec):
        name = "fp16"
        summary = "half precision: 2 bytes for each number"

        def payload_bytes(self, elements, value_bytes): ...
        def encode(self, values): ...
        def decode(self, coded, elements, dtype): ...

PyTorch is imported where values are coded and not before: planners ask only for sizes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, NamedTuple

if TYPE_CHECKING:
    import torch
    from torch import Tensor

FLOAT32_BYTES = 4
MAX_EXTRA_BYTES = 64  # what a codec may keep in the header of a message, for each tensor


class Encoded(NamedTuple):
    """A tensor's values as they travel: a contiguous CPU tensor, and a few bytes for the header."""

    data: Tensor
    extra: bytes = b""


class Received(NamedTuple):
    """The same at the other end. Both sizes have been checked."""

    data: memoryview
    extra: bytes


class Codec(ABC):
    """One way to write values. It has no state: the same object serves every tensor."""

    name: ClassVar[str]  # what `--set codec=NAME`, plans and messages say
    summary: ClassVar[str]  # one line for people who choose
    extra_bytes: ClassVar[int] = 0  # exactly so many stand in the header for each coded tensor

    def wire_bytes(self, raw: int) -> int:
        """Bytes of one message that holds `raw` bytes of float32 values: what a plan counts.

        A message that carries several tensors counts as one tensor of their common size.
        """
        elements = -(-raw // FLOAT32_BYTES)
        return self.payload_bytes(elements, FLOAT32_BYTES) + self.extra_bytes

    @abstractmethod
    def payload_bytes(self, elements: int, value_bytes: int) -> int:
        """Bytes of one coded tensor, without those in the header."""

    @abstractmethod
    def encode(self, values: Tensor) -> Encoded | None:
        """The values coded; None if this codec cannot carry them, and they travel as they are.

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
