"""Text becomes the same numbers everywhere."""

from __future__ import annotations

import zlib

from hypothesis import given, settings
from hypothesis import strategies as st

from weft.data.text import LENGTH, PADDING, VOCABULARY, tokenize, tokens


@settings(deadline=None, max_examples=50)  # how long it takes is no promise
@given(st.text(max_size=600))
def test_any_text_has_the_fixed_length_and_numbers_inside_the_vocabulary(text: str) -> None:
    numbers = tokens(text)
    assert len(numbers) == LENGTH
    assert all(0 <= number < VOCABULARY for number in numbers)
    words = LENGTH - numbers.count(PADDING)
    assert all(number == PADDING for number in numbers[words:])  # padding only at the end


def test_words_are_hashed_with_crc_32_whatever_their_case_and_punctuation() -> None:
    expected = [1 + zlib.crc32(word) % 8191 for word in (b"oil", b"prices", b"2004")]
    assert tokens("Oil-prices, 2004!")[:4] == [*expected, PADDING]
    assert tokens("cat")[:2] == [5826, PADDING]


def test_a_list_of_texts_becomes_one_row_each() -> None:
    assert tokenize(["a b", ""]).shape == (2, LENGTH)
    assert tokenize([]).shape == (0, LENGTH)
