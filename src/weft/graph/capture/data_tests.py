"""Tests of data in Python, such as `if mask.all():`, that have the same result for every input.

`torch.export` computes without data, so it fails at such a test. Here the module runs eagerly a few times
first. Each test is recorded with its line. A test that reads neither an input nor a weight nor a buffer that
forward changes is constant: its result is replayed when the module is exported. All others are refused, with
their line.

A result may still depend on the number of samples or on random numbers. So the runs have different numbers
of samples, and two of them draw the smallest and the largest numbers. A test whose results differ is refused
too.

Two kinds of tests are taken as passed: whether numbers are finite (`torch.isfinite(x).all()`), because
training has failed where they are not; and tests that do nothing but raise an error (`assert`, or `if` with
`raise` alone). Where such a test fails, eager mode has no result that a device could differ from.
"""

from __future__ import annotations

import ast
import linecache
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from weft.errors import InputError
from weft.graph.capture.modes import in_mode
from weft.graph.capture.signature import Sample, grown
from weft.graph.network import Mode

_TESTS: frozenset[Any] = frozenset(
    {
        Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__, Tensor.item,
        Tensor.tolist, Tensor.is_nonzero, Tensor.equal, Tensor.allclose,
        torch.is_nonzero, torch.equal, torch.allclose,
    }
)  # fmt: skip
# Operators that read the shape of their argument, but none of its numbers.
_SHAPE_ONLY = (
    "aten::zeros_like", "aten::ones_like", "aten::full_like", "aten::empty_like", "aten::new_",
    "aten::rand_like", "aten::randn_like", "aten::sym_size",
)  # fmt: skip
_BOOL = Tensor.__bool__
_FINITE: frozenset[Any] = frozenset(
    {
        torch.isfinite, torch.isinf, torch.isnan,
        Tensor.isfinite, Tensor.isinf, Tensor.isnan,
    }
)  # fmt: skip
_TORCH = f"{Path(torch.__file__).parent}{os.sep}"  # torchvision is no part of torch
_RUNS: tuple[tuple[int, float | None], ...] = (
    (3, None),
    (5, 0.0),
    (2, 1.0),
)  # samples, random numbers
_BELOW_ONE = 1 - 2**-24
_Place = tuple[str, int]


