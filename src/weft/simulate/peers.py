"""Decoupled training in one process: peers with different classes, rounds, exchange, recomposition.

    run = train_peers(net, data, sets, topology("ring", len(sets)), Recipe(rounds=8))
    run.accuracy[-1], run.net            # of the network put together after each round

Nothing is lost or late here: this is the mathematics that node processes must reproduce. What differs
between methods (what a peer holds, its loss, who averages what) is in `Recipe`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from weft.data.classes import Deal, class_rows
from weft.graph.classes import DecoupledNet, State, compose
from weft.graph.classes_decouple import calibrate, reestimate_norms
from weft.graph.classes_exchange import gossip, harvest, mean, ring_all_reduce, sync_structures

Code = Callable[[Tensor], tuple[Tensor, int]]  # a tensor as it arrives, and its bytes on the way


@dataclass(frozen=True)
class Samples:
    """Training samples, and those on which the network is judged."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    public: int = 0  # the first rows of x belong to everybody: pre-training and calibration use them

    @property
    def public_x(self) -> Tensor:
        return self.x[: self.public]

    @property
    def public_y(self) -> Tensor:
        return self.y[: self.public]


@dataclass(frozen=True)
class Recipe:
    """How long and with what rule peers train, and what they do between rounds."""

    rounds: int = 8
    epochs: float = 1.0  # over a peer's own samples in each round
    steps: int | None = None  # the same number of minibatches for every peer, in place of epochs
    batch: int = 64
    lr: float = 0.05
    momentum: float = 0.9
    decay: float = 5e-4
    deal: Deal = "replicate"
    shared: Literal["ring", "gossip"] = "ring"
    sync: Literal["rounds", "end"] = "rounds"
    calibrated: bool = True  # with the public samples, where there are any
    seed: int = 0
    # What decoupled+ adds:
    ghosts: bool = False  # logits of classes held elsewhere come from the pre-trained network
    distil: float = 0.0  # how much staying near the pre-trained network's logits counts
    replay: float = 0.0  # public samples of other classes in a minibatch, as a share of it
    weighted: bool = False  # averages by samples seen
    code: Code | None = None  # how tensors cross links


@dataclass
class Run:
    """What came out: accuracies by round, samples that each peer computed, bytes that it sent."""

    net: nn.Module
    accuracy: list[float] = field(default_factory=list)
    local: list[list[float]] = field(default_factory=list)  # by round and peer, on its own classes
    samples: list[int] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)


@torch.no_grad()
def accuracy(net: nn.Module, x: Tensor, y: Tensor, batch: int = 500) -> float:
    """Share of samples whose largest logit is that of column y."""
    training = net.training
    net.eval()
    hits = sum(
        int((net(x[i : i + batch]).argmax(1) == y[i : i + batch]).sum())
        for i in range(0, len(x), batch)
    )
    net.train(training)
    return hits / max(len(x), 1)


@torch.no_grad()
def logits_of(net: nn.Module, x: Tensor, batch: int = 500) -> Tensor:
    training = net.training
    net.eval()
    found = torch.cat([net(x[i : i + batch]) for i in range(0, len(x), batch)])
    net.train(training)
    return found


Loss = Callable[[nn.Module, Tensor], Tensor]  # of a network and the rows of a minibatch


class Trainer:
    """A network, its optimizer, and its samples in an order that only its seed decides."""

    def __init__(self, net: nn.Module, rows: int, loss: Loss, recipe: Recipe, seed: int) -> None:
        self.net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.rows, self.loss, self.recipe = rows, loss, recipe
        self.rule = torch.optim.SGD(
            self.net.parameters(), recipe.lr, recipe.momentum, weight_decay=recipe.decay
        )
        self.generator = torch.Generator().manual_seed(seed)
        self.order = torch.empty(0, dtype=torch.long)
        self.samples = 0

    @property
    def epoch_steps(self) -> int:
        return max(1, round(self.rows / self.recipe.batch))

    def train(self, steps: int, lr: float) -> None:
        for group in self.rule.param_groups:
            group["lr"] = lr
        self.net.train()
        for _ in range(steps):
            batch = min(self.recipe.batch, self.rows)
            if len(self.order) < batch:
                self.order = torch.randperm(self.rows, generator=self.generator)
            rows, self.order = self.order[:batch], self.order[batch:]
            self.rule.zero_grad(set_to_none=True)
            self.loss(self.net, rows).backward()  # type: ignore[no-untyped-call]
            self.rule.step()
            self.samples += batch


