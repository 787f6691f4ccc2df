"""Your own DataLoader, with a schedule and clipping, trained on three emulated devices.

    python examples/own_loader.py

The loader's order, workers and collate function are its own. The result is that of one process.
"""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import weft

FLEET = Path(__file__).parent / "fleets" / "demo.toml"


class Waves(Dataset[tuple[Tensor, int]]):
    """Noisy waves; the class is their frequency."""

    def __len__(self) -> int:
        return 512

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        label = number % 4
        noise = torch.randn(32, generator=torch.Generator().manual_seed(number))
        return torch.sin(torch.arange(32) * 0.2 * (label + 1)) + 0.3 * noise, label


def main(steps: int = 40) -> list[float]:
    """Trains the network; returns the losses."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)
    )
    loader = DataLoader(Waves(), batch_size=32, shuffle=True, drop_last=True)
    result = weft.train(
        network, loader, nn.CrossEntropyLoss(), fleet=weft.Fleet.load(FLEET), strategy="chain",
        steps=steps, local=True, optimizer="adamw", lr=0.005, schedule="cosine", warmup=4, clip_norm=1.0,
    )  # fmt: skip
    print(f"loss {result.losses[0]:.3f} -> {result.losses[-1]:.3f}")
    return result.losses


if __name__ == "__main__":
    main()
