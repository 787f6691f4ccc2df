"""How long each layer takes on this machine: forward, backward and update.

The CPU time of one thread is measured, so that other processes do not count. Each layer is timed at two or
more batch sizes. This separates the cost of a call from the cost of a sample.

A node that measures for a real run also times the whole network by the wall clock, and stretches the layers'
times to it. Under a CPU quota a second of CPU time takes longer, but a single layer's wall time is a matter
of chance: it is short, or holds a pause. And a network in one piece is not as fast as its layers one by one.

Each round begins with the same weights. A network that trains on noise without end soon computes with numbers
that are not finite, and relu and max pooling are nearly twice as fast on those.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec
import torch
from msgspec import Struct
from torch import Tensor

from weft.dtypes import torch_dtype
from weft.errors import InputError
from weft.graph.accelerator import PLAIN, Compute
from weft.graph.network import Graph, Value
from weft.graph.optimizers.optimizer import Optimizer

Progress = Callable[[int, int], None]  # (rounds done, rounds in all)
CREDIT_S = 0.1  # of work after which a quota has nothing left over from a rest: one usual period
STEADY_S = 0.1  # of work that is counted: many pauses of a short period, or one of the usual one


class LayerTimes(Struct, frozen=True):
    """Seconds per layer: per sample and per call."""

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    update_s: tuple[float, ...]
    forward_call_s: tuple[float, ...]
    backward_call_s: tuple[float, ...]
    share: float = 1.0  # of a core that was used: CPU time divided by wall time


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
    sizes: Sequence[int] = (),
    wall: bool = False,
    budget_s: float = math.inf,
    compute: Compute = PLAIN,
) -> LayerTimes:
    """Median over `repeats` rounds, after one round to warm up.

    `rest_s`: seconds of sleep before each pass. A device that waits for others between its turns has cold
    caches and is up to a third slower than one that never stops. The sleep reproduces that.
    `sizes` are the batch sizes to time; by default a quarter of the batch, and all of it. `wall`: the layers
    together take as long as the whole network by the wall clock. After `budget_s` seconds no further round
    begins; there is always one that counts.
    """
    if batch < 1 or any(n < 1 for n in sizes):
        raise InputError(f"batch {min((batch, *sizes))} is not allowed; it must be at least 1")
    chosen = sorted({*sizes} or {max(1, batch // 4), batch})
    threads = torch.get_num_threads()
    torch.set_num_threads(compute.threads)
    try:
        rule, count = optimizer or Optimizer(), len(graph.layers)
        watch = Stopwatch(wall=True)
        bench = _Bench(
            graph,
            state,
            training,
            rule,
            rest_s,
            Stopwatch(),
            [(i, i) for i in range(count)],
            compute,
        )
        whole = (
            _Bench(graph, state, training, rule, 0.0, watch, [(0, count - 1)], compute)
            if wall
            else None
        )
        samples: dict[int, list[_Round]] = {n: [] for n in chosen}
        together: list[_Round] = []
        begin = time.monotonic()
        for i in range(repeats + 1):
            if i > 1 and time.monotonic() - begin > budget_s:
                break
            for n in chosen:
                round_ = bench.round(n)
                if i:
                    samples[n].append(round_)
            if whole is not None:
                together.append((whole.steady if i else whole.round)(chosen[-1]))
            if not i:
                watch.forget()  # the warm-up
            if progress:
                progress(i + 1, repeats + 1)
    finally:
        torch.set_num_threads(threads)
    medians = {n: _median(rounds) for n, rounds in samples.items()}
    if whole is None:
        return _fit(medians)
    factors = _factors(_typical(together[1:]), medians[chosen[-1]])
    stretched = {n: _stretched(medians[n], factors) for n in medians}
    return msgspec.structs.replace(_fit(stretched), share=watch.share(compute.threads))


def _factors(whole: _Round, layers: _Round) -> tuple[float, float, float]:
    """By how much forward, backward and update of the whole network take longer than those of its layers."""
    total = sum(sum(kind) for kind in layers)
    mean = sum(sum(kind) for kind in whole) / total if total else 1.0
    forward, backward, update = (
        sum(kind) / sum(parts) if sum(parts) > 0 and sum(kind) > 0 else mean
        for kind, parts in zip(whole, layers, strict=True)
    )
    return forward, backward, update


def _stretched(round_: _Round, factors: tuple[float, float, float]) -> _Round:
    forward, backward, update = (
        [seconds * factor for seconds in kind] for kind, factor in zip(round_, factors, strict=True)
    )
    return forward, backward, update


class Stopwatch:
    """Times one piece of work after the other by one clock, and counts both wall and CPU time of all."""

    def __init__(self, wall: bool = False) -> None:
        self._clock = 0 if wall else 1
        self._begin = self._now()
        self._total = [0.0, 0.0, 0.0]
        self.counts = True  # whether the work of the moment is a part of `share`

    @staticmethod
    def _now() -> tuple[float, float, float]:
        return time.monotonic(), time.thread_time(), time.process_time()

    def start(self) -> None:
        """A piece of work begins."""
        self._begin = self._now()

    def stop(self) -> float:
        """Its seconds."""
        spent = [end - begin for begin, end in zip(self._begin, self._now(), strict=True)]
        if self.counts:
            self._total = [a + b for a, b in zip(self._total, spent, strict=True)]
        return spent[self._clock]

    def forget(self) -> None:
        """What was counted until now does not count."""
        self._total = [0.0, 0.0, 0.0]

    def share(self, threads: int) -> float:
        """CPU time divided by wall time: of this thread alone, or of all where it has helpers."""
        wall, own, all_threads = self._total
        cpu = own if threads == 1 else all_threads
        return min(float(threads), cpu / wall) if wall > 0 else 1.0


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
    """Parts of the network with copies of the weights, run pass by pass as in a training step."""

    def __init__(
        self,
        graph: Graph,
        state: Mapping[str, Tensor],
        training: bool,
        optimizer: Optimizer,
        rest_s: float,
        watch: Stopwatch,
        parts: list[tuple[int, int]],
        compute: Compute,
    ) -> None:
        self.graph, self.training, self.rest_s, self.watch = graph, training, rest_s, watch
        last = len(graph.layers) - 1
        self.state = state
        copied = {name: tensor.detach().clone() for name, tensor in state.items()}
        self.runners = [
            compute.runner(
                graph.segment(a, b, with_loss=b == last and graph.loss is not None), copied
            )
            for a, b in parts
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
            self.watch.start()
            with torch.set_grad_enabled(self.training):
                values = runner.forward(inputs[-1], training=self.training)
            forward.append(self.watch.stop())
            outputs.append(values)
        if not self.training:
            nothing = [0.0] * len(forward)
            return forward, nothing, nothing
        return forward, self.backward(outputs, samples), self.update()

    def steady(self, samples: int) -> _Round:
        """The mean of the rounds of a stretch of work without a rest.

        Under a quota a rest lends the work after it CPU time that a long run does not have. So the beginning
        of the stretch does not count.
        """
        self.watch.counts = False
        self.rounds(samples, CREDIT_S)
        self.watch.counts = True
        rounds = self.rounds(samples, STEADY_S)
        forward, backward, update = (
            [statistics.fmean(times) for times in zip(*kind, strict=True)]
            for kind in zip(*rounds, strict=True)
        )
        return forward, backward, update

    def rounds(self, samples: int, least_s: float) -> list[_Round]:
        """One round after the other for so long."""
        begin = time.monotonic()
        rounds = [self.round(samples)]
        while time.monotonic() - begin < least_s:
            rounds.append(self.round(samples))
        return rounds

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
            self.watch.start()
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
            seconds.append(self.watch.stop())
        return seconds[::-1]

    def update(self) -> list[float]:
        seconds = []
        self.rest()
        for optimizer in self.optimizers:
            self.watch.start()
            if optimizer is not None:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            seconds.append(self.watch.stop())
        self.restore()
        return seconds

    @torch.no_grad()
    def restore(self) -> None:
        """Gives the weights and buffers their first values again."""
        for runner in self.runners:
            for name, tensor in runner.state.items():
                tensor.copy_(self.state[name])


def _median(rounds: list[_Round]) -> _Round:
    def by_layer(kind: int) -> list[float]:
        return [statistics.median(times) for times in zip(*(r[kind] for r in rounds), strict=True)]

    return by_layer(0), by_layer(1), by_layer(2)


def _typical(rounds: list[_Round]) -> _Round:
    """The median of the rounds' seconds, divided among forward, backward and update as in all of them. A
    short kind of work holds a pause in few rounds, and a median of its own would leave these out."""
    means = [statistics.fmean(sum(kind) for kind in kinds) for kinds in zip(*rounds, strict=True)]
    whole = statistics.median(sum(sum(kind) for kind in round_) for round_ in rounds)
    scale = whole / sum(means) if sum(means) > 0 else 1.0
    forward, backward, update = ([mean * scale] for mean in means)
    return forward, backward, update


def _fit(medians: dict[int, _Round]) -> LayerTimes:
    """Seconds per sample and per call of each layer, from its seconds at each size. The largest size, at
    which most of the work is done, is met exactly. The others decide how much of it is a call's cost."""
    sizes = sorted(medians)
    largest, last = sizes[-1], medians[sizes[-1]]
    per: list[list[float]] = []
    calls: list[list[float]] = []
    for kind in (0, 1):
        slopes = [
            _slope([(n, medians[n][kind][layer]) for n in sizes])
            for layer in range(len(last[kind]))
        ]
        # If the time per sample would exceed the whole, the time of a call would be negative: count all
        # per sample.
        slopes = [min(s, t / largest) for s, t in zip(slopes, last[kind], strict=True)]
        per.append(slopes)
        calls.append([t - s * largest for s, t in zip(slopes, last[kind], strict=True)])
    return LayerTimes(
        tuple(per[0]), tuple(per[1]), tuple(last[2]), tuple(calls[0]), tuple(calls[1])
    )


def _slope(points: list[tuple[int, float]]) -> float:
    """Seconds per sample of a line through the last point that misses the other points by the smallest shares
    of their own seconds."""
    n, seconds = points[-1]
    if len(points) == 1:
        return seconds / n
    above = below = 0.0
    for size, time_s in points[:-1]:
        weight = 1 / max(time_s, 1e-9) ** 2
        above += weight * (n - size) * (seconds - time_s)
        below += weight * (n - size) ** 2
    return max(above / below, 0.0)
