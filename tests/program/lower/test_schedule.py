"""The turns of a stage."""

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.program.lower import schedule
from weft.program.lower.schedule import forwards_ahead, micro_sizes, one_forward_one_backward


def turns(micro_batches: int, ahead: int) -> str:
    return " ".join(
        f"{what[0].upper()}{micro}"
        for what, micro in one_forward_one_backward(micro_batches, ahead)
    )


def test_the_examples_in_the_docstrings_hold() -> None:
    assert doctest.testmod(schedule).failed == 0
    assert doctest.testmod(schedule).attempted > 0


def test_the_turns_are_those_of_the_table_in_the_module() -> None:
    for line in (schedule.__doc__ or "").splitlines():
        if line.strip().startswith("stage "):
            head, table = line.split("ahead ")
            stage, ahead = int(head.split()[1].strip(",")), int(table.split()[0])
            assert forwards_ahead(stage, stages=3, micro_batches=4, in_flight=3) == ahead
            assert turns(4, ahead).split() == [t for t in table.split()[1:] if t != ".."]


@given(batch=st.integers(1, 200), data=st.data())
def test_micro_batches_are_even_and_lose_no_sample(batch: int, data: st.DataObject) -> None:
    sizes = micro_sizes(batch, data.draw(st.integers(1, batch)))
    assert sum(sizes) == batch
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@given(micro_batches=st.integers(1, 30), data=st.data())
def test_a_stage_never_holds_more_than_it_may_run_ahead(
    micro_batches: int, data: st.DataObject
) -> None:
    ahead = data.draw(st.integers(1, micro_batches))
    held, most = set(), 0
    for what, micro in one_forward_one_backward(micro_batches, ahead):
        if what == "forward":
            held.add(micro)
        else:
            held.remove(micro)  # its forward came before
        most = max(most, len(held))
    assert not held
    assert most <= ahead


@pytest.mark.parametrize("in_flight", [1, 2, 3, 7])
def test_the_first_stage_runs_in_flight_ahead_and_the_last_one(in_flight: int) -> None:
    ahead = [forwards_ahead(s, 4, 100, in_flight) for s in range(4)]
    assert ahead[0] == in_flight
    assert ahead[-1] == 1
    assert ahead == sorted(ahead, reverse=True)
