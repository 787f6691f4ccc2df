"""The codecs by name.

    codec_named("int8").summary
    coded_bytes(1000, "int8")        # bytes of one message on the wire, as a plan counts them

Names come from users, plan files and messages. An unknown name is refused.
"""

from __future__ import annotations

from typing import TypeAlias

from weft.codecs.base import Codec
from weft.codecs.fp16 import HalfPrecision
from weft.codecs.int8 import EightBits
from weft.codecs.int8_blocks import EightBitsByBlocks
from weft.codecs.none import Plain
from weft.errors import InputError

CodecName: TypeAlias = str  # a key of CODECS

CODECS: dict[CodecName, Codec] = {
    codec.name: codec for codec in (Plain(), HalfPrecision(), EightBits(), EightBitsByBlocks())
}


def codec_named(name: CodecName) -> Codec:
    """The codec of that name. Raises InputError, with all known names, for an unknown name."""
    try:
        return CODECS[name]
    except KeyError:
        raise InputError(f"unknown codec {name[:40]!r}; there are: {', '.join(CODECS)}") from None


def coded_bytes(raw: int, codec: CodecName) -> int:
    """Bytes on the wire of one message that holds `raw` bytes of float32 values.

    >>> [coded_bytes(1000, name) for name in ("none", "fp16", "int8", "int8-blocks")]
    [1000, 500, 258, 258]
    """
    return codec_named(codec).wire_bytes(raw)
