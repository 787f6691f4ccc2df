"""Answers with a network that is spread over an emulated fleet, and checks the answers.

python examples/inference.py
"""

from pathlib import Path

import torch

import weft

if __name__ == "__main__":
    torch.manual_seed(0)
    model, _ = weft.load_model("resnet8")
    model.eval()
    fleet = weft.Fleet.load(Path(__file__).parent / "fleets" / "demo.toml")
    x = torch.rand(4, 1, 28, 28)  # the plan is for batches of this size
    with weft.serve(
        model, x, fleet, strategy="chain", options={"devices": "pi,nuc,cloud"}, local=True
    ) as net:
        print(net.plan)
        one = net(x)
        many = net.stream([x + i for i in range(8)])  # one after the other, without a pause
    with torch.no_grad():
        print(
            f"one batch: largest difference from the whole network {(one - model(x)).abs().max():.1e}"
        )
        print(f"{len(many)} more batches, each {tuple(many[0].shape)}")
