"""How many floating-point operations an operator needs, counted as the papers count.

A multiply-add counts 2, a bias add of a convolution 1. Pooling, activations and normalisation count nothing.
A rule gets the shape of the result, and a function that returns the shape of an argument by its position
(None for an argument without a shape, such as a missing bias).
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

Shape = tuple[int, ...]
ShapeOf = Callable[[int], Shape | None]
Flops = Callable[[Shape, ShapeOf], float]


def convolution(out: Shape, shape: ShapeOf) -> float:
    """Every number of the result is a product with one kernel."""
    weight = shape(1) or ()
    bias = 1.0 if shape(2) is not None else 0.0
    return prod(out) * (2.0 * prod(weight[1:]) + bias)


def transposed_convolution(out: Shape, shape: ShapeOf) -> float:
    """Every number of the input is multiplied with one kernel."""
    weight, source = shape(1) or (), shape(0) or ()
    return 2.0 * prod(source) * prod(weight[1:])


def dense(out: Shape, shape: ShapeOf) -> float:
    """Every number of the result is a product with one row of the weight."""
    return 2.0 * prod(out) * (shape(1) or (0, 0))[-1]


def product(out: Shape, shape: ShapeOf) -> float:
    """A matrix product."""
    return 2.0 * prod(out) * (shape(0) or (0,))[-1]


def product_added(out: Shape, shape: ShapeOf) -> float:
    """A matrix product that is added to the first argument."""
    return 2.0 * prod(out) * (shape(1) or (0,))[-1]


def attention(out: Shape, shape: ShapeOf) -> float:
    """Two matrix products: queries with keys, then with values."""
    query, key = shape(0) or (0, 0), shape(1) or (0, 0)
    return 4.0 * prod(query) * key[-2]
