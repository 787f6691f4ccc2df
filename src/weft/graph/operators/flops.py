"""How many floating-point operations an operator needs, counted as the papers count.

2 for each multiply-add, one for each bias add of a convolution, nothing for pooling, activations and
normalisation. A rule gets the shape of the result and asks for the shapes of the arguments by position; an
argument without a shape (a missing bias) has None.
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
    weight, given = shape(1) or (), shape(0) or ()
    return 2.0 * prod(given) * prod(weight[1:])


def dense(out: Shape, shape: ShapeOf) -> float:
    """Every number of the result is a product with one row of the weight."""
    return 2.0 * prod(out) * (shape(1) or (0, 0))[-1]


def product(out: Shape, shape: ShapeOf) -> float:
    """Of a matrix product."""
    return 2.0 * prod(out) * (shape(0) or (0,))[-1]


def product_added(out: Shape, shape: ShapeOf) -> float:
    """Of a matrix product that is added to the first argument."""
    return 2.0 * prod(out) * (shape(1) or (0,))[-1]


def attention(out: Shape, shape: ShapeOf) -> float:
    """Two matrix products: queries with keys, then with values."""
    query, key = shape(0) or (0, 0), shape(1) or (0, 0)
    return 4.0 * prod(query) * key[-2]
