"""Small networks of every shape that a capture must understand."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from weft.graph.execute import Runner
from weft.graph.network import Graph


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.first(x))
        y = y + self.second(y)
        y = x + y
        result: Tensor = self.last(y)
        return result


class Branches(nn.Module):
    """Two branches of different depth, joined; one of them is read again later."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.short = nn.Conv2d(4, 2, 1)
        self.long = nn.Sequential(nn.Conv2d(4, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 2, 1))
        self.head = nn.Linear(4 * 25, 5)
        self.scale = nn.Linear(2 * 25, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu_(self.stem(x))
        short, long = self.short(x), self.long(x)
        joined = torch.cat([short, long], 1).flatten(1)
        result: Tensor = self.head(joined) * torch.sigmoid(self.scale(short.flatten(1)))
        return result


class BatchNorms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.two = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4))
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(4 * 9, 8), nn.BatchNorm1d(8))
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x)
        result: Tensor = self.last(self.head(functional.relu(self.two(x) + x)))
        return result


def encoder(dropout: float) -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout, batch_first=True)
    body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return nn.Sequential(nn.Linear(5, 8), body, nn.Flatten(), nn.Linear(32, 3))


def sequential(dropout: float = 0.0) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(27, 16), nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, 4),
    )  # fmt: skip


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "sequential": (sequential, (1, 8, 8)),
    "residual": (Residual, (6,)),
    "branches": (Branches, (1, 5, 5)),
    "encoder": (lambda: encoder(0.0), (4, 5)),
    "batch norm": (BatchNorms, (1, 5, 5)),
}
RANDOM: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "dropout": (lambda: sequential(0.5), (1, 8, 8)),
    "encoder with dropout": (lambda: encoder(0.3), (4, 5)),
}


@pytest.fixture(params=NETWORKS)
def network(request: pytest.FixtureRequest) -> tuple[nn.Module, Tensor]:
    """A network without random operators, and a batch of 7 for it."""
    return _made(*NETWORKS[request.param])


@pytest.fixture(params=RANDOM)
def random_network(request: pytest.FixtureRequest) -> tuple[nn.Module, Tensor]:
    return _made(*RANDOM[request.param])


@pytest.fixture
def batch_norms() -> nn.Module:
    torch.manual_seed(0)
    return BatchNorms()


def _made(build: Callable[[], nn.Module], shape: tuple[int, ...]) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return build(), torch.randn(7, *shape)


Pieces = Callable[..., Tensor]


@pytest.fixture(scope="session")
def in_pieces() -> Pieces:
    def run(
        graph: Graph,
        state: dict[str, Tensor],
        x: Tensor,
        cuts: list[int],
        *,
        training: bool = False,
        seed: int = 0,
    ) -> Tensor:
        """The output with the network cut before each layer in `cuts`, on a copy of its state."""
        own = {name: tensor.clone() for name, tensor in state.items()}
        ends = [0, *cuts, len(graph.layers)]
        values = {graph.inputs[0]: x}
        for first, after in itertools.pairwise(ends):
            runner = Runner(graph.segment(first, after - 1), own)
            values = runner.forward(values, training=training, seed=seed)
        return values[graph.output]

    return run
