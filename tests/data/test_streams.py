"""Loaders, generators, torch Datasets and memmaps as data: the same minibatch n whenever it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from weft.data import streams
from weft.data.streams import Stream, pair_of
from weft.data.user_data import named_data, opened, own_batch, sample_shape
from weft.errors import InputError
from weft.runtime.run.feeds import source_of

X = torch.arange(20.0).reshape(10, 2)
Y = torch.arange(10)


def loader(**settings: object) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(TensorDataset(X, Y), **settings)  # type: ignore[arg-type]


def test_a_loader_is_read_in_its_order_pass_after_pass() -> None:
    stream = Stream(loader(batch_size=5))
    assert stream.batch == 5
    assert [stream(n)[1].tolist() for n in range(3)] == [[*range(5)], [*range(5, 10)], [*range(5)]]


def test_shuffling_depends_on_the_seed_alone_and_moves_no_other_random_number() -> None:
    torch.manual_seed(1)
    first = [Stream(loader(batch_size=5, shuffle=True), seed=3)(n)[1].tolist() for n in range(4)]
    after = torch.rand(1)
    torch.manual_seed(2)
    again = [Stream(loader(batch_size=5, shuffle=True), seed=3)(n)[1].tolist() for n in range(4)]
    other = [Stream(loader(batch_size=5, shuffle=True), seed=4)(n)[1].tolist() for n in range(4)]
    assert first == again != other
    assert sorted(first[0] + first[1]) == [*range(10)]
    assert first[:2] != first[2:]  # another order in each pass
    torch.manual_seed(1)
    assert torch.equal(after, torch.rand(1))


def test_a_minibatch_is_repeated_until_it_is_forgotten() -> None:
    stream = Stream(iter([(X[n : n + 2], Y[n : n + 2]) for n in range(0, 10, 2)]))
    assert stream(4)[1].tolist() == [8, 9]
    assert stream(1)[1].tolist() == [2, 3]
    stream.forget(2)
    assert stream(2)[1].tolist() == [4, 5]
    with pytest.raises(InputError, match=r"minibatch 1 has to be repeated.*only 2 and later"):
        stream(1)


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "KEPT_BYTES", 3 * (2 * 2 * 4 + 2 * 8))
    stream = Stream(loader(batch_size=2))
    stream(4)
    assert stream(2)[1].tolist() == [4, 5]
    with pytest.raises(InputError, match="only 2 and later"):
        stream(1)


def test_an_incomplete_last_minibatch_is_left_out_and_named() -> None:
    stream = Stream(loader(batch_size=4))
    with pytest.warns(UserWarning, match="2 samples instead of 4; it is left out"):
        assert stream(2)[1].tolist() == [0, 1, 2, 3]
    assert stream.left_out == 2


def test_a_smaller_minibatch_in_the_middle_is_refused() -> None:
    sizes = [(0, 4), (4, 6), (6, 10)]
    stream = Stream([(X[a:b], Y[a:b]) for a, b in sizes])
    with pytest.raises(InputError, match="minibatch 1 of the data has 2 samples, the first has 4"):
        stream(1)


def test_an_iterator_ends_in_words_and_a_generator_function_begins_again() -> None:
    def minibatches() -> Iterator[tuple[Tensor, Tensor]]:
        yield X[:5], Y[:5]
        yield X[5:], Y[5:]

    assert opened(minibatches)(2)[1].tolist() == [*range(5)]  # type: ignore[operator]
    with pytest.raises(InputError, match="ended after 2 minibatches"):
        Stream(minibatches())(2)
    with pytest.raises(InputError, match="no minibatch"):
        Stream([])


def test_tuples_and_dicts_are_read_as_inputs_and_targets() -> None:
    (tokens, mask), y = pair_of([X, X > 3, Y])
    assert tokens is X
    assert mask.dtype == torch.bool
    assert y is Y
    inputs, y = pair_of({"tokens": X, "mask": X > 3, "labels": Y})
    assert sorted(inputs) == ["mask", "tokens"]
    assert y is Y
    for item, words in (
        ({"tokens": X, "mask": X}, "one of the keys labels"),
        (X, "is a Tensor"),
        ((X, Y[:3]), "10 samples but 3 targets"),
        ((X, ["a"]), "a str among them"),
    ):
        with pytest.raises(InputError, match=words):
            pair_of(item)


def test_samples_by_number_give_the_samples_of_tensors() -> None:
    by_number = source_of(TensorDataset(X, Y), 4, seed=5)
    tensors = source_of((X, Y), 4, seed=5)
    for step in (7, 0, 7):
        assert torch.equal(by_number.pairs(step)[0], tensors.pairs(step)[0])  # type: ignore[arg-type]
        assert torch.equal(by_number.pairs(step)[1], tensors.pairs(step)[1])  # type: ignore[arg-type]


def test_memmaps_are_read_by_rows_and_equal_tensors(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X.numpy())
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    source = source_of((x, Y.numpy()), 4, seed=5)
    assert torch.equal(source.pairs(3)[0], source_of((X, Y), 4, seed=5).pairs(3)[0])  # type: ignore[arg-type]
    source.example.add_(1)  # type: ignore[union-attr]  # a copy: the file cannot be written
    with pytest.raises(InputError, match="array of object"):
        source_of((np.array([None, None]), Y[:2]), 1, seed=0)


def test_a_file_may_give_a_loader(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\n"
        "def digits():\n"
        "    data = TensorDataset(torch.zeros(12, 1, 8, 8), torch.zeros(12).long())\n"
        "    return DataLoader(data, batch_size=6)\n"
        "def single():\n    return 5\n"
    )
    data = named_data(f"{tmp_path}/mine.py:digits")
    assert own_batch(data) == 6
    assert sample_shape(data) == (1, 8, 8)
    with pytest.raises(InputError, match="data is a int"):
        named_data(f"{tmp_path}/mine.py:single")
    with pytest.raises(InputError, match="batch_size=None"):
        opened(loader(batch_size=None))
