"""StitchNet's fast form: what a training step under loss costs beside a plain one.

Plain: an ordinary torch network, autograd, fused Adam. Lossy: Mix-Mapped on nine devices at a path-loss
exponent of 3.9, every batch with its own losses, drawn and turned into masks within the time that counts.
Both in turn, medians of CPU time on one thread; then 20 epochs of Fashion-MNIST (where $WEFT_DATA has it).

    python benchmarks/stitchnet.py
"""

from __future__ import annotations

import os
import statistics
import time

import torch
from torch import nn

from weft import data, zoo
from weft.draws import TRAINING
from weft.graph.split.masked import Masks, Perceptron
from weft.reference.lossy import BATCH, CHUNK, LossyRadio, train
from weft.strategies.stitchnet.mapping import mix_mapped
from weft.strategies.stitchnet.paths import plan_routes
from weft.strategies.stitchnet.topology import EXPONENT, find_topology

ROUNDS, STEPS = 15, CHUNK


def channel_of(width: int) -> LossyRadio:
    place = find_topology()
    prr = place.measured(EXPONENT)
    spread = mix_mapped(prr, (width,) * 4)
    routes = plan_routes("subpath", prr, spread)
    return LossyRadio(spread, routes, place.delivery(EXPONENT), seed=1)


class Plain:
    def __init__(self, width: int) -> None:
        self.net = zoo.chains.mlp((1, 28, 28), 10, width=width)
        self.rule = torch.optim.Adam(self.net.parameters(), lr=1e-3, fused=True)
        self.loss = nn.CrossEntropyLoss()

    def steps(self, x: torch.Tensor, y: torch.Tensor) -> None:
        for _ in range(STEPS):
            self.rule.zero_grad()
            self.loss(self.net(x), y).backward()
            self.rule.step()


class Lossy:
    def __init__(self, width: int) -> None:
        self.net = Perceptron((784, *(width,) * 4, 10))
        self.channel = channel_of(width)
        self.done = 0

    def steps(self, x: torch.Tensor, y: torch.Tensor) -> None:
        masks: Masks = self.channel.masks(TRAINING, self.done, STEPS)
        self.done += STEPS
        for step in range(STEPS):
            self.net.step(x, y, masks.at(step))


def compare(width: int) -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.rand(BATCH, 784, generator=random)
    y = torch.randint(10, (BATCH,), generator=random)
    contestants = {"plain": Plain(width), "lossy": Lossy(width)}
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(ROUNDS + 1):
        for name, one in contestants.items():
            begin = time.thread_time()
            one.steps(x, y)
            times[name].append((time.thread_time() - begin) / STEPS)
    plain, lossy = (statistics.median(times[name][1:]) for name in ("plain", "lossy"))
    print(
        f"width {width:>3}: plain {plain * 1e6:.0f} us, lossy {lossy * 1e6:.0f} us a step, "
        f"ratio {lossy / plain:.2f} (at most 1.25 wanted)"
    )


def twenty_epochs() -> None:
    name = "fashion-mnist" if os.environ.get("WEFT_DATA") else "mnist5k"
    images = data.load(name)
    net = Perceptron((784, 64, 64, 64, 64, 10))
    begin = time.process_time()
    history = train(net, images, channel_of(64), epochs=20)
    used = time.process_time() - begin
    accuracy = history.accuracies[-1]
    print(f"20 epochs of {name}: {used:.1f} s of CPU time, test accuracy {accuracy:.1%} under loss")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for width in (64, 128):
        compare(width)
    twenty_epochs()
