"""Several devices with data: shares add up to the batch, in proportion, or are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import InputError
from weft.fleet.fleet import Device, Fleet
from weft.fleet.owners import Owner, first_samples, in_proportion, owners_of
from weft.fleet.parse import dump_fleet, parse_fleet


def fleet(*samples: int | None) -> Fleet:
    devices = [Device(f"d{n}", data=True, samples=count) for n, count in enumerate(samples)]
    return Fleet((*devices, Device("edge", "edge")))


def test_one_device_with_data_has_all_of_the_batch() -> None:
    assert owners_of(fleet(7), 32) == ()
    assert owners_of(Fleet((Device("a"), Device("b"))), 32) == ()


def test_shares_are_equal_or_in_proportion_to_samples() -> None:
    assert owners_of(fleet(None, None), 9) == (Owner("d0", 5), Owner("d1", 4))
    assert owners_of(fleet(3000, 1000), 32) == (Owner("d0", 24), Owner("d1", 8))


def test_a_share_of_nothing_and_half_said_samples_are_refused() -> None:
    with pytest.raises(InputError, match="batch 4 has no sample for d1"):
        owners_of(fleet(1000, 1), 4)
    with pytest.raises(InputError, match="not of d1"):
        owners_of(fleet(10, None), 4)


def test_a_fleet_file_says_samples_and_is_written_with_them() -> None:
    known = fleet(30, 10)
    assert parse_fleet(dump_fleet(known)) == known


@given(total=st.integers(0, 500), weights=st.lists(st.integers(1, 1000), min_size=1, max_size=9))
def test_shares_add_up_and_are_within_one_of_exact(total: int, weights: list[int]) -> None:
    shares = in_proportion(total, weights)
    assert sum(shares) == total
    for share, weight in zip(shares, weights, strict=True):
        assert abs(share - total * weight / sum(weights)) < 1
    assert first_samples(shares) == [sum(shares[:n]) for n in range(len(shares))]
