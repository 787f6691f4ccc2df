"""What coding costs is measured on each node, codec by codec."""

from __future__ import annotations

import torch

from weft.codecs.registry import CODECS
from weft.codecs.times import measure_codecs


def test_every_codec_but_none_has_a_price() -> None:
    threads = torch.get_num_threads()
    measured = measure_codecs()
    assert set(measured) == set(CODECS) - {"none"}
    for name, times in measured.items():
        assert 0 < times.encode(1 << 20) < 1, name
        assert 0 < times.decode(1 << 20) < 1, name
    assert torch.get_num_threads() == threads


def test_a_large_message_costs_more_than_a_small_one() -> None:
    times = measure_codecs()["int8"]
    assert times.encode(1 << 20) > 4 * times.encode(1 << 10)
    assert times.scaled(2.0).decode(1000) == 2 * times.decode(1000)
