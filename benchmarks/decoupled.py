"""Is a peer's computation really as much smaller as its FLOPs say?

VGG-16 at 32x32, ten classes, 52 filters a class in the last six convolutions. Training time per sample
(forward, backward, update; CPU time of one thread; all cases in turn, medians) of a sub-model for two
classes against the dense network.

    python benchmarks/decoupled.py [batch] [rounds]
"""

from __future__ import annotations

import copy
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from weft import zoo
from weft.graph.capture.module import capture
from weft.graph.split.classes.averaged import averaged
from weft.graph.split.classes.decouple import captured, decouple, score_filters
from weft.graph.split.classes.network import DecoupledNet
from weft.strategies.decoupled.costs import class_costs, convolutions

FILTERS, LAST, CLASSES, HELD = 52, 6, 10, 2


def build() -> tuple[nn.Sequential, DecoupledNet]:
    torch.manual_seed(0)
    dense = averaged(zoo.build("vgg16", (3, 32, 32), CLASSES), CLASSES)
    x, y = torch.zeros(CLASSES, 3, 32, 32), torch.arange(CLASSES)
    whole = captured(dense, x[:2])
    scores = score_filters(whole, x, y, last=LAST, how="random")
    return dense, decouple(whole, scores, last=LAST, keep=[[FILTERS] * LAST] * CLASSES)


def training_step(net: nn.Module, x: Tensor) -> Callable[[], None]:
    rule = torch.optim.SGD(net.parameters(), 1e-4, 0.9)

    def step() -> None:
        rule.zero_grad(set_to_none=True)
        out = net(x)
        functional.cross_entropy(out, torch.arange(len(x)) % out.shape[1]).backward()
        rule.step()

    return step


def medians(cases: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    taken: dict[str, list[float]] = {name: [] for name in cases}
    for round_ in range(rounds + 1):
        for name, step in cases.items():
            begin = time.thread_time()
            step()
            if round_:
                taken[name].append(time.thread_time() - begin)
    return {name: statistics.median(times) for name, times in taken.items()}


def main(batch: int, rounds: int) -> None:
    torch.set_num_threads(1)
    dense, net = build()
    part = net.sub_model(range(HELD))
    costs = class_costs(convolutions(capture(dense, torch.zeros(2, 3, 32, 32))), LAST, CLASSES)
    predicted = costs.per_sample([FILTERS] * LAST, HELD)
    x = torch.randn(batch, 3, 32, 32)
    last = x.contiguous(memory_format=torch.channels_last)
    nets = {"dense": dense, f"{HELD} of {CLASSES} classes": part}
    cases = {name: training_step(n, x) for name, n in nets.items()}
    for name, n in nets.items():
        wide = copy.deepcopy(n).to(memory_format=torch.channels_last)
        cases[f"{name}, channels last"] = training_step(wide, last)
    found = medians(cases, rounds)
    print(f"VGG-16 at 32x32, batch {batch}, medians of {rounds}; FLOPs predict {predicted:.3f}x")
    for name, seconds in found.items():
        print(f"  {name:<34} {seconds / batch * 1e3:8.2f} ms per sample")
    for layout in ("", ", channels last"):
        ratio = found["dense" + layout] / found[f"{HELD} of {CLASSES} classes{layout}"]
        print(
            f"  dense / sub-model{layout:<16} {ratio:.3f}x, {ratio / predicted - 1:+.1%} of predicted"
        )


if __name__ == "__main__":
    main(*[int(a) for a in sys.argv[1:]] or [64, 9])
