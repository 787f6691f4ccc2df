"""What coding costs a processor, measured once on each node.

    measured = measure_codecs()
    measured["int8"].encode(1 << 20)      # seconds to write a message of 1 MB on the wire
    measured["int8"].decode(1 << 20)      # seconds to read it

A message takes so many seconds of its own, and so many for each byte on the wire. Both are CPU time of the
thread that codes, which is the one that computes.
"""

from __future__ import annotations

import statistics
import time

from msgspec import Struct

from weft.codecs.registry import CODECS, CodecName, coded_bytes

SMALL, LARGE = 256, 1 << 18  # numbers in a tensor
TENSORS = 4  # that are coded in turn, so that the values are not all in the nearest cache
ROUNDS = 7  # of all tensors, after one to warm up


class CodecTimes(Struct, frozen=True):
    """One codec on one device: seconds for each message, and for each byte on the wire."""

    encode_s: float
    encode_byte_s: float
    decode_s: float
    decode_byte_s: float

    def encode(self, size: float) -> float:
        """Seconds to write a message of so many bytes on the wire."""
        return self.encode_s + self.encode_byte_s * size

    def decode(self, size: float) -> float:
        """Seconds to read it."""
        return self.decode_s + self.decode_byte_s * size

    def scaled(self, factor: float) -> CodecTimes:
        """The same on a device that takes `factor` times as long."""
        return CodecTimes(
            self.encode_s * factor,
            self.encode_byte_s * factor,
            self.decode_s * factor,
            self.decode_byte_s * factor,
        )


def measure_codecs(threads: int = 1) -> dict[CodecName, CodecTimes]:
    """The times of all codecs here, in a few tenths of a second: CPU time of this thread, medians. `threads`:
    with how many a device computes.

    What a message costs without a codec is a part of the runtime's own time, so it is not counted again.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return _measured()
    finally:
        torch.set_num_threads(before)


def _measured() -> dict[CodecName, CodecTimes]:
    plain = {numbers: _seconds("none", numbers) for numbers in (SMALL, LARGE)}
    measured: dict[CodecName, CodecTimes] = {}
    for name in CODECS:
        if name == "none":
            continue
        sizes = [coded_bytes(4 * numbers, name) for numbers in (SMALL, LARGE)]
        small, large = (_seconds(name, numbers) for numbers in (SMALL, LARGE))
        ends: list[float] = []
        for end in (0, 1):
            first = max(0.0, small[end] - plain[SMALL][end])
            last = max(first, large[end] - plain[LARGE][end])
            per_byte = (last - first) / (sizes[1] - sizes[0])
            ends += [max(0.0, first - per_byte * sizes[0]), per_byte]
        measured[name] = CodecTimes(*ends)
    return measured


def _seconds(codec: CodecName, numbers: int) -> tuple[float, float]:
    """Medians of writing and of reading a tensor of so many numbers."""
    import torch

    from weft.codecs.tensors import decode, encode, tensor_bytes

    tensors = [torch.randn(numbers) for _ in range(TENSORS)]
    written, read = [], []
    for round_ in range(ROUNDS + 1):
        for tensor in tensors:
            begin = time.thread_time()
            spec, data = encode("", tensor, codec)
            coded = time.thread_time()
            decode(spec, tensor_bytes(data))
            if round_:
                written.append(coded - begin)
                read.append(time.thread_time() - coded)
    return statistics.median(written), statistics.median(read)
