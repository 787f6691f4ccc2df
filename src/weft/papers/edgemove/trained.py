"""How many minibatches a network needs with a pipeline's staleness: really trained, with several seeds.

    needs = train_all(silent)
    needs.more(in_flight=2)          # (share of minibatches more than plain training, its standard error)

The paper measures the time to a target accuracy. The city counts minibatches. These stand for accuracy only
if the pipeline needs as many as plain training. So LeNet-5 is trained on 5,000 MNIST images, with the
client's layers as many updates old as in the pipeline.
"""

from __future__ import annotations

import copy
import math
import statistics
from collections import deque
from dataclasses import dataclass

import torch

from weft.data import batch_indices, load
from weft.data.dataset import Dataset
from weft.graph.optimizers.optimizer import Optimizer
from weft.papers.registry import Tell
from weft.reference.stale import StaleTraining
from weft.zoo.models import build

SEEDS = 6
COUNTS = (1, 2, 4)  # in flight: On-Device; the paper's schemes; the most of edgemove+
TARGET = 0.90  # share of the test images
BATCH, RATE = 32, 0.05
CLIENT = 2  # the client has LeNet-5's two convolutions; its later layers are never stale
EVERY, MOST = 5, 600  # minibatches between two tests; minibatches after which training is given up
TESTED = 500  # images per test
TESTS = 4  # consecutive tests whose mean must reach the target


@dataclass(frozen=True)
class Needs:
    """Minibatches to the target accuracy, by number in flight and by seed."""

    minibatches: dict[int, list[int]]

    def more(self, in_flight: int) -> tuple[float, float]:
        """The share of minibatches more than with one in flight: mean over the seeds, standard error."""
        pairs = zip(self.minibatches[in_flight], self.minibatches[1], strict=True)
        ratios = [mine / plain - 1 for mine, plain in pairs]
        return statistics.fmean(ratios), statistics.stdev(ratios) / math.sqrt(len(ratios))


def train_all(tell: Tell, begin: float = 0.0, end: float = 1.0) -> Needs:
    """Train with every count and every seed. For one seed, all counts have the same weights and samples."""
    data = load("mnist5k")
    needs: dict[int, list[int]] = {count: [] for count in COUNTS}
    for seed in range(SEEDS):
        tell(f"training, seed {seed + 1} of {SEEDS}", begin + (end - begin) * seed / SEEDS)
        for count in COUNTS:
            needs[count].append(minibatches_to_target(data, seed, count))
    return Needs(needs)


def minibatches_to_target(data: Dataset, seed: int, in_flight: int) -> int:
    """Minibatches until the mean of the last tests reaches the target; MOST if it never does."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            module = build("lenet5")
        names = [name for name, _ in module.named_parameters()]
        client = names[: 2 * CLIENT]  # a weight and a bias for each layer
        training = StaleTraining(
            copy.deepcopy(module), dict.fromkeys(client, in_flight - 1), Optimizer("sgd", RATE)
        )
        tests: deque[float] = deque(maxlen=TESTS)
        for step in range(MOST):
            index = batch_indices(len(data.train_x), BATCH, step, seed)
            training.step(data.train_x[index], data.train_y[index])
            if (step + 1) % EVERY == 0:
                tests.append(_accuracy(training, data))
                if len(tests) == TESTS and statistics.fmean(tests) >= TARGET:
                    return step + 1
        return MOST
    finally:
        torch.set_num_threads(threads)


@torch.no_grad()
def _accuracy(training: StaleTraining, data: Dataset) -> float:
    answers = training.module(data.test_x[:TESTED]).argmax(dim=1)
    return float((answers == data.test_y[:TESTED]).double().mean())
