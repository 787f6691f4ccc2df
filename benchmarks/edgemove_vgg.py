"""A large network on slow radio links, really run: is a step what was predicted for the plan that runs?

    python benchmarks/edgemove_vgg.py [steps] [batch]

VGG-16 for images of 32 x 32 with edgemove+ on examples/fleets/edge-and-phone.toml: node processes, paced
devices, shaped links. A whole step takes seconds on a server and tens of seconds on the phone, so a probe
trains a small share of one. The samples are random: only time is measured. Ends with exit code 1 where the
measured step is more than 15% away from the prediction.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

from weft import zoo
from weft.adapt.train import train
from weft.fleet.fleet import Fleet

FLEET = Path(__file__).resolve().parent.parent / "examples" / "fleets" / "edge-and-phone.toml"
ALLOWED = 0.15


def main(steps: int = 24, batch: int = 8) -> int:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = zoo.build("vgg16", (3, 32, 32), 10)
    samples = torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,))
    result = train(
        network, samples, nn.CrossEntropyLoss(), fleet=Fleet.load(FLEET), strategy="edgemove+",
        steps=steps, batch=batch, lr=0.01, local=True, name="vgg16",
    )  # fmt: skip
    shares = ", ".join(f"{s.device} {s.layers[0]}-{s.layers[1]}" for s in result.plan.shards)
    ratio = result.step_s / result.predicted_step_s
    print(f"batch {batch}, {shares}, {result.plan.stale + 1} in flight")
    for event in result.events:
        print(f"  minibatch {event['step']}: {event['kind']}: {event.get('why', '')}")
    print(
        f"a step: {result.predicted_step_s:.3f} s predicted, {result.step_s:.3f} s measured, "
        f"ratio {ratio:.3f}"
    )
    return int(abs(ratio - 1) > ALLOWED)


if __name__ == "__main__":
    sys.exit(main(*(int(argument) for argument in sys.argv[1:])))
