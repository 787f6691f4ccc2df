"""A captured network against the eager one it was captured from: CPU time, one thread.

    python benchmarks/capture.py [rounds]

Training is forward, loss and backward; inference is forward without gradients. The two are timed turn
by turn in one process, and the ratio is that of their medians: below 1 the captured network is faster.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from weft import zoo
from weft.graph.capture.module import capture, state_of
from weft.graph.execute import Runner

BATCH = 16
NETWORKS = {
    "lenet5": (1, 32, 32),
    "resnet8": (3, 32, 32),
    "transformer": (1, 32, 32),
    "mobilenet": (3, 32, 32),
    "mlp": (1, 28, 28),
    "vgg-small": (1, 28, 28),
    "cnn5": (3, 32, 32),
    "resnet18": (3, 32, 32),
}


Turn = Callable[[], object]


def turns(model: nn.Module, runner: Runner, x: Tensor, y: Tensor, training: bool) -> list[Turn]:
    """The same work twice: eager, captured."""
    loss = nn.CrossEntropyLoss()
    (name,), (output,) = runner.segment.inputs, runner.segment.outputs

    def captured() -> Tensor:
        return runner.forward({name: x}, training=training)[output]

    if training:
        return [lambda: loss(model(x), y).backward(), lambda: loss(captured(), y).backward()]
    return [lambda: model(x), captured]


def ratio(name: str, shape: tuple[int, ...], training: bool, rounds: int) -> tuple[float, float]:
    """(eager milliseconds, captured / eager)."""
    torch.manual_seed(0)
    model = zoo.build(name, shape, 10).train(training)
    graph = capture(model, torch.zeros(2, *shape), name=name)
    state = {key: tensor.clone() for key, tensor in state_of(model).items()}
    runner = Runner(graph.segment(0, len(graph.layers) - 1), state)
    x, y = torch.rand(BATCH, *shape), torch.randint(0, 10, (BATCH,))
    work = turns(model, runner, x, y, training)
    times: list[list[float]] = [[], []]
    with torch.set_grad_enabled(training):
        for turn in range(rounds + 3):  # the first three load kernels and fill caches
            for mine, do in zip(times, work, strict=True):
                begin = time.thread_time()
                do()
                if turn >= 3:
                    mine.append(time.thread_time() - begin)
    eager, captured = (statistics.median(t) for t in times)
    return eager * 1e3, captured / eager


def main(rounds: int = 60) -> None:
    torch.set_num_threads(1)
    print(f"batch {BATCH}, median of {rounds} interleaved rounds")
    print(
        f"{'network':<12} {'train: eager':>13} {'captured':>9} {'infer: eager':>13} {'captured':>9}"
    )
    for name, shape in NETWORKS.items():
        train, infer = (ratio(name, shape, training, rounds) for training in (True, False))
        print(f"{name:<12} {train[0]:>10.2f} ms {train[1]:>8.2f}x {infer[0]:>10.2f} ms {infer[1]:>8.2f}x",
              flush=True)  # fmt: skip


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 60)
