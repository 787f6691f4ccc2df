"""Messages between devices: a small typed header and raw tensor bytes. Never pickle.

The header is the message's attachment. The payload is the tensors' bytes, one after the other. `unpack`
checks every size against the payload before it makes a tensor. A message that does not fit raises
`BadMessage`; the receiver counts, logs and drops it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct
from torch import Tensor

from weft.codecs.registry import CodecName
from weft.codecs.tensors import TensorSpec, checked_bytes, decode, encode, tensor_bytes

MAX_HEADER = 64 * 1024
MAX_TENSORS = 256
MAX_PAYLOAD = 1 << 30
HEADER_BYTES = 1024  # that a header takes in memory, roughly
MAX_NAME = 64  # letters of a run, a device or a kind
MAX_TENSOR_NAME = 256


Buffer = bytes | bytearray | memoryview


class BadMessage(ValueError):
    """Bytes from the network that are not a valid message."""


class Header(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Says which tensor of which run a message holds, so that a stale, repeated or foreign message is
    recognised."""

    run: str
    version: int  # of the plan
    step: int  # minibatch
    kind: str
    at: int
    micro: int
    source: str
    dest: str
    bytes: int  # of the payload, all pieces together
    tensors: tuple[TensorSpec, ...] = ()
    piece: int = 0  # a message over several links is cut into pieces, sent in order
    pieces: int = 1
    due: float = 0.0  # emulated latency: not used before this time of the machine's clock
    part: int = 0  # which part of the tensor
    slot: int = -1  # best effort: the slot, which decides which losses are drawn
    attempt: int = 0  # how often it has been sent before
    lost: bool = False  # emulated: the notice that a message is lost
    count: int = 0  # of its sender: a second message with it is a replay

    @property
    def key(self) -> Key:
        return (self.version, self.step, self.kind, self.at, self.micro, self.part)


Key = tuple[int, int, str, int, int, int]  # version, step, kind, cut, micro-batch, part

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Header)


class Views:
    """A payload that lies in its tensors' memory. Whoever keeps it must copy it: the tensors may change."""

    __slots__ = ("_size", "parts")

    def __init__(self, parts: Sequence[Buffer]) -> None:
        self.parts = parts
        self._size = sum(map(len, parts))

    def __len__(self) -> int:
        return self._size


Payload = Buffer | Views


def whole(payload: Payload) -> Buffer:
    """The payload in one piece, in memory of its own."""
    return b"".join(payload.parts) if isinstance(payload, Views) else payload


def view_tensors(
    tensors: Mapping[str, Tensor], codec: CodecName = "none"
) -> tuple[tuple[TensorSpec, ...], list[Buffer]]:
    """(specs, the bytes of each tensor). Nothing is copied but what a codec makes."""
    specs: list[TensorSpec] = []
    views: list[Buffer] = []
    for name, tensor in tensors.items():
        spec, data = encode(name, tensor, codec)
        specs.append(spec)
        views.append(tensor_bytes(data))
    return tuple(specs), views


def pack_tensors(
    tensors: Mapping[str, Tensor], codec: CodecName = "none"
) -> tuple[tuple[TensorSpec, ...], bytes]:
    """(specs, payload). Each tensor's bytes are copied only once."""
    specs, views = view_tensors(tensors, codec)
    return specs, b"".join(views)


def pack_header(header: Header) -> bytes:
    """The bytes of a header."""
    return _encoder.encode(header)


def unpack_header(data: bytes | memoryview) -> Header:
    """The header. For any other bytes it raises BadMessage, and never another error."""
    if len(data) > MAX_HEADER:
        raise BadMessage(f"header of {len(data)} bytes; at most {MAX_HEADER} are allowed")
    try:
        header = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadMessage(f"not a header: {error}") from None
    if max(map(len, (header.run, header.kind, header.source, header.dest))) > MAX_NAME:
        raise BadMessage(f"a name of more than {MAX_NAME} letters")
    if len(header.tensors) > MAX_TENSORS:
        raise BadMessage(f"{len(header.tensors)} tensors; at most {MAX_TENSORS} are allowed")
    if not 0 <= header.bytes <= MAX_PAYLOAD:
        raise BadMessage(f"announces {header.bytes} bytes; at most {MAX_PAYLOAD} are allowed")
    if not 0 <= header.piece < header.pieces <= 1024:
        raise BadMessage(f"piece {header.piece} of {header.pieces}")
    total = 0
    for spec in header.tensors:
        if len(spec.name) > MAX_TENSOR_NAME:
            raise BadMessage(f"a tensor's name of more than {MAX_TENSOR_NAME} letters")
        try:
            total += checked_bytes(spec)
        except ValueError as error:
            raise BadMessage(str(error)) from None
    if header.tensors and total != header.bytes:
        raise BadMessage(f"tensors of {total} bytes in a message of {header.bytes}")
    return header


def unpack_tensors(header: Header, payload: Buffer) -> dict[str, Tensor]:
    """The tensors by name; sizes are checked against the payload first."""
    if len(payload) != header.bytes:
        raise BadMessage(f"{len(payload)} bytes where the header says {header.bytes}")
    view, position = memoryview(payload), 0
    found: dict[str, Tensor] = {}
    for spec in header.tensors:
        try:
            end = position + checked_bytes(spec)
            found[spec.name] = decode(spec, view[position:end])
        except ValueError as error:
            raise BadMessage(str(error)) from None
        position = end
    return found
