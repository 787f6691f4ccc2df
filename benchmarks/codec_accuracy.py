"""What 8-bit codecs cost in accuracy: LeNet-5 on MNIST images, trained hybrid on three processes.

The same hybrid plan (three lanes of samples) with nothing coded, with 8-bit activations and their
gradients, with 8-bit weight gradients too, and with 8-bit samples too. Means over seeds.
"""

from __future__ import annotations

import statistics
import sys

import msgspec
import torch
from torch import nn

from weft import zoo
from weft.adapt.train import train
from weft.fleet.parse import parse_fleet
from weft.graph.capture.module import capture
from weft.graph.optimizers.optimizer import Optimizer
from weft.planning.task import make_task
from weft.plans.derive import derive_profile
from weft.plans.plan import Plan
from weft.strategies.hiertrain.strategy import role_shards

FLEET = """
[[device]]
name = "pi"
gflops = 1000
data = true
[[device]]
name = "nuc"
tier = "edge"
gflops = 1000
[[device]]
name = "cloud"
tier = "cloud"
gflops = 1000
[[link]]
between = ["pi", "nuc"]
mbps = 1000
[[link]]
between = ["nuc", "cloud"]
mbps = 1000
"""
LEVELS = {
    "nothing": {},
    "activations": {"codec": "int8"},
    "and weight gradients": {"codec": "int8", "gradient_codec": "int8"},
    "and samples": {"codec": "int8", "gradient_codec": "int8", "input_codec": "int8"},
    "the same, by blocks": dict.fromkeys(("codec", "gradient_codec", "input_codec"), "int8-blocks"),
}
BATCH = 64


def hybrid() -> Plan:
    fleet = parse_fleet(FLEET)
    graph = capture(zoo.build("lenet5"), torch.zeros(2, 1, 28, 28), name="lenet5")
    task = make_task(derive_profile(graph, fleet), fleet, batch=BATCH)
    return Plan(
        strategy="hiertrain", model="lenet5", batch=BATCH, mode="train", source="pi", fleet=fleet,
        profile=task.profile,
        shards=role_shards(len(graph.layers), ("cloud", "pi", "nuc"), 1, 3, (24, 24, 16)),
    )  # fmt: skip


def main(seeds: int = 3, steps: int = 250) -> None:
    plan = hybrid()
    print(f"{'coded in 8 bits':<22} {'test accuracy':>14} {'deviation':>10} {'points lost':>12}")
    base = 0.0
    for label, codecs in LEVELS.items():
        found = []
        for seed in range(seeds):
            torch.manual_seed(seed)
            result = train(
                zoo.build("lenet5"), "mnist5k", nn.CrossEntropyLoss(), steps=steps, batch=BATCH,
                plan=msgspec.structs.replace(plan, **codecs), optimizer=Optimizer("momentum", 0.02),
                local=True, seed=seed, name="lenet5",
            )  # fmt: skip
            assert result.test_accuracy is not None
            found.append(result.test_accuracy * 100)
        mean = statistics.mean(found)
        base = base or mean
        spread = statistics.stdev(found) if len(found) > 1 else 0.0
        print(f"{label:<22} {mean:>12.2f} % {spread:>10.2f} {base - mean:>12.2f}", flush=True)


if __name__ == "__main__":
    main(*(int(a) for a in sys.argv[1:]))
