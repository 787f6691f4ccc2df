"""What peers do with each other's tensors after a round: pure functions on dictionaries of tensors.

    held = sync_structures(held, neighbours)        # each class: mean of self and owning neighbours
    whole = harvest(held)                           # at the end: mean over all owners
    shared, sent = ring_all_reduce(shared)          # the exact mean, in 2(n-1) short messages a peer
    shared = gossip(shared, neighbours)             # or one step of mixing with neighbours

A node does the same with messages. `neighbour_mean` and `RingPeer` say for one peer what it sends and what it
does with the messages it gets. The functions over all peers only call these two.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from weft.errors import InputError
from weft.graph.split.classes.network import State

Peer = TypeVar("Peer", int, str)


def mean(states: Sequence[Mapping[str, Tensor]], weights: Sequence[float] | None = None) -> State:
    """The mean of tensors of equal names. It is weighted if weights are given (for example numbers of
    samples)."""
    shares = [1.0] * len(states) if weights is None else list(weights)
    total = sum(shares)
    if len(shares) != len(states) or not states or total <= 0 or min(shares) < 0:
        raise InputError(
            f"weights {shares} for {len(states)} peers: one number from 0 up is needed for each, "
            "not all of them 0"
        )
    if weights is None:
        return {key: torch.stack([s[key] for s in states]).mean(0) for key in states[0]}
    return {
        key: sum((s[key] * (w / total) for s, w in zip(states, shares, strict=True)),
                 torch.zeros_like(states[0][key]))
        for key in states[0]
    }  # fmt: skip


def neighbour_mean(
    own: Mapping[int, State],
    near: Iterable[Mapping[int, State]],
    own_weights: Mapping[int, float] | None = None,
    near_weights: Iterable[Mapping[int, float]] = (),
) -> dict[int, State]:
    """One peer's structures after a round: for each class the mean of its own and its neighbours' structures.

    Weights are by class. If a neighbour has seen no sample of a class, its structure of that class does not
    count.
    """
    others = list(near)
    if own_weights is None:
        return {c: mean([own[c], *(o[c] for o in others if c in o)]) for c in own}
    pairs = list(zip(others, near_weights, strict=True))
    result = {}
    for c, state in own.items():
        states = [state, *(o[c] for o, _ in pairs if c in o)]
        weights = [own_weights[c], *(w[c] for o, w in pairs if c in o)]
        result[c] = mean(states, weights) if sum(weights) > 0 else dict(state)
    return result


def sync_structures(
    held: Mapping[Peer, Mapping[int, State]],
    neighbours: Mapping[Peer, Collection[Peer]],
    weights: Mapping[Peer, Mapping[int, float]] | None = None,
    arrived: Mapping[Peer, Mapping[int, State]] | None = None,
) -> dict[Peer, dict[int, State]]:
    """All peers' structures after a round, computed from the structures before it.

    `arrived`: what neighbours receive, if links change the values (for example by coding them in 8 bits).
    """
    received = held if arrived is None else arrived
    return {
        peer: neighbour_mean(
            structures,
            [received[q] for q in neighbours[peer]],
            None if weights is None else weights[peer],
            () if weights is None else [weights[q] for q in neighbours[peer]],
        )
        for peer, structures in held.items()
    }


def harvest(
    held: Mapping[Peer, Mapping[int, State]],
    weights: Mapping[Peer, Mapping[int, float]] | None = None,
) -> dict[int, State]:
    """Each class's structure for the whole network: the mean over all its owners."""
    whole = {}
    for label in sorted({label for structures in held.values() for label in structures}):
        holders = [peer for peer, structures in held.items() if label in structures]
        shares = None if weights is None else [weights[peer][label] for peer in holders]
        if shares is not None and sum(shares) <= 0:
            shares = None
        whole[label] = mean([held[peer][label] for peer in holders], shares)
    return whole


