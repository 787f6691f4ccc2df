"""Predicted against measured step time on emulated fleets: 5 to 50 Mbps, three speeds of devices.

Every run is real: node processes, shaped links, LeNet-5 on MNIST images. The network is measured once
per run, before it; the prediction is the simulator's. Measured is the median step of the later half.
"""

from __future__ import annotations

import statistics
import sys

import torch
from torch import nn

from weft import zoo
from weft.adapt.train import train
from weft.fleet.fleet import Fleet
from weft.fleet.parse import parse_fleet

SPEEDS = {"slow": (0.25, 1.0, 2.0), "middle": (0.5, 2.0, 4.0), "fast": (1.0, 4.0, 8.0)}
RUNS = [
    ("slow", 5, "all-device", {}),
    ("slow", 5, "jointdnn+", {}),
    ("middle", 10, "all-edge", {}),
    ("middle", 10, "chain", {"devices": "pi,nuc,cloud", "micro_batches": "4"}),
    ("middle", 20, "all-cloud", {"route": "store_and_forward"}),
    ("middle", 20, "chain", {}),
    ("fast", 50, "all-cloud", {"micro_batches": "4"}),
    ("fast", 50, "jointdnn", {}),
    ("fast", 50, "chain", {"devices": "pi,nuc", "micro_batches": "8"}),
]


def fleet(speeds: tuple[float, float, float], mbps: float) -> Fleet:
    pi, nuc, cloud = speeds
    return parse_fleet(
        f"""
        [[device]]
        name = "pi"
        gflops = {pi}
        data = true
        [[device]]
        name = "nuc"
        tier = "edge"
        gflops = {nuc}
        [[device]]
        name = "cloud"
        tier = "cloud"
        gflops = {cloud}
        [[link]]
        between = ["pi", "nuc"]
        mbps = {mbps}
        latency_ms = 2
        [[link]]
        between = ["nuc", "cloud"]
        mbps = {mbps * 0.6}
        latency_ms = 10
        """
    )


def main(steps: int = 16) -> None:
    print(f"{'devices':<8} {'Mbps':>5} {'strategy':<12} {'options':<40} {'predicted':>10} "
          f"{'measured':>10} {'ratio':>6}")  # fmt: skip
    off = []
    for speed, mbps, strategy, options in RUNS:
        torch.manual_seed(0)
        result = train(
            zoo.build("lenet5"), "mnist5k", nn.CrossEntropyLoss(), fleet=fleet(SPEEDS[speed], mbps),
            strategy=strategy, steps=steps, batch=64, local=True, options=options, name="lenet5",
        )  # fmt: skip
        ratio = result.step_s / result.predicted_step_s
        off.append(abs(ratio - 1))
        told = " ".join(f"{k}={v}" for k, v in options.items())
        print(f"{speed:<8} {mbps:>5} {strategy:<12} {told:<40} {result.predicted_step_s * 1e3:>7.1f} ms "
              f"{result.step_s * 1e3:>7.1f} ms {ratio:>6.3f}", flush=True)  # fmt: skip
    within = sum(o <= 0.10 for o in off)
    print(f"within 10%: {within} of {len(off)}; median deviation {statistics.median(off):.1%}, "
          f"largest {max(off):.1%}")  # fmt: skip


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 16)
