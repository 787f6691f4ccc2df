"""Trains LeNet-5 on MNIST digits, on a fleet of a Pi, a NUC and a cloud machine.

python examples/quickstart.py --local      emulated here, one process per device
python examples/quickstart.py              on nodes that run elsewhere on the local network
"""

import sys
from pathlib import Path

import torch
from torch import nn

import weft

if __name__ == "__main__":
    torch.manual_seed(0)
    model, _ = weft.load_model("lenet5")
    fleet = weft.Fleet.load(Path(__file__).parent / "fleets" / "demo.toml")
    result = weft.train(
        model, "mnist5k", nn.CrossEntropyLoss(), fleet=fleet, strategy="chain", batch=64,
        steps=60, optimizer="momentum", lr=0.02, local="--local" in sys.argv,
    )  # fmt: skip
    print(result.plan)
    print(f"step: {result.predicted_step_s:.4f} s predicted, {result.step_s:.4f} s measured")
    print(f"loss: {result.losses[0]:.3f} at first, {result.losses[-1]:.3f} at last")
    print(f"test accuracy: {result.test_accuracy:.1%}")
    # result.model is the network from above, an ordinary nn.Module with the trained weights.
