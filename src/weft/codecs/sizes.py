"""How many bytes something takes on the wire, by codec."""

from __future__ import annotations

from typing import Literal

Codec = Literal["none", "fp16", "int8"]

INT8_HEADER_BYTES = 8  # a message's scale and zero point, as two float32


def coded_bytes(raw: int, codec: Codec) -> int:
    """Bytes on the wire of one message that holds `raw` bytes of float32 values.

    >>> coded_bytes(1000, "none"), coded_bytes(1000, "fp16"), coded_bytes(1000, "int8")
    (1000, 500, 258)
    """
    if codec == "fp16":
        return -(-raw // 2)
    if codec == "int8":
        return -(-raw // 4) + INT8_HEADER_BYTES
    return raw