def gossip(
    states: Mapping[Peer, State],
    neighbours: Mapping[Peer, Collection[Peer]],
    arrived: Mapping[Peer, State] | None = None,
) -> dict[Peer, State]:
    """One step of mixing. It keeps the mean over all peers and, when repeated, makes all peers equal.

    A neighbour counts 1 / (1 + the larger number of neighbours of the two): on a ring or mesh that is
    the plain mean of a peer and its neighbours. `arrived`: what neighbours receive, if links change the
    values.
    """
    received: Mapping[Peer, State] = states if arrived is None else arrived
    mixed: dict[Peer, State] = {}
    for peer, state in states.items():
        near: list[Peer] = list(neighbours[peer])
        weights: list[float] = [1.0 / (1 + max(len(near), len(neighbours[q]))) for q in near]
        mixed[peer] = mean([state, *(received[q] for q in near)], [1 - sum(weights), *weights])
    return mixed


def flat(state: Mapping[str, Tensor]) -> Tensor:
    """All tensors as one row of numbers, in the order of their names."""
    return torch.cat([state[key].reshape(-1) for key in sorted(state)])


def unflat(row: Tensor, like: Mapping[str, Tensor]) -> State:
    """A row of numbers as tensors again, of the names and shapes of `like`."""
    sizes = [like[key].numel() for key in sorted(like)]
    pieces = dict(zip(sorted(like), torch.split(row, sizes), strict=True))
    return {key: pieces[key].view(like[key].shape).clone() for key in like}


class RingPeer:
    """One peer of a ring all-reduce: in each step it sends a piece to the next and gets one.

        for step in range(peer.steps):
            send(peer.outgoing(step)); peer.incoming(step, received())

    n-1 steps add the pieces up: peer r ends with the whole sum of piece r+1. n-1 more steps pass the sums
    round. With n peers each sends 2(n-1) of n pieces: 2(n-1)/n of the tensors' bytes.
    """

    def __init__(self, rank: int, peers: int, state: Mapping[str, Tensor]) -> None:
        self.rank, self.peers = rank, peers
        self.like = state
        row = flat(state)
        self.pieces = [piece.clone() for piece in row.tensor_split(peers)]

    @property
    def steps(self) -> int:
        return 2 * (self.peers - 1)

    def outgoing(self, step: int) -> Tensor:
        return self.pieces[self._piece(step)]

    def incoming(self, step: int, piece: Tensor) -> None:
        """Uses a piece from the peer before: it is added in the first half of the steps, and replaces ours in
        the second."""
        at = self._piece(step, before=1)
        if piece.shape != self.pieces[at].shape:
            raise InputError(
                f"ring step {step}: a piece of {piece.numel()} numbers came from the peer before "
                f"{self.rank}, {self.pieces[at].numel()} were expected: are all peers' layers the same?"
            )
        self.pieces[at] = self.pieces[at] + piece if step < self.peers - 1 else piece

    def _piece(self, step: int, before: int = 0) -> int:
        ahead = 0 if step < self.peers - 1 else 1
        return (self.rank - before + ahead - step % max(self.peers - 1, 1)) % self.peers

    def result(self) -> State:
        """The mean over all peers, after all steps. It is bitwise equal at all peers."""
        return unflat(torch.cat(self.pieces) / self.peers, self.like)


def ring_all_reduce(states: Sequence[Mapping[str, Tensor]]) -> tuple[list[State], list[int]]:
    """(the mean over all peers at every peer, bytes that each peer has sent)."""
    peers = [RingPeer(rank, len(states), state) for rank, state in enumerate(states)]
    sent = [0] * len(peers)
    for step in range(peers[0].steps):
        pieces = [peer.outgoing(step) for peer in peers]
        for peer in peers:
            peer.incoming(step, pieces[peer.rank - 1])
            sent[peer.rank] += pieces[peer.rank].numel() * pieces[peer.rank].element_size()
    return [peer.result() for peer in peers], sent
