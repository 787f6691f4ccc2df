"""Decoupled training without barriers: nobody waits for a slow or absent peer.

    run, clock = train_async(net, data, sets, neighbours, recipe, step_s=[0.1, 0.1, 0.1, 1.0])
    clock.round_s(0)         # median seconds of the first peer's rounds

Time is simulated: a minibatch takes the seconds in `step_s`. A peer that has finished its round publishes
its tensors, averages them with the newest that its neighbours published, and goes on at once. Old tensors
count less: their weight is the samples of their round, halved for each of the reader's rounds since then.
"""

from __future__ import annotations

import heapq
import itertools
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import nn

from weft.data.classes import class_rows
from weft.graph.split.classes.exchange import mean, neighbour_mean
from weft.graph.split.classes.network import DecoupledNet, State
from weft.plans.peers import SHARED
from weft.reference.peers import (
    Code,
    Gathered,
    PeerTrainer,
    Recipe,
    Run,
    Samples,
    accuracy,
    gather,
    learning_rate,
    logits_of,
    recomposed,
)


@dataclass
class Clock:
    """When peers ended their rounds, in simulated seconds."""

    ends: list[list[float]] = field(default_factory=list)  # by peer

    def round_s(self, peer: int) -> float:
        """Median seconds of a peer's rounds."""
        times = [0.0, *self.ends[peer]]
        return statistics.median(b - a for a, b in itertools.pairwise(times))


@dataclass(frozen=True)
class Published:
    """What a peer last published for its neighbours."""

    structures: dict[int, State]
    shared: State
    seen: Mapping[int, float]
    samples: float
    at: float

    def told(self, peer: PeerTrainer, code: Code | None) -> Published:
        """The same as neighbours receive it: coded."""
        structures = {c: peer.tell(c, state, code)[0] for c, state in self.structures.items()}
        shared, _ = peer.tell(SHARED, self.shared, code)
        return replace(self, structures=structures, shared=shared)


def barrier_seconds(step_s: Sequence[float], steps: Sequence[int]) -> float:
    """Seconds of a round in which everybody waits for the slowest peer."""
    return max(s * n for s, n in zip(step_s, steps, strict=True))


def paced_steps(step_s: Sequence[float], steps: Sequence[int], limit: float = 2.0) -> list[int]:
    """Minibatches of each peer's round, so that no round takes more than `limit` times the usual one.

    The usual round is that of the median peer. A slow peer does fewer minibatches, at least one.
    """
    usual = statistics.median(s * n for s, n in zip(step_s, steps, strict=True))
    return [max(1, min(n, int(limit * usual / s))) for s, n in zip(step_s, steps, strict=True)]


def train_async(
    net: DecoupledNet,
    data: Samples,
    sets: Sequence[Sequence[int]],
    neighbours: Mapping[int, frozenset[int]],
    recipe: Recipe,
    step_s: Sequence[float],
    teacher: nn.Module | None = None,
    *,
    paced: bool = True,
) -> tuple[Run, Clock]:
    """Train until the median peer has done all its rounds; slow peers have then done fewer."""
    rows = class_rows(data.y, sets, recipe.deal, seed=recipe.seed)
    known = None if teacher is None else logits_of(teacher, data.x)
    peers = [
        PeerTrainer(net, held, own, data, recipe, recipe.seed * 100 + p, known)
        for p, (held, own) in enumerate(zip(sets, rows, strict=True))
    ]
    steps = [peer.steps(recipe) for peer in peers]
    if paced:
        steps = paced_steps(step_s, steps)
    lasts = [s * n for s, n in zip(step_s, steps, strict=True)]  # seconds of each peer's round
    end = statistics.median(lasts) * recipe.rounds
    clock = Clock([[] for _ in peers])
    board: dict[int, Published] = {}
    past: list[deque[Gathered]] = [deque(maxlen=recipe.tail) for _ in peers]
    queue = [(last, p) for p, last in enumerate(lasts)]
    heapq.heapify(queue)
    while queue and queue[0][0] <= end * (1 + 1e-9):
        now, p = heapq.heappop(queue)
        peer = peers[p]
        done = len(clock.ends[p])
        # The rate falls with time, not with a peer's rounds: a slow peer must not keep a high rate.
        peer.trainer.train(steps[p], learning_rate(recipe, round(now / end * (recipe.rounds - 1))))
        share = steps[p] * recipe.batch / max(peer.trainer.rows, 1)
        seen = {label: count * share for label, count in peer.seen.items()}
        own = Published(
            peer.net.structures(), peer.net.shared_state(), seen, steps[p] * recipe.batch, now
        )
        _mix(peer, own, [board[q] for q in sorted(neighbours[p]) if q in board], now, lasts[p])
        board[p] = own.told(peer, recipe.code)
        past[p].append((peer.net.shared_state(), peer.net.structures()))
        clock.ends[p].append(now)
        if done + 1 < recipe.rounds:
            heapq.heappush(queue, (now + lasts[p], p))
    for peer, ends in zip(peers, past, strict=True):
        _settle(peer, ends)
    whole = recomposed(net, [gather(peers, recipe)], data, recipe)
    run = Run(whole, [accuracy(whole, data.test_x, data.test_y)])
    run.samples = [peer.trainer.samples for peer in peers]
    return run, clock


def _settle(peer: PeerTrainer, ends: Sequence[Gathered]) -> None:
    """Set the peer's tensors to the mean over its last rounds, if it did any."""
    if ends:
        labels = peer.classes
        peer.put(
            mean([shared for shared, _ in ends]),
            {c: mean([structures[c] for _, structures in ends]) for c in labels},
        )


def _mix(
    peer: PeerTrainer, own: Published, near: Sequence[Published], now: float, round_s: float
) -> None:
    """Average the peer's tensors with the newest of its neighbours."""
    fade = [0.5 ** ((now - other.at) / round_s) for other in near]
    structures = neighbour_mean(
        own.structures,
        [other.structures for other in near],
        own.seen,
        [{c: n * f for c, n in other.seen.items()} for other, f in zip(near, fade, strict=True)],
    )
    weights = [own.samples, *(o.samples * f for o, f in zip(near, fade, strict=True))]
    peer.put(mean([own.shared, *(other.shared for other in near)], weights), structures)
