"""How long each layer takes on this machine: forward, backward and update, by CPU time.

The CPU time of one thread is measured, not wall time, so that other processes do not count. Each layer is
timed at two batch sizes. This separates the cost of a call from the cost of a sample.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch
from msgspec import Struct
from torch import Tensor

from weft.dtypes import torch_dtype
from weft.errors import InputError
from weft.graph.execute import Runner
from weft.graph.network import Graph, Value
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
    rest_s: float = 0.0,
    progress: Progress | None = None,
) -> LayerTimes:
    """Median over `repeats` rounds, after one round to warm up.

    `rest_s`: seconds of sleep before each pass. A device that waits for others between its turns has cold
    caches and is up to a third slower than one that never stops. The sleep reproduces that.
    """
    if batch < 1:
        raise InputError(f"batch {batch} is not allowed; it must be at least 1")
    small = max(1, batch // 4)
    sizes = (small, batch) if small < batch else (batch,)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        bench = _Bench(graph, state, training, optimizer or Optimizer(), rest_s)
        samples: dict[int, list[_Round]] = {n: [] for n in sizes}
        for i in range(repeats + 1):
            for n in sizes:
                round_ = bench.round(n)
                if i:
                    samples[n].append(round_)
            if progress:
                progress(i + 1, repeats + 1)
    finally:
        torch.set_num_threads(threads)
    return _fit({n: _median(rounds) for n, rounds in samples.items()})


_Round = tuple[list[float], list[float], list[float]]


def example(value: Value, samples: int) -> Tensor:
    """A tensor of that shape: random for floats, zeros (a valid class or token) for integers."""
    shape = list(value.shape)
    if value.batch_dim is not None:
        shape[value.batch_dim] = samples
    if value.differentiable:
        return torch.randn(shape).to(torch_dtype(value.dtype))
    return torch.zeros(shape, dtype=torch_dtype(value.dtype))


class _Bench:
    """The network's layers with copies of the weights, run pass by pass as in a training step."""

    def __init__(
        self,
        graph: Graph,
        state: Mapping[str, Tensor],
        training: bool,
        optimizer: Optimizer,
        rest_s: float,
    ) -> None:
        self.graph, self.training, self.rest_s = graph, training, rest_s
        last = len(graph.layers) - 1
        copied = {name: tensor.detach().clone() for name, tensor in state.items()}
        self.runners = [
            Runner(graph.segment(i, i, with_loss=i == last and graph.loss is not None), copied)
            for i in range(last + 1)
        ]
        self.optimizers = [
            optimizer.build(r.parameters, r.trained_names) if r.parameters else None
            for r in self.runners
        ]

    def round(self, samples: int) -> _Round:
        """Seconds of each layer's forward, backward and update."""
        values = {n: example(self.graph.values[n], samples) for n in self.graph.cut(0)}
        inputs: list[dict[str, Tensor]] = []
        outputs: list[dict[str, Tensor]] = []
        forward = []
        self.rest()
        for runner in self.runners:
            inputs.append({n: v.detach() for n, v in values.items()})
            if self.training and runner is not self.runners[0]:
                for tensor in inputs[-1].values():
                    tensor.requires_grad_(tensor.is_floating_point())
            start = time.thread_time()
            with torch.set_grad_enabled(self.training):
                values = runner.forward(inputs[-1], training=self.training)
            forward.append(time.thread_time() - start)
            outputs.append(values)
        if not self.training:
            nothing = [0.0] * len(forward)
            return forward, nothing, nothing
        return forward, self.backward(outputs, samples), self.update()

    def rest(self) -> None:
        if self.rest_s:
            time.sleep(self.rest_s)

    def backward(self, outputs: list[dict[str, Tensor]], samples: int) -> list[float]:
        """The last layer's time includes the loss."""
        loss = self.graph.loss
        targets = [example(v, samples) for v in loss.targets.values()] if loss else []
        seconds = []
        self.rest()
        for runner, values in zip(reversed(self.runners), reversed(outputs), strict=True):
            tensors = [t for t in values.values() if t.requires_grad]
            gradients = [torch.ones_like(t) for t in tensors]
            start = time.thread_time()
            if runner is self.runners[-1] and loss is not None:
                leaves = [values[n].detach() for n in loss.reads]
                tensors = [values[n] for n in loss.reads if values[n].requires_grad]
                wanted = [
                    leaf.requires_grad_()
                    for leaf, n in zip(leaves, loss.reads, strict=True)
                    if values[n].requires_grad
                ]
                number = runner.loss(leaves, targets, samples)
                gradients = list(torch.autograd.grad(number, wanted, materialize_grads=True))
            if tensors:
                torch.autograd.backward(tensors, gradients)
            seconds.append(time.thread_time() - start)
        return seconds[::-1]

    def update(self) -> list[float]:
        seconds = []
        self.rest()
        for optimizer in self.optimizers:
            start = time.thread_time()
            if optimizer is not None:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            seconds.append(time.thread_time() - start)
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
            # If the time per sample would exceed the whole, the time of a call would be negative: count all
            # per sample.
            slopes = [min(s, t / n) for s, t in zip(slopes, large[kind], strict=True)]
            per.append(slopes)
            calls.append([t - s * n for s, t in zip(slopes, large[kind], strict=True)])
    return LayerTimes(
        tuple(per[0]), tuple(per[1]), tuple(large[2]), tuple(calls[0]), tuple(calls[1])
    )
