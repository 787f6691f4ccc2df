"""Any device at any step finds the same minibatch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.data.batches import _permutation, batch_indices, joint_indices, owned_indices
from weft.errors import InputError

counts = st.integers(1, 40)
seeds = st.integers(0, 2**63)


@settings(deadline=None, max_examples=50)  # how long it takes is no promise
@given(n=counts, batch=st.integers(1, 100), seed=seeds, steps=st.integers(1, 12))
def test_epochs_follow_each_other_and_each_holds_every_sample_once(
    n: int, batch: int, seed: int, steps: int
) -> None:
    batches = [batch_indices(n, batch, step, seed) for step in range(steps)]
    assert all(indices.shape == (batch,) for indices in batches)
    stream = torch.cat(batches)
    for start in range(0, len(stream) - n + 1, n):
        assert sorted(stream[start : start + n].tolist()) == list(range(n))


@settings(deadline=None, max_examples=50)  # how long it takes is no promise
@given(n=counts, batch=counts, seed=seeds, step=st.integers(0, 10**9))
def test_a_minibatch_does_not_depend_on_what_was_asked_before(
    n: int, batch: int, seed: int, step: int
) -> None:
    first = batch_indices(n, batch, step, seed)
    _permutation.cache_clear()
    batch_indices(n, batch, step + 1, seed)
    assert torch.equal(batch_indices(n, batch, step, seed), first)


def test_changing_a_minibatch_in_place_does_not_change_the_stream() -> None:
    first = batch_indices(10, 4, 0, 3)
    kept = first.clone()
    first.zero_()
    assert torch.equal(batch_indices(10, 4, 0, 3), kept)


def test_epochs_and_seeds_are_shuffled_differently() -> None:
    streams = {tuple(batch_indices(100, 100, step, seed).tolist())
               for step in range(3) for seed in range(3)}  # fmt: skip
    assert len(streams) == 9


def test_the_stream_is_the_same_on_every_platform_and_version() -> None:
    assert batch_indices(10, 4, 2, 0).tolist() == [2, 4, 7, 3]
    assert batch_indices(3, 8, 0, 0).tolist() == [2, 1, 0, 1, 0, 2, 2, 1]
    assert batch_indices(10, 4, 2, 0).dtype == torch.int64


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((0, 1, 0, 0), "n is 0"),
        ((5, 0, 0, 0), "batch is 0"),
        ((5, 1, -1, 0), "step is -1"),
        ((5, 1, 0, -2), "seed is -2"),
    ],
)
def test_impossible_requests_are_refused(arguments: tuple[int, int, int, int], says: str) -> None:
    with pytest.raises(InputError, match=says):
        batch_indices(*arguments)


def test_owners_draw_from_their_own_samples_alone_and_the_joint_minibatch_is_theirs_in_order() -> (
    None
):
    shares = (6, 2)
    for step in range(30):
        one, two = (owned_indices(41, shares, owner, step, seed=3) for owner in range(2))
        assert (len(one), len(two)) == shares
        assert int(one.max()) < 30 <= int(two.min())
        assert torch.equal(joint_indices(41, shares, step, seed=3), torch.cat([one, two]))


def test_every_owner_needs_a_sample() -> None:
    with pytest.raises(InputError, match="1 samples are too few for 2 devices"):
        owned_indices(1, (9, 1), 1, 0, 0)
