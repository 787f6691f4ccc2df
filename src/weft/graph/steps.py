"""Runs the steps of a segment; in inference several views in a row are one step.

    run(as_one(steps, kept), env, batch=16, seed=0)

`transpose`, `select`, `unflatten` and the like give the same numbers with other sizes and strides, and a
small transformer has more of them than of products. Where one follows another, only the last result is read.
So the first call with a size runs them all and keeps the last result's sizes, strides and place; later calls
ask PyTorch for that view at once. The numbers are the same, and so is the memory in which they lie. Only
without gradients: the derivative of such a view is slower than theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.graph.network import Batch
from weft.graph.operators.record import Function

SIZES = 64  # different sizes that a view is kept for; a fleet's pieces have two or three
Draw = Callable[[int], object]


class Step(NamedTuple):
    """One call: a function, its arguments, and which of them are values or a number of samples."""

    function: Function
    args: list[Any]
    fills: tuple[tuple[int, int | None, int], ...]  # (argument, item of a list argument, slot)
    batches: tuple[tuple[int, int | None, Batch], ...]
    kwargs: dict[str, Any]
    out: int
    dead: tuple[int, ...]  # slots that no later step reads: freed at once, as in eager mode
    seed: int  # 0: draws nothing
    view: bool = False  # its result shares memory with its only operand, or may do so


def run(
    steps: Sequence[Step],
    env: list[Any],
    batch: int,
    seed: int,
    draw: Draw = torch.default_generator.manual_seed,
) -> None:
    """Calls one step after the other. `env` holds the values by slot; `draw` gives the seed of the
    micro-batch to the generator of random numbers."""
    for function, template, fills, batches, kwargs, out, dead, salt, _ in steps:
        args = template.copy()
        for position, item, slot in fills:
            if item is None:
                args[position] = env[slot]
            else:
                args[position][item] = env[slot]
        for position, item, b in batches:
            if item is None:
                args[position] = b.times * batch + b.plus
            else:
                args[position][item] = b.times * batch + b.plus
        if salt:
            draw((seed * 1_000_003 + salt) & 0x7FFF_FFFF_FFFF_FFFF)
        env[out] = function(*args, **kwargs)
        for position, item, _ in fills:  # a template must not keep activations in memory
            if item is not None:
                args[position][item] = None
        for slot in dead:
            env[slot] = None


class _Place(NamedTuple):
    """Where a view lies in the memory of its operand."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    further: int  # numbers after the operand's first


class _Row:
    """Views that follow each other. Called with the first one's operand and the number of samples."""

    def __init__(self, steps: list[Step]) -> None:
        # Slot 0 is the operand, and each step reads the slot before its own.
        self.steps = [
            step._replace(fills=((0, None, n),), out=n + 1, dead=(n,))
            for n, step in enumerate(steps)
        ]
        self.places: dict[tuple[Any, ...], _Place | None] = {}

    def __call__(self, operand: Tensor, samples: int) -> Tensor:
        if (
            torch.is_grad_enabled() or type(operand) is not Tensor
        ):  # not for tensors without numbers
            return self._one_by_one(operand, samples)
        key = (samples, operand.shape, operand.stride())
        if key not in self.places:
            return self._first(operand, samples, key)
        place = self.places[key]
        if place is None:
            return self._one_by_one(operand, samples)
        sizes, strides, further = place
        return operand.as_strided(sizes, strides, operand.storage_offset() + further)

    def _first(self, operand: Tensor, samples: int, key: tuple[Any, ...]) -> Tensor:
        """Runs the views one by one and keeps where the result lies; a copy has no place."""
        result = self._one_by_one(operand, samples)
        if len(self.places) >= SIZES:
            self.places.clear()
        memory = operand.untyped_storage().data_ptr()  # 0: it has no numbers
        shared = memory != 0 and result.untyped_storage().data_ptr() == memory
        further = int(result.storage_offset()) - int(operand.storage_offset())
        place = _Place(tuple(result.shape), result.stride(), further)
        self.places[key] = place if shared else None
        return result

    def _one_by_one(self, operand: Tensor, samples: int) -> Tensor:
        env: list[Any] = [operand, *[None] * len(self.steps)]
        run(self.steps, env, samples, 0)
        result: Tensor = env[-1]
        return result


def as_one(steps: Sequence[Step], kept: set[int]) -> list[Step]:
    """The steps with rows of views made one; `kept` are slots that are read afterwards.

    A view moves to the place of the one whose result it reads: all that it needs is there.
    """
    readers = Counter(slot for step in steps for _, _, slot in step.fills)
    rows: list[list[Step]] = []
    ends: dict[int, list[Step]] = {}  # by the slot of its last view: the row that may become longer
    for step in steps:
        row = ends.pop(step.fills[0][2], None) if step.view and len(step.fills) == 1 else None
        if row is None:
            row = []
            rows.append(row)
        row.append(step)
        if step.view and readers[step.out] == 1 and step.out not in kept:
            ends[step.out] = row
    return [_joined(row) if len(row) > 1 else row[0] for row in rows]


def _joined(row: list[Step]) -> Step:
    samples = ((1, None, Batch(times=1, plus=0)),)
    return row[0]._replace(
        function=_Row(row), args=[None, None], fills=((0, None, row[0].fills[0][2]),),
        batches=samples, kwargs={}, out=row[-1].out,
    )  # fmt: skip