def learning_rate(recipe: Recipe, round_: int) -> float:
    """Falls in a line to a tenth, the same for every method."""
    return recipe.lr * (1 - 0.9 * round_ / max(recipe.rounds - 1, 1))


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
        run.accuracy.append(accuracy(net, data.test_x, data.test_y))
    run.samples = [trainer.samples]
    return run


def train_fedavg(
    net: nn.Module, data: Samples, sets: Sequence[Sequence[int]], recipe: Recipe
) -> Run:
    """FedAvg on the same class sets: everybody trains the whole network, all average all of it."""
    found = class_rows(data.y, sets, recipe.deal, seed=recipe.seed)
    trainers = [
        Trainer(copy.deepcopy(net), len(rows), _plain_loss(data, rows), recipe, recipe.seed + p)
        for p, rows in enumerate(found)
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


class Peer:
    """One peer: its sub-model, its samples, and how it learns from them."""

    def __init__(
        self,
        net: DecoupledNet,
        classes: Sequence[int],
        rows: Tensor,
        data: Samples,
        recipe: Recipe,
        seed: int,
        teacher: Tensor | None = None,
    ) -> None:
        self.net = net.sub_model(classes)
        self.classes = tuple(classes)
        loss = _own_loss(self.net, data, rows, recipe, seed, teacher)
        self.trainer = Trainer(self.net, len(rows), loss, recipe, seed)
        self.seen = {c: float((data.y[rows] == c).sum()) for c in self.classes}

    def steps(self, recipe: Recipe) -> int:
        return recipe.steps or max(1, round(recipe.epochs * self.trainer.epoch_steps))

    def put(self, shared: Mapping[str, Tensor], structures: Mapping[int, State]) -> None:
        self.net.put_shared(shared)
        for label, state in structures.items():
            self.net.put_structure(label, state)


def _own_loss(
    net: DecoupledNet, data: Samples, rows: Tensor, recipe: Recipe, seed: int, teacher: Tensor | None
) -> Loss:
    """Softmax over the peer's own classes; with a teacher, over all (see `Recipe`)."""
    x, y = data.x[rows], data.y[rows]
    if teacher is None or not (recipe.ghosts or recipe.distil or recipe.replay):
        columns = net.local_labels(y)

        def plain(model: nn.Module, at: Tensor) -> Tensor:
            return functional.cross_entropy(model(x[at]), columns[at])

        return plain
    return _taught_loss(net, data, rows, recipe, seed, teacher)


def _taught_loss(
    net: DecoupledNet, data: Samples, rows: Tensor, recipe: Recipe, seed: int, teacher: Tensor
) -> Loss:
    """Softmax over all classes: own logits, and the pre-trained network's for classes held elsewhere.

    Public samples of other classes are the only ones that say where an own logit must be low.
    """
    held = torch.tensor(net.classes)
    foreign = ~torch.isin(data.public_y, held)
    others = foreign.nonzero()[:, 0]
    generator = torch.Generator().manual_seed(seed + 1)

    def loss(model: nn.Module, at: Tensor) -> Tensor:
        mine = rows[at]
        count = round(recipe.replay * len(at)) if len(others) else 0
        if count:
            drawn = torch.randint(len(others), (count,), generator=generator)
            mine = torch.cat([mine[: len(at) - count], others[drawn]])
        target = teacher[mine]
        own = model(data.x[mine])
        whole = target.clone() if recipe.ghosts else torch.full_like(target, -1e4)
        whole = whole.index_copy(1, held, own)
        result = functional.cross_entropy(whole, data.y[mine])
        if recipe.distil:
            near = target[:, held]
            result = result + recipe.distil * functional.mse_loss(own, near)
        return result

    return loss


def train_peers(
    net: DecoupledNet,
    data: Samples,
    sets: Sequence[Sequence[int]],
    neighbours: Mapping[int, frozenset[int]],
    recipe: Recipe,
    teacher: nn.Module | None = None,
    shares: Sequence[float] | None = None,
) -> Run:
    """Rounds of local training and exchange; the whole network is judged after each."""
    rows = class_rows(data.y, sets, recipe.deal, seed=recipe.seed, shares=shares)
    known = None if teacher is None else logits_of(teacher, data.x)
    peers = [
        Peer(net, held, own, data, recipe, recipe.seed * 100 + p, known)
        for p, (held, own) in enumerate(zip(sets, rows, strict=True))
    ]
    run = Run(net, sent=[0] * len(peers))
    for round_ in range(recipe.rounds):
        for peer in peers:
            peer.trainer.train(peer.steps(recipe), learning_rate(recipe, round_))
        if recipe.sync == "rounds":
            exchange(peers, neighbours, recipe, run)
        run.net = recomposed(net, peers, data, recipe)
        run.accuracy.append(accuracy(run.net, data.test_x, data.test_y))
        run.local.append([_local_accuracy(peer, data) for peer in peers])
    run.samples = [peer.trainer.samples for peer in peers]
    return run


def _local_accuracy(peer: Peer, data: Samples) -> float:
    own = torch.isin(data.test_y, torch.tensor(peer.classes))
    x, y = data.test_x[own], data.test_y[own]
    return accuracy(peer.net, x, peer.net.local_labels(y))


def exchange(
    peers: Sequence[Peer], neighbours: Mapping[int, frozenset[int]], recipe: Recipe, run: Run
) -> None:
    """Structures between neighbours, shared layers over all; peers go on with the means."""
    held = {p: peer.net.structures() for p, peer in enumerate(peers)}
    shared = [peer.net.shared_state() for peer in peers]
    if recipe.code is not None:
        held = {p: {c: _coded(s, recipe.code) for c, s in own.items()} for p, own in held.items()}
        shared = [_coded(state, recipe.code) for state in shared]
    weights = {p: peer.seen for p, peer in enumerate(peers)} if recipe.weighted else None
    after = sync_structures(held, neighbours, weights)
    if recipe.shared == "ring":
        means, sent = ring_all_reduce(shared)
    else:
        mixed = gossip(dict(enumerate(shared)), neighbours)
        means = [mixed[p] for p in range(len(peers))]
        sent = [_bytes(shared[p]) * len(neighbours[p]) for p in range(len(peers))]
    for p, peer in enumerate(peers):
        near = [set(peers[q].classes) & set(peer.classes) for q in neighbours[p]]
        run.sent[p] += sent[p] + sum(_bytes(held[p][c]) for shared_set in near for c in shared_set)
        peer.put(means[p], after[p])


def _coded(state: Mapping[str, Tensor], code: Code) -> State:
    return {key: code(tensor)[0] for key, tensor in state.items()}


def _bytes(state: Mapping[str, Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in state.values())


def recomposed(
    net: DecoupledNet, peers: Sequence[Peer], data: Samples, recipe: Recipe
) -> DecoupledNet:
    """The whole network: means over all owners of a class, over all peers for what is shared."""
    held = {p: peer.net.structures() for p, peer in enumerate(peers)}
    weights = {p: peer.seen for p, peer in enumerate(peers)} if recipe.weighted else None
    shared = mean([peer.net.shared_state() for peer in peers])
    whole = compose(net.blueprint, shared, harvest(held, weights))
    if data.public and recipe.calibrated:
        reestimate_norms(whole, data.public_x)
        calibrate(whole, data.public_x, data.public_y)
    return whole
