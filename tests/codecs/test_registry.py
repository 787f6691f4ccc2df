"""The names of codecs: every one is known everywhere, and no other is accepted anywhere."""

from __future__ import annotations

import subprocess
import sys

import pytest

from weft.codecs.base import MAX_EXTRA_BYTES, Codec
from weft.codecs.registry import CODECS, codec_named, coded_bytes
from weft.errors import InputError
from weft.plans import options


def test_every_codec_is_complete() -> None:
    for name, codec in CODECS.items():
        assert isinstance(codec, Codec)
        assert name == codec.name
        assert codec.summary
        assert codec.extra_bytes <= MAX_EXTRA_BYTES


def test_an_unknown_codec_is_refused_and_the_known_ones_are_listed() -> None:
    for ask in (codec_named, lambda name: coded_bytes(100, name)):
        with pytest.raises(InputError, match=r"'zip'; there are: none, fp16, int8, int8-blocks"):
            ask("zip")


@pytest.mark.parametrize(
    ("raw", "sizes"),
    [(0, (0, 0, 8, 0)), (4, (4, 2, 9, 9)), (1000, (1000, 500, 258, 258)),
     (4096, (4096, 2048, 1032, 1056)), (4100, (4100, 2050, 1033, 1065))],
)  # fmt: skip
def test_bytes_of_a_message_as_a_plan_counts_them(raw: int, sizes: tuple[int, ...]) -> None:
    assert tuple(coded_bytes(raw, name) for name in CODECS) == sizes


def test_help_texts_name_every_codec() -> None:
    for key in ("codec", "input_codec"):
        assert all(name in options.COMMON[key] for name in CODECS)


def test_sizes_are_known_without_loading_torch() -> None:
    code = "import sys, weft.codecs.registry; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
