"""How long each layer takes on this machine: forward, backward and update, by CPU time.

CPU time of one thread, not wall time: it does not count what other processes take meanwhile. Each
layer is timed at two batch sizes, which parts what a call costs from what a sample costs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch
from msgspec import Struct
from torch import Tensor

from weft.errors import InputError
from weft.graph.execute import Runner
from weft.graph.network import Graph, Value
from weft.graph.operators import DTYPES
from weft.graph.optimizer import Optimizer

Progress = Callable[[int, int], None]  # (rounds done, rounds in all)


class LayerTimes(Struct, frozen=True):
    """Seconds per layer: per sample and per call."""

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    update_s: tuple[float, ...]
    forward_call_s: tuple[float, ...]
    backward_call_s: tuple[float, ...]


def measure(
    graph: Graph,
    state: Mapping[str, Tensor],
    *,
    batch: int = 32,
    repeats: int = 7,
    training: bool = True,
    optimizer: Optimizer | None = None,
    progress: Progress | None = None,
) -> LayerTimes:
    """Median over `repeats` rounds after one for warming up."""
    if batch < 1:
        raise InputError(f"batch {batch} is not allowed; it must be at least 1")
    runners = _runners(graph, state)
    small = max(1, batch // 4)
    sizes = (small, batch) if small < batch else (batch,)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        samples: dict[int, list[_Round]] = {n: [] for n in sizes}
        for i in range(repeats + 1):
            for n in sizes:
                round_ = _round(graph, runners, n, training, optimizer or Optimizer())
                if i:
                    samples[n].append(round_)
            if progress:
                progress(i + 1, repeats + 1)
    finally:
        torch.set_num_threads(threads)
    return _fit({n: _median(rounds) for n, rounds in samples.items()})


_Round = tuple[list[float], list[float], list[float]]


def _runners(graph: Graph, state: Mapping[str, Tensor]) -> list[Runner]:
    last = len(graph.layers) - 1
    copied = {name: tensor.detach().clone() for name, tensor in state.items()}
    return [
        Runner(graph.segment(i, i, with_loss=i == last and graph.loss is not None), copied)
        for i in range(last + 1)
    ]


def example(value: Value, samples: int) -> Tensor:
    """A tensor of that shape: random for floats, zeros (a valid class or token) for integers."""
    shape = list(value.shape)
    if value.batch_dim is not None:
        shape[value.batch_dim] = samples
    if value.differentiable:
        return torch.randn(shape).to(DTYPES[value.dtype])
    return torch.zeros(shape, dtype=DTYPES[value.dtype])


def _round(
    graph: Graph, runners: list[Runner], samples: int, training: bool, optimizer: Optimizer
) -> _Round:
    forward: list[float] = []
    backward: list[float] = []
    update: list[float] = []
    values = {name: example(graph.values[name], samples) for name in graph.cut(0)}
    for runner in runners:
        inputs = {n: v.detach() for n, v in values.items()}
        if training and runner is not runners[0]:
            for tensor in inputs.values():
                tensor.requires_grad_(tensor.is_floating_point())
        with torch.set_grad_enabled(training):
            start = time.thread_time()
            values = runner.forward(inputs, training=training)
            forward.append(time.thread_time() - start)
        if training:
            seconds = _backward(graph, runner, values, samples)
            backward.append(seconds[0])
            update.append(_update(runner, optimizer) )
        else:
            backward.append(0.0)
            update.append(0.0)
    return forward, backward, update


def _backward(
    graph: Graph, runner: Runner, values: Mapping[str, Tensor], samples: int
) -> tuple[float]:
    tensors = [t for t in values.values() if t.requires_grad]
    if runner.segment.loss is not None and graph.loss is not None:
        target = example(graph.loss.target, samples)
        start = time.thread_time()
        loss = runner.loss(values[graph.output], target, samples)
        (gradient,) = torch.autograd.grad(loss, values[graph.output], retain_graph=True)
        torch.autograd.backward([values[graph.output]], [gradient])
        return (time.thread_time() - start,)
    gradients = [torch.ones_like(t) for t in tensors]
    start = time.thread_time()
    if tensors:
        torch.autograd.backward(tensors, gradients)
    return (time.thread_time() - start,)


def _update(runner: Runner, optimizer: Optimizer) -> float:
    parameters = runner.parameters
    if not parameters:
        return 0.0
    built = optimizer.build(parameters)
    built.step()  # the first step also makes the optimizer's own tensors
    start = time.thread_time()
    built.step()
    seconds = time.thread_time() - start
    built.zero_grad(set_to_none=True)
    return seconds


def _median(rounds: list[_Round]) -> _Round:
    def by_layer(kind: int) -> list[float]:
        return [statistics.median(times) for times in zip(*(r[kind] for r in rounds), strict=True)]

    return by_layer(0), by_layer(1), by_layer(2)


def _fit(medians: dict[int, _Round]) -> LayerTimes:
    sizes = sorted(medians)
    large = medians[sizes[-1]]
    count = len(large[0])
    if len(sizes) == 1:
        n = sizes[0]
        per = [[t / n for t in large[kind]] for kind in (0, 1)]
        calls = [[0.0] * count, [0.0] * count]
    else:
        small, n = medians[sizes[0]], sizes[-1]
        per, calls = [], []
        for kind in (0, 1):
            slopes = [
                max((b - a) / (n - sizes[0]), 0.0)
                for a, b in zip(small[kind], large[kind], strict=True)
            ]
            # A slope steeper than the whole would leave a negative call: all of it is per sample.
            slopes = [min(s, t / n) for s, t in zip(slopes, large[kind], strict=True)]
            per.append(slopes)
            calls.append([t - s * n for s, t in zip(slopes, large[kind], strict=True)])
    return LayerTimes(
        tuple(per[0]), tuple(per[1]), tuple(large[2]), tuple(calls[0]), tuple(calls[1])
    )