class _Trail(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows which tensors are computed from some given ones. Random numbers are all 0, or all just below
    1, if `drawn` says so."""

    def __init__(self, sources: Iterable[Tensor], drawn: float | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.drawn = drawn
        self.follows: Any = WeakIdKeyDictionary()
        for tensor in sources:
            self.follows[tensor] = True

    def reads_data(self, values: object) -> bool:
        """Whether a tensor among the arguments is computed from the sources."""
        return any(isinstance(x, Tensor) and x in self.follows for x in tree_leaves(values))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.drawn is not None and torch.Tag.nondeterministic_seeded in func.tags:
            result = _filled(result, self.drawn)
        if self.reads_data((args, kwargs)) and not func.name().startswith(_SHAPE_ONLY):
            for tensor in tree_leaves(result):
                if isinstance(tensor, Tensor):
                    self.follows[tensor] = True
            for tensor, argument in zip(args, func._schema.arguments, strict=False):
                if argument.is_write and isinstance(tensor, Tensor):
                    self.follows[tensor] = True
        return result


def _filled(drawn: Any, number: float) -> Any:
    """A random tensor with the same number everywhere."""
    if isinstance(drawn, Tensor) and drawn.is_floating_point():
        drawn.fill_(min(number, _BELOW_ONE))
    return drawn


class _Recorder(TorchFunctionMode):
    """Records the results of all tests of data, by their lines."""

    def __init__(self, trail: _Trail) -> None:
        super().__init__()
        self.trail = trail
        self.results: dict[_Place, list[Any]] = defaultdict(list)
        self.varying: list[_Place] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _FINITE:
            self.trail.follows.pop(result, None)
        if func in _TESTS:
            self._note(result, (args, kwargs), sys._getframe(1))
        return result

    def test(self, tensor: Tensor, frame: FrameType) -> bool:
        """Records a test that the mode does not see, and sees to it that it does not see others twice."""
        with torch._C.DisableTorchFunction():
            result = _BOOL(tensor)
        self._note(result, tensor, frame)
        return result

    def _note(self, result: Any, read: object, frame: FrameType) -> None:
        place = _place()
        self.results[place].append(result)
        if self.trail.reads_data(read) and not _only_raises(frame):
            self.varying.append(place)


class Replay(TorchFunctionMode):
    """Gives the recorded result of each test of data, instead of a look at the data."""

    def __init__(self, results: Mapping[_Place, list[Any]], refused: Mapping[_Place, str]) -> None:
        super().__init__()
        self._results, self._refused = results, refused
        self._next: dict[_Place, int] = defaultdict(int)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        place = _place() if func in _TESTS else None
        if place is None:
            return func(*args, **(kwargs or {}))
        return self._replayed(place) if self._known(place) else func(*args, **(kwargs or {}))

    def test(self, tensor: Tensor, frame: FrameType) -> bool:
        """The recorded result of a test that the mode does not see."""
        place = _place()
        return bool(self._replayed(place)) if self._known(place) else _BOOL(tensor)

    def _known(self, place: _Place) -> bool:
        if place in self._refused:
            raise InputError(self._refused[place])
        return place in self._results

    def _replayed(self, place: _Place) -> Any:
        results = self._results[place]
        result = results[self._next[place] % len(results)]
        self._next[place] += 1
        return result


@contextmanager
def inside_torch(tests: _Recorder | Replay) -> Iterator[None]:
    """Shows it also the tests inside of torch's own functions (`gaussian_nll_loss` tests whether a variance
    is negative). torch shows a mode only the outermost call."""

    def looked_at(tensor: Tensor) -> bool:
        return tests.test(tensor, sys._getframe(1))

    kind: Any = Tensor
    kind.__bool__ = looked_at
    try:
        yield
    finally:
        kind.__bool__ = _BOOL


def recorded_tests(module: nn.Module, example: Sample, label: str, mode: Mode) -> Replay | None:
    """The tests of data of a module; None if it has none. The replay raises InputError at a test that is not
    constant. A test that only eager runs meet does not matter."""
    runs = [_recorded(module, example, mode, samples, drawn) for samples, drawn in _RUNS]
    results, refused = runs[0].results, {}
    for run in runs:
        for place in {*results, *run.results}:
            if results.get(place) != run.results.get(place):
                refused[place] = _refusal(
                    label, place, "the number of samples or on random numbers"
                )
    for run in runs:
        what = "the numbers in the inputs, weights or changing buffers"
        refused |= {place: _refusal(label, place, what) for place in run.varying}
    return Replay(dict(results), refused) if results else None


def _recorded(
    module: nn.Module, example: Sample, mode: Mode, samples: int, drawn: float | None
) -> _Recorder:
    """The results of the tests in one eager run. Buffers and random numbers are left as they were."""
    args, kwargs = grown(example, samples)
    buffers = {name: tensor.detach().clone() for name, tensor in module.named_buffers()}
    changed: set[str] = set()
    with torch.random.fork_rng(devices=[]), torch.no_grad(), in_mode(module, mode):
        for _ in range(2):  # the second time with the buffers that the first run changed
            live = dict(module.named_buffers())
            versions = {name: tensor._version for name, tensor in live.items()}
            sources = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
            trail = _Trail(
                [*sources, *module.parameters(), *(live[name] for name in changed)], drawn
            )
            try:
                with trail, _Recorder(trail) as recorder, inside_torch(recorder):
                    module(*args, **kwargs)
            finally:
                for name, tensor in live.items():
                    if tensor._version != versions[name]:
                        changed.add(name)
                        tensor.copy_(buffers[name])
            if not changed:
                break
    done: _Recorder = recorder
    return done


def _refusal(label: str, place: _Place, what: str) -> str:
    file, line = place
    return (
        f"{label} cannot be captured ({Path(file).name}, line {line}): a test in Python depends on {what}, "
        "so that the network is not the same for all inputs. Use torch.where, which computes both sides and "
        "picks for each place"
    )


def _only_raises(frame: FrameType) -> bool:
    """Whether the line that a frame is at is a test which does nothing but raise an error."""
    return any(first <= frame.f_lineno <= last for first, last in _checks(frame.f_code.co_filename))


@cache
def _checks(file: str) -> tuple[tuple[int, int], ...]:
    """The lines of all tests in a file that only raise."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ()
    tests = [
        node.test
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert)
        or (
            isinstance(node, ast.If)
            and not node.orelse
            and all(isinstance(statement, ast.Raise) for statement in node.body)
        )
    ]
    return tuple((test.lineno, test.end_lineno or test.lineno) for test in tests)


def _place() -> _Place:
    """The innermost line outside of torch and of this file."""
    frame: Any = sys._getframe(1)
    innermost: _Place | None = None
    while frame is not None:
        file = frame.f_code.co_filename
        if file != __file__ and not file.startswith(_TORCH):
            return file, frame.f_lineno
        if file != __file__ and innermost is None:
            innermost = file, frame.f_lineno
        frame = frame.f_back
    return innermost or ("", 0)
