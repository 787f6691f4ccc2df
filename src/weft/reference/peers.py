"""Decoupled training in one process: peers with different classes, rounds, exchange, recomposition.

    run = train_peers(net, data, sets, topology("ring", len(sets)), Recipe(rounds=8))
    run.accuracy[-1], run.net            # of the network that was composed after the last round

Here no message is lost or late. Node processes must reproduce these numbers. `Recipe` holds the
differences between methods: what a peer holds, its loss, and who averages what.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from weft.data.classes import Deal, class_rows
from weft.graph.split.classes.calibrate import calibrate, reestimate_norms
from weft.graph.split.classes.exchange import (
    gossip,
    harvest,
    mean,
    ring_all_reduce,
    sync_structures,
)
from weft.graph.split.classes.network import DecoupledNet, State, compose
from weft.plans.peers import SHARED

Code = Callable[[Tensor], tuple[Tensor, int]]  # a tensor as it arrives, and its bytes on the link


@dataclass(frozen=True)
class Samples:
    """Training samples and test samples."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    public: int = 0  # the first rows of x are public: pre-training and calibration use them

    @property
    def public_x(self) -> Tensor:
        """The public samples."""
        return self.x[: self.public]

    @property
    def public_y(self) -> Tensor:
        """The labels of the public samples."""
        return self.y[: self.public]


@dataclass(frozen=True)
class Recipe:
    """How long and with which rule peers train, and what they do between rounds."""

    rounds: int = 8
    epochs: float = 1.0  # over a peer's own samples, in each round
    steps: int | None = None  # the same number of minibatches for every peer, instead of epochs
    batch: int = 16
    lr: float = 0.03
    momentum: float = 0.9
    decay: float = 5e-4
    deal: Deal = "replicate"
    shared: Literal["ring", "gossip"] = "ring"
    sync: Literal["rounds", "end"] = "rounds"
    calibrated: bool = True  # with the public samples, if there are any
    watch: bool = True  # test the network after every round, not only after the last one
    seed: int = 0
    # What decoupled+ adds:
    distil: float = 0.0  # the weight of staying near the pre-trained network's logits in the loss
    weighted: bool = False  # averages are weighted by samples
    tail: int = 1  # the result is the mean of the networks of so many last rounds
    code: Code | None = None  # how tensors are coded on links

    def judges(self, round_: int) -> bool:
        """Whether the network is tested after this round."""
        return self.watch or round_ == self.rounds - 1


@dataclass
class Run:
    """The results: accuracies by round, samples that each peer computed, bytes that it sent."""

    net: nn.Module
    accuracy: list[float] = field(default_factory=list)
    # By round and peer, on the peer's classes.
    local: list[list[float]] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)


@torch.no_grad()
def accuracy(net: nn.Module, x: Tensor, y: Tensor, batch: int = 500) -> float:
    """The share of samples whose largest logit is in column y."""
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
    """A network's outputs for many samples, without gradients."""
    training = net.training
    net.eval()
    logits = torch.cat([net(x[i : i + batch]) for i in range(0, len(x), batch)])
    net.train(training)
    return logits


Loss = Callable[[nn.Module, Tensor], Tensor]  # from a network and the row numbers of a minibatch


class Trainer:
    """A network, its optimizer, and its samples in an order that depends only on the seed."""

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
        """The number of minibatches of an epoch."""
        return max(1, round(self.rows / self.recipe.batch))

    def train(self, steps: int, lr: float) -> None:
        """Train so many minibatches."""
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
    """The learning rate falls linearly to a tenth, the same for every method."""
    return recipe.lr * (1 - 0.9 * round_ / max(recipe.rounds - 1, 1))


class PeerTrainer:
    """One peer: its network, its samples, and how it trains."""

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
        loss = _own_loss(self.net, data, rows, recipe, teacher)
        self.trainer = Trainer(self.net, len(rows), loss, recipe, seed)
        self.seen = {c: float((data.y[rows] == c).sum()) for c in self.classes}
        # By group: what rounding did not send to neighbours yet.
        self.dropped: dict[int, State] = {}

    def steps(self, recipe: Recipe) -> int:
        """Minibatches of a round."""
        return recipe.steps or max(1, round(recipe.epochs * self.trainer.epoch_steps))

    def tell(self, group: int, state: State, code: Code | None) -> tuple[State, int]:
        """A group's tensors as neighbours receive them, and their bytes on the link.

        The rounding error is added to the next message. Without that, small changes would never arrive.
        """
        if code is None:
            return state, _bytes(state)
        left = self.dropped.get(group, {})
        whole = {key: tensor + left.get(key, 0.0) for key, tensor in state.items()}
        parts = {key: code(tensor) for key, tensor in whole.items()}
        arrived = {key: tensor for key, (tensor, _) in parts.items()}
        self.dropped[group] = {key: tensor - arrived[key] for key, tensor in whole.items()}
        return arrived, sum(size for _, size in parts.values())

    def put(self, shared: Mapping[str, Tensor], structures: Mapping[int, State]) -> None:
        """Replace the peer's shared layers and these structures."""
        self.net.put_shared(shared)
        for label, state in structures.items():
            self.net.put_structure(label, state)


