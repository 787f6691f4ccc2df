"""The methods that are compared, each as a small record, and how one is run.

run_method(METHODS["4N_5Cls"], net, data, Recipe(), last=3).run.accuracy
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from weft.strategies.decoupled.costs import TRAINING, ClassCosts, class_costs, convolutions
from weft.strategies.decoupled.decide import PLUS_OWNERS
from weft.strategies.decoupled.settings import PLUS_FILTERS, PLUS_TAIL
from weft.strategies.decoupled.topology import (
    FOUR_OF_FIVE,
    ClassSets,
    by_speed,
    overlapping,
    topology,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

    from weft.graph.split.classes.network import DecoupledNet
    from weft.reference.peers import Recipe, Run, Samples

PEERS = 4
SHARE = 0.1  # the share of the filters that a class keeps, in the paper


@dataclass(frozen=True)
class Method:
    """What is trained, and by whom. If `sets` is empty, `overlap` gives the class sets."""

    name: str
    label: str
    kind: Literal["dense", "central", "peers", "fedavg"]
    sets: ClassSets = ()
    overlap: int = 0
    topology: str = "ring"
    filters: tuple[int, ...] = ()  # percent of each decoupled layer's filters; empty: 10
    recipe: tuple[tuple[str, Any], ...] = ()  # fields of Recipe that this method changes
    rounds: float = 1.0  # exchanges for each round of the others, with the same samples in all
    equal_steps: bool = False  # as many minibatches a round as centralized training
    watched: bool = False  # tested after every round, for a curve
    copies: float = 0.0  # owners of a class, if sets follow speed as in decoupled+
    eight_bits: bool = False  # exchanges are coded in 8 bits
    slow: float = 0.0  # the last peer takes this many times as long, and nobody waits for it

    def class_sets(self, classes: int) -> ClassSets:
        """The classes of each peer."""
        if self.sets and max(label for held in self.sets for label in held) < classes == 10:
            return self.sets
        if self.copies:
            return by_speed(classes, [1.0] * PEERS, copies=self.copies)
        return overlapping(classes, self.overlap or classes // 4)


def _four(name: str, label: str, **fields: Any) -> Method:
    return Method(name, label, "peers", FOUR_OF_FIVE, **fields)


# Nearly all classes at every peer, but few passes: this is the best use of a third of the computation.
# The mean of four peers is less noisy than one network, so the learning rate may be higher.
_PLUS = Method(
    "plus", "decoupled+", "peers", copies=PLUS_OWNERS, filters=(PLUS_FILTERS[0], *[PLUS_FILTERS[1]] * 2),
    rounds=2.0, eight_bits=True,
    recipe=(
        ("epochs", 0.575), ("lr", 0.05), ("weighted", True), ("shared", "gossip"), ("tail", PLUS_TAIL),
    ),
)  # fmt: skip
_ALL = (
    Method("dense", "centralized, dense", "dense", FOUR_OF_FIVE, watched=True),
    Method(
        "dense-third",
        "centralized, dense, a third of the passes",
        "dense",
        FOUR_OF_FIVE,
        recipe=(("epochs", 1 / 3),),
    ),
    Method("central", "centralized, decoupled", "central", watched=True),
    _four("equal-steps", "4N_5Cls ring, equal steps", equal_steps=True),
    _four("4N_5Cls", "4N_5Cls ring, one epoch a round", watched=True),
    _four("split", "4N_5Cls ring, data split", recipe=(("deal", "split"),)),
    Method("overlap-1", "overlap 1 (10N_2Cls)", "peers", overlap=1),
    Method("overlap-2", "overlap 2", "peers", overlap=2),
    Method("overlap-3", "overlap 3", "peers", overlap=3),
    Method("overlap-6", "overlap 6", "peers", overlap=6),
    Method("overlap-10", "overlap 10", "peers", overlap=10),
    Method("overlap-25", "overlap 25", "peers", overlap=25),
    _four("mesh", "4N_5Cls mesh", topology="mesh"),
    _four("line", "4N_5Cls line", topology="0-1,1-2,2-3"),
    _four("gossip", "4N_5Cls ring, shared layers by gossip", recipe=(("shared", "gossip"),)),
    _four("no-sync", "4N_5Cls, no exchange until the end", recipe=(("sync", "end"),)),
    _PLUS,
    # What decoupled+ chooses where only computing takes time: classes, filters and minibatches of decoupled.
    replace(
        _PLUS,
        name="plus-time",
        label="decoupled+, a minibatch no longer than 4N_5Cls's",
        sets=FOUR_OF_FIVE,
        filters=(),
        recipe=(*_PLUS.recipe[1:], ("epochs", 1.0)),
    ),
    replace(_PLUS, name="plus-slow", label="decoupled+, one peer 10x slower", slow=10.0),
    Method("fedavg", "FedAvg on the sets of 4N_5Cls", "fedavg", FOUR_OF_FIVE, watched=True),
)
METHODS = {method.name: method for method in _ALL}


def eight_bits(tensor: Tensor) -> tuple[Tensor, int]:
    """A tensor as it arrives after coding in 8 bits, and its bytes on the link."""
    from weft.codecs.tensors import rounded

    return rounded(tensor, "int8"), tensor.numel()


@dataclass(frozen=True)
class Result:
    """A training run, and how much each peer computed."""

    run: Run
    # By peer: multiply-adds of its forward passes in training, a third of all work.
    work: list[float]
    round_s: float = 0.0  # a usual peer's round divided by its own computing time


def run_method(
    method: Method, net: nn.Module, data: Samples, recipe: Recipe, last: int, share: float = SHARE
) -> Result:
    """Train with one of the compared methods."""
    from weft.graph.capture.module import capture
    from weft.reference.peers_baselines import train_fedavg, train_whole

    recipe = replace(recipe, watch=method.watched)
    if method.kind == "dense":
        recipe = replace(recipe, **dict(method.recipe))
    graph = capture(net, data.x[:2])
    classes = graph.values[graph.output].shape[-1]
    costs = class_costs(convolutions(graph), last, classes)
    if method.kind == "dense":
        run = train_whole(net, data, recipe)
        sets = method.class_sets(classes)
        run.local = [[accuracy_among(run.net, held, data) for held in sets]]
        return Result(run, [run.samples[0] * float(costs.dense_macs())])
    if method.kind == "fedavg":
        run = train_fedavg(net, data, method.class_sets(classes), recipe)
        return Result(run, [count * float(costs.dense_macs()) for count in run.samples])
    parts = decoupled_net(method, net, data, last, share)
    if method.kind == "central":
        run = train_whole(parts, data, recipe)
        return Result(run, [run.samples[0] * peer_macs(costs, parts, parts.classes)])
    return run_peers(method, net, parts, data, costs, recipe)


def accuracy_among(net: nn.Module, held: Sequence[int], data: Samples) -> float:
    """The share of right answers of a whole network on the samples of some classes, among these classes."""
    import torch

    from weft.reference.peers import logits_of

    of_these = torch.isin(data.test_y, torch.tensor(held))
    logits = logits_of(net, data.test_x[of_these])[:, list(held)]
    return float((torch.tensor(held)[logits.argmax(1)] == data.test_y[of_these]).float().mean())


def run_peers(
    method: Method, net: nn.Module, parts: DecoupledNet, data: Samples, costs: ClassCosts,
    recipe: Recipe,
) -> Result:  # fmt: skip
    """Train a decoupled network at peers, in one process."""
    from weft.reference.peers import train_peers
    from weft.reference.peers_async import train_async

    rounds = recipe.rounds
    recipe = replace(recipe, **dict(method.recipe))
    if method.eight_bits:
        recipe = replace(recipe, code=eight_bits)
    if method.equal_steps:
        recipe = replace(recipe, steps=max(1, round(len(data.x) / recipe.batch)))
    if method.rounds != 1:
        count = round(rounds * method.rounds)
        recipe = replace(recipe, rounds=count, epochs=recipe.epochs * rounds / count)
    sets = method.class_sets(costs.classes)
    near = topology(method.topology, len(sets))
    macs = [peer_macs(costs, parts, held) for held in sets]
    round_s = 1.0
    if method.slow:
        step_s = [m * (method.slow if p == len(sets) - 1 else 1.0) for p, m in enumerate(macs)]
        run, clock = train_async(parts, data, sets, near, recipe, step_s, net)
        alone = [m * count for m, count in zip(macs, run.samples, strict=True)]
        round_s = clock.round_s(0) * len(clock.ends[0]) * recipe.batch / alone[0]
    else:
        run = train_peers(parts, data, sets, near, recipe, net)
    end = closing_macs(costs, parts, data, recipe)
    work = [m * count + end for m, count in zip(macs, run.samples, strict=True)]
    return Result(run, work, round_s)


def closing_macs(costs: ClassCosts, net: DecoupledNet, data: Samples, recipe: Recipe) -> float:
    """The work of putting the network together: the public samples forward for new statistics, and once
    more for calibration. The unit is that of `work` (a forward pass that a backward pass follows)."""
    passes = 2 * data.public if recipe.calibrated else 0
    return passes * peer_macs(costs, net, net.classes) / TRAINING


def decoupled_net(
    method: Method, net: nn.Module, data: Samples, last: int, share: float = SHARE
) -> DecoupledNet:
    """The pre-trained network in parts, with new batch-norm statistics."""
    from weft.graph.split.classes.calibrate import reestimate_norms
    from weft.graph.split.classes.decouple import by_layer, captured, decouple, score_filters

    dense = captured(net, data.x[:2])
    scores = score_filters(dense, data.public_x, data.public_y, last=last)
    shares = [percent / 100 for percent in method.filters] or [share] * last
    parts = decouple(dense, scores, last=last, keep=by_layer(scores, shares))
    reestimate_norms(parts, data.public_x)
    return parts


def peer_macs(costs: ClassCosts, net: DecoupledNet, held: Sequence[int]) -> float:
    """Multiply-adds of one forward pass of a peer's network."""
    weights = [mixer.weight for mixer in net.blueprint.reading.mixers[:-1]]
    total = float(costs.shared_macs())
    for label in held:
        state = net.structure(label)
        total += costs.structure_macs([state[name].shape[0] for name in weights])
    return total
