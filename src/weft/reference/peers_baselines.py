"""The baselines of decoupled training: one network in one place, and FedAvg.

train_whole(dense, data, recipe)          # centralized training; a DecoupledNet is possible too
train_fedavg(dense, data, sets, recipe)   # the whole network at every peer, on the same class sets
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

from weft.data.classes import class_rows
from weft.graph.split.classes.exchange import mean
from weft.graph.split.classes.network import State
from weft.reference.peers import Loss, Recipe, Run, Samples, Trainer, accuracy, learning_rate


def train_whole(net: nn.Module, data: Samples, recipe: Recipe) -> Run:
    """Centralized training: one network, all samples."""
    net = copy.deepcopy(net)

    def loss(model: nn.Module, rows: Tensor) -> Tensor:
        return functional.cross_entropy(model(data.x[rows]), data.y[rows])

    trainer = Trainer(net, len(data.x), loss, recipe, recipe.seed)
    run = Run(net)
    for round_ in range(recipe.rounds):
        steps = recipe.steps or round(recipe.epochs * trainer.epoch_steps)
        trainer.train(steps, learning_rate(recipe, round_))
        if recipe.judges(round_):
            run.accuracy.append(accuracy(net, data.test_x, data.test_y))
    run.samples = [trainer.samples]
    return run


def train_fedavg(
    net: nn.Module, data: Samples, sets: Sequence[Sequence[int]], recipe: Recipe
) -> Run:
    """FedAvg on the same class sets: every peer trains the whole network, and all weights are averaged."""
    rows_by_peer = class_rows(data.y, sets, recipe.deal, seed=recipe.seed)
    trainers = [
        Trainer(copy.deepcopy(net), len(rows), _plain_loss(data, rows), recipe, recipe.seed + p)
        for p, rows in enumerate(rows_by_peer)
    ]
    run = Run(copy.deepcopy(net))
    for round_ in range(recipe.rounds):
        for trainer in trainers:
            steps = recipe.steps or round(recipe.epochs * trainer.epoch_steps)
            trainer.train(steps, learning_rate(recipe, round_))
        states = [_floats(trainer.net) for trainer in trainers]
        middle = mean(states, [float(t.rows) for t in trainers])
        for model in [run.net, *(t.net for t in trainers)]:
            model.load_state_dict(middle, strict=False)
        if recipe.judges(round_):
            run.accuracy.append(accuracy(run.net, data.test_x, data.test_y))
    run.samples = [trainer.samples for trainer in trainers]
    size = sum(t.numel() * t.element_size() for t in _floats(run.net).values())
    run.sent = [round(2 * (len(sets) - 1) / len(sets) * size * recipe.rounds)] * len(sets)
    return run


def _floats(net: nn.Module) -> State:
    return {k: t.detach() for k, t in net.state_dict().items() if t.is_floating_point()}


def _plain_loss(data: Samples, rows: Tensor) -> Loss:
    x, y = data.x[rows], data.y[rows]

    def loss(model: nn.Module, at: Tensor) -> Tensor:
        return functional.cross_entropy(model(x[at]), y[at])

    return loss