def _own_loss(
    net: DecoupledNet, data: Samples, rows: Tensor, recipe: Recipe, teacher: Tensor | None
) -> Loss:
    """Softmax over the peer's own classes, plus the distance of its logits from the teacher's."""
    x, columns = data.x[rows], net.local_labels(data.y[rows])
    if teacher is None or not recipe.distil:
        return lambda model, at: functional.cross_entropy(model(x[at]), columns[at])
    near = teacher[rows][:, list(net.classes)]

    def loss(model: nn.Module, at: Tensor) -> Tensor:
        logits = model(x[at])
        apart = functional.mse_loss(logits, near[at])
        return functional.cross_entropy(logits, columns[at]) + recipe.distil * apart

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
    """Rounds of local training and exchange. The whole network is tested after each round."""
    rows = class_rows(data.y, sets, recipe.deal, seed=recipe.seed, shares=shares)
    known = None if teacher is None else logits_of(teacher, data.x)
    peers = [
        PeerTrainer(net, held, own, data, recipe, recipe.seed * 100 + p, known)
        for p, (held, own) in enumerate(zip(sets, rows, strict=True))
    ]
    run = Run(net, sent=[0] * len(peers))
    gathered: deque[Gathered] = deque(maxlen=recipe.tail)
    for round_ in range(recipe.rounds):
        for peer in peers:
            peer.trainer.train(peer.steps(recipe), learning_rate(recipe, round_))
        if recipe.sync == "rounds":
            exchange(peers, neighbours, recipe, run)
        gathered.append(gather(peers, recipe))
        if recipe.judges(round_):
            run.net = recomposed(net, list(gathered), data, recipe)
            run.accuracy.append(accuracy(run.net, data.test_x, data.test_y))
            run.local.append([_local_accuracy(peer, data) for peer in peers])
    run.samples = [peer.trainer.samples for peer in peers]
    return run


def _local_accuracy(peer: PeerTrainer, data: Samples) -> float:
    own = torch.isin(data.test_y, torch.tensor(peer.classes))
    x, y = data.test_x[own], data.test_y[own]
    return accuracy(peer.net, x, peer.net.local_labels(y))


def exchange(
    peers: Sequence[PeerTrainer], neighbours: Mapping[int, frozenset[int]], recipe: Recipe, run: Run
) -> None:
    """Average structures between neighbours and shared layers over all; peers go on with the means."""
    held = {p: peer.net.structures() for p, peer in enumerate(peers)}
    shared = {p: peer.net.shared_state() for p, peer in enumerate(peers)}
    code = recipe.code
    coded = {p: {c: peers[p].tell(c, s, code) for c, s in own.items()} for p, own in held.items()}
    weights = {p: peer.seen for p, peer in enumerate(peers)} if recipe.weighted else None
    arrived = {p: {c: state for c, (state, _) in own.items()} for p, own in coded.items()}
    after = sync_structures(held, neighbours, weights, arrived)
    # Never coded: a sum that is rounded at each hop is no mean any more.
    if recipe.shared == "ring":
        means, sent = ring_all_reduce(list(shared.values()))
    else:
        coded_shared = {p: peers[p].tell(SHARED, state, code) for p, state in shared.items()}
        mixed = gossip(shared, neighbours, {p: state for p, (state, _) in coded_shared.items()})
        means = [mixed[p] for p in range(len(peers))]
        sent = [coded_shared[p][1] * len(neighbours[p]) for p in range(len(peers))]
    for p, peer in enumerate(peers):
        near = [set(peers[q].classes) & set(peer.classes) for q in neighbours[p]]
        run.sent[p] += sent[p] + sum(coded[p][c][1] for common in near for c in common)
        peer.put(means[p], after[p])


def _bytes(state: Mapping[str, Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in state.values())


Gathered = tuple[State, dict[int, State]]  # the shared layers, and the structure of every class


def gather(peers: Sequence[PeerTrainer], recipe: Recipe) -> Gathered:
    """The mean over all peers for the shared layers, and over all owners for each class."""
    held = {p: peer.net.structures() for p, peer in enumerate(peers)}
    weights = {p: peer.seen for p, peer in enumerate(peers)} if recipe.weighted else None
    return mean([peer.net.shared_state() for peer in peers]), harvest(held, weights)


def recomposed(
    net: DecoupledNet, gathered: Sequence[Gathered], data: Samples, recipe: Recipe
) -> DecoupledNet:
    """The whole network from the peers' tensors after the last round, or from the mean of several rounds."""
    shared = mean([one[0] for one in gathered])
    structures = {c: mean([one[1][c] for one in gathered]) for c in gathered[0][1]}
    whole = compose(net.blueprint, shared, structures)
    if data.public and recipe.calibrated:
        reestimate_norms(whole, data.public_x)
        calibrate(whole, data.public_x, data.public_y)
    return whole
