"""Your own network, for every command that takes a MODEL:

    weft plan examples/own_model.py:build --fleet examples/fleets/demo.toml --strategy chain
    weft train examples/own_model.py:build --data mnist5k --fleet examples/fleets/demo.toml \\
        --strategy chain --steps 30 --local

The file is run only on the machine where you type the command. The nodes get a graph and weights, never code.
"""

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Two convolutions with a skip connection. A cut inside the block carries two tensors."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.second(torch.relu(self.norm(self.first(x)))))


def build() -> tuple[nn.Module, Tensor]:
    """The factory: the network, and an example of its input (two samples)."""
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1),
        nn.ReLU(),
        Block(8),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * 7 * 7, 10),
    )
    return net, torch.zeros(2, 1, 28, 28)
