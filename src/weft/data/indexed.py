"""A torch Dataset, or another object that has samples by number: minibatch n is a function of n alone.

data = Indexed(samples)
data.rows([3, 1])        # samples 3 and 1, put together as a DataLoader does
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.utils.data import default_collate

from weft.data.streams import Pair, pair_of
from weft.errors import InputError
from weft.user_files import as_input_error


class Indexed:
    """Samples by number. They are read when a minibatch needs them."""

    def __init__(self, samples: Any) -> None:
        self._samples = samples
        self.count = len(samples)
        if not self.count:
            raise InputError("the data has no samples")

    def rows(self, numbers: Sequence[int]) -> Pair:
        """These samples and their targets."""
        with as_input_error("data"):
            return pair_of(default_collate([self._samples[n] for n in numbers]))
