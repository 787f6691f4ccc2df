"""Evaluates a network on test data while it is trained, on the machine where the user typed.

evaluate = Evaluator(model, loss, test_pairs("mnist5k"), {"top5": top5})
evaluate(100, state).values        # {"loss": 0.31, "accuracy": 0.91, "top5": 0.99}
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from weft.data import Dataset, load
from weft.data.indexed import Indexed
from weft.data.streams import Pair, pair_of
from weft.data.trees import as_tensors, count_of, rows_of
from weft.errors import InputError
from weft.graph.capture.signature import call_of

if TYPE_CHECKING:
    from weft.runtime.run.workload.asked import Loss

Metric = Callable[[Any, Any], Any]  # (what the network returns, the targets) -> their mean
Test = Any  # a set's name, a Dataset, a pair, a torch Dataset, a DataLoader or list of minibatches
Passes = Callable[[], Iterator[Pair]]  # a pass over the test data
CHUNK = 250  # test samples at a time
LOSS, ACCURACY = "loss", "accuracy"


@dataclass(frozen=True)
class Evaluation:
    """The metrics of a network after `step` minibatches."""

    step: int
    values: Mapping[str, float]

    def __str__(self) -> str:
        return ", ".join(f"{name} {value:.4g}" for name, value in self.values.items())


class Evaluator:
    """The user's network, its loss and its metrics; each call loads other weights."""

    def __init__(
        self, model: nn.Module, loss: Loss, test: Passes, metrics: Mapping[str, Metric] | None
    ) -> None:
        self._model = copy.deepcopy(model).eval()
        self._loss = copy.deepcopy(loss) if isinstance(loss, nn.Module) else loss
        self._test = test
        self._metrics = dict(metrics or {})
        if taken := sorted({LOSS, ACCURACY} & set(self._metrics)):
            raise InputError(f"metrics: {', '.join(taken)} is Weft's own; give yours another name")

    @torch.no_grad()
    def __call__(self, step: int, state: Mapping[str, Tensor]) -> Evaluation:
        """The means over all test samples. InputError where a metric does not fit the network."""
        tensors = {**dict(self._model.named_parameters()), **dict(self._model.named_buffers())}
        for name, tensor in state.items():
            if name in tensors:
                tensors[name].copy_(tensor)
        sums: dict[str, float] = {}
        samples = 0
        for x, y in self._test():
            args, kwargs = call_of(x)
            output = self._model(*args, **kwargs)
            count = count_of(y)
            samples += count
            for name, value in self._means(output, y).items():
                sums[name] = sums.get(name, 0.0) + value * count
        if not samples:
            raise InputError("the test data has no sample")
        return Evaluation(step, {name: total / samples for name, total in sums.items()})

    def _means(self, output: Any, y: Any) -> dict[str, float]:
        means = {LOSS: float(self._loss(output, y))}
        if _is_classes(output, y):
            means[ACCURACY] = float((output.argmax(1) == y).float().mean())
        for name, metric in self._metrics.items():
            try:
                means[name] = float(metric(output, y))
            except (TypeError, ValueError, RuntimeError) as error:
                raise InputError(f"metric {name} of {_shape(output)}: {error}") from error
        return means


def test_pairs(test: Test) -> Passes:
    """The test data in minibatches. InputError if it has no form that can be read again and again."""
    if isinstance(test, str):
        test = load(test)
    if isinstance(test, Dataset):
        test = (test.test_x, test.test_y)
    if isinstance(test, tuple) and len(test) == 2:
        x, y = as_tensors(test[0]), as_tensors(test[1])
        if count_of(x) != count_of(y):
            raise InputError(f"the test data has {count_of(x)} samples but {count_of(y)} targets")
        return lambda: _chunks(x, y)
    if isinstance(test, Iterator):
        raise InputError(
            "the test data is an iterator, which can be read only once; give a list, a DataLoader or tensors"
        )
    if (isinstance(test, Iterable) and not hasattr(test, "__getitem__")) or isinstance(test, list):
        return lambda: (pair_of(item) for item in test)
    if hasattr(test, "__getitem__") and hasattr(test, "__len__"):
        return _indexed(Indexed(test))
    raise InputError(
        f"the test data is a {type(test).__name__}; give a set's name, a pair of tensors or arrays, a torch "
        "Dataset or DataLoader, or a list of minibatches"
    )


test_pairs.__test__ = False  # type: ignore[attr-defined]  # its name is no test's


def _chunks(x: Any, y: Any) -> Iterator[Pair]:
    for first in range(0, count_of(x), CHUNK):
        some = slice(first, first + CHUNK)
        yield rows_of(x, some), rows_of(y, some)


def _indexed(samples: Indexed) -> Passes:
    def read() -> Iterator[Pair]:
        for first in range(0, samples.count, CHUNK):
            yield samples.rows(range(first, min(first + CHUNK, samples.count)))

    return read


def _is_classes(output: Any, y: Any) -> bool:
    """Whether the largest output of a sample can be compared with its class."""
    both = isinstance(output, Tensor) and isinstance(y, Tensor)
    return both and output.dim() == 2 and y.dim() == 1 and y.dtype == torch.int64


def _shape(output: Any) -> str:
    return (
        f"an output of shape {tuple(output.shape)}" if isinstance(output, Tensor) else "this output"
    )
