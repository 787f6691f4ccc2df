"""A classification set in memory."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Dataset:
    """Images are float32 in 0..1 with shape (N, channels, height, width); labels are int64."""

    name: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int

    @property
    def input_shape(self) -> tuple[int, ...]:
        """One sample's shape, as `weft.zoo.build` takes it."""
        return tuple(self.train_x.shape[1:])
