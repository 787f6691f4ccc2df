"""Texts of unequal length, padded and masked, classified by a transformer on three emulated devices.

    python examples/text_classification.py

The collate function pads a minibatch. The mask goes to the network as a second input, by its name.
"""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import weft

FLEET = Path(__file__).parent / "fleets" / "demo.toml"
GOOD, BAD = (
    ["great", "fine", "lovely", "warm", "bright"],
    ["poor", "dull", "cold", "broken", "late"],
)
WORDS = ["<pad>", "the", "was", "room", "food", "very", "and", *GOOD, *BAD]
LONGEST = 12


def texts(count: int) -> list[tuple[list[int], int]]:
    """(word numbers, class): a text is of class 1 if its last judging word is a good one."""
    draw = torch.Generator().manual_seed(0)
    samples = []
    for _ in range(count):
        length = int(torch.randint(3, LONGEST + 1, (1,), generator=draw))
        numbers = torch.randint(1, len(WORDS), (length,), generator=draw).tolist()
        judging = [n for n in numbers if WORDS[n] in GOOD + BAD]
        samples.append((numbers, int(bool(judging) and WORDS[judging[-1]] in GOOD)))
    return samples


def padded(samples: list[tuple[list[int], int]]) -> dict[str, Tensor]:
    """A minibatch: the inputs by name, and the labels."""
    words = torch.zeros(len(samples), LONGEST, dtype=torch.long)
    for row, (numbers, _) in enumerate(samples):
        words[row, : len(numbers)] = torch.tensor(numbers)
    return {"words": words, "padding": words == 0, "labels": torch.tensor([s[1] for s in samples])}


class Classifier(nn.Module):
    """Words and places, two encoders that do not look at padding, the mean over the words that are there."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(len(WORDS), 32), nn.Embedding(LONGEST, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.encoders = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 2)

    def forward(self, words: Tensor, padding: Tensor) -> Tensor:
        x = self.words(words) + self.places(torch.arange(LONGEST))
        x = self.encoders(x, src_key_padding_mask=padding)
        there = (~padding).unsqueeze(-1).float()
        return self.head((x * there).sum(1) / there.sum(1))


def main(steps: int = 60) -> list[float]:
    """Trains the network; returns the losses."""
    torch.manual_seed(0)
    loader = DataLoader(texts(512), batch_size=32, shuffle=True, collate_fn=padded)  # type: ignore[arg-type]
    result = weft.train(
        Classifier(), loader, nn.CrossEntropyLoss(), fleet=weft.Fleet.load(FLEET), strategy="chain",
        steps=steps, local=True, optimizer="adamw", lr=0.003,
    )  # fmt: skip
    print(f"loss {result.losses[0]:.3f} -> {result.losses[-1]:.3f}")
    return result.losses


if __name__ == "__main__":
    main()
