"""Numbers keep three digits and change their unit where people would."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.report.words import count, seconds, size

UNITS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9, "B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"), (1.234, "1.23 s"), (0.9996, "1.00 s"), (0.0456, "45.6 ms"), (75, "75.0 s"),
        (12345.6, "12346 s"), (2e-6, "2.00 µs"), (3e-10, "0.30 ns"),
    ],
)  # fmt: skip
def test_seconds_read_as_people_write_them(value: float, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (999, "999 B"), (1024, "1.02 kB"), (999_999, "1.00 MB"), (5e12, "5000 GB")],
)
def test_sizes_read_as_people_write_them(value: float, text: str) -> None:
    assert size(value) == text


def test_counts_have_short_units() -> None:
    assert [count(n) for n in (61, 44_426, 1.24e9)] == ["61", "44.4 k", "1.24 G"]


@given(st.floats(1e-9, 1e6))
def test_a_printed_time_is_within_one_percent_of_the_number(value: float) -> None:
    number, unit = seconds(value).split()
    assert abs(float(number) * UNITS[unit] - value) <= 0.01 * value


@given(st.integers(1, 10**13))
def test_a_printed_size_is_within_one_percent_of_the_number(value: int) -> None:
    number, unit = size(value).split()
    assert abs(float(number) * UNITS[unit] - value) <= 0.01 * value
