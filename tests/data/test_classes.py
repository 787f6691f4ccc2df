"""Samples of classes dealt out over peers, and recordings as pictures."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.data.classes import class_rows
from weft.data.spectrogram import spectrograms
from weft.errors import InputError


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.data())
def test_split_parts_every_sample_once_and_replicate_gives_all_to_each_owner(
    labels: list[int], data: st.DataObject
) -> None:
    y = torch.tensor(labels)
    sets = [(0, 1), (1, 2), (2, 3, 0)]
    shares = data.draw(st.none() | st.lists(st.floats(0.1, 5), min_size=3, max_size=3))
    parts = class_rows(y, sets, "split", seed=1, shares=shares)
    assert sorted(torch.cat(parts).tolist()) == list(range(len(labels)))
    whole = class_rows(y, sets, "replicate")
    for held, part, every in zip(sets, parts, whole, strict=True):
        assert set(y[part].tolist()) <= set(held)
        assert every.tolist() == [i for i, label in enumerate(labels) if label in held]


def test_shares_decide_how_much_an_owner_gets() -> None:
    parts = class_rows(torch.zeros(100, dtype=torch.long), [(0,), (0,)], "split", shares=[1, 3])
    assert [len(part) for part in parts] == [25, 75]


def test_an_unknown_way_to_deal_is_refused() -> None:
    with pytest.raises(InputError, match="'halves' is not one of replicate, split"):
        class_rows(torch.zeros(3), [(0,)], "halves")  # type: ignore[arg-type]


def test_a_tone_lights_up_its_own_band_of_the_spectrogram() -> None:
    time = torch.arange(8000) / 8000
    tones = torch.stack(
        [torch.sin(2 * torch.pi * hertz * time) for hertz in (300.0, 1000.0, 3000.0)]
    )
    pictures = spectrograms(tones[:, None])
    assert pictures.shape == (3, 1, 32, 32)
    bands = pictures[:, 0].mean(2).argmax(1)
    assert bands[0] < bands[1] < bands[2]
    assert pictures.mean((1, 2, 3)).abs().max() < 1e-4
