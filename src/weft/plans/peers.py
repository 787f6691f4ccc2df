"""Peers that each train their own network and exchange the weights that they have in common. Plain data.

    plan.peers.every             # minibatches in a round; the exchange is at its end
    plan.peers.near("p1")        # the neighbours of a peer, by name

Weights are exchanged in *groups*. Each class is a group (its structure), and the weights that all peers share
are one more group. A plan knows how many numbers each peer's groups have, so it can be priced without the
network.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Literal

import msgspec
from msgspec import Struct

from weft.errors import InputError

SHARED = -1  # the group that every peer has
SharedBy = Literal["ring", "gossip", "hub"]  # how the shared weights are averaged
# Whether every owner of a class gets all its samples or a part of them.
Deal = Literal["replicate", "split"]


class Held(Struct, frozen=True, array_like=True):
    """One group at one peer."""

    group: int  # a class, or SHARED
    numbers: int  # how many numbers the group has
    weight: float = 1.0  # in means with other peers, for example the number of samples


class Peer(Struct, frozen=True, dict=True):
    """One device with a network of its own: its classes, and what it exchanges with whom."""

    device: str
    classes: tuple[int, ...]
    held: tuple[Held, ...]
    weights_bytes: int = 0
    saved_bytes: int = 0  # activations kept for the backward pass, per sample

    @cached_property
    def _by_group(self) -> dict[int, Held]:
        return {held.group: held for held in self.held}

    def has(self, group: int) -> bool:
        return group in self._by_group

    def of(self, group: int) -> Held:
        return self._by_group[group]


class Peers(Struct, frozen=True, dict=True):
    """Who exchanges what with whom, and how often."""

    peers: tuple[Peer, ...]
    edges: tuple[tuple[str, str], ...]  # neighbours, each pair once
    every: int = 1  # minibatches in a round
    shared: SharedBy = "ring"
    # Newest: use the messages that have arrived, never wait.
    late: Literal["wait", "newest"] = "wait"
    structures: Literal["rounds", "end"] = "rounds"  # end: only the final network has the means

    tail: int = 1  # the final network is the mean over so many last rounds
    # How the peers' networks are made from the user's network: it is trained for a while on public samples,
    # then divided by class. If not structured, every peer gets the whole network.
    structured: bool = True
    pretrain: int = 100  # minibatches
    public: int = 500  # samples, the first of the set
    last: int = 1  # convolutions that are divided, counted from the end
    filters_percent: tuple[int, ...] = (10,)  # kept for a class, for each of these convolutions
    deal: Deal = "replicate"
    by_samples: bool = False  # weight in means by the number of samples; else all are equal

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(peer.device for peer in self.peers)

    def peer(self, device: str) -> Peer:
        return next(peer for peer in self.peers if peer.device == device)

    @cached_property
    def _owners(self) -> dict[int, tuple[str, ...]]:
        """By class, who has it: a network may have a thousand classes."""
        owners: dict[int, list[str]] = {}
        for peer in self.peers:
            for label in dict.fromkeys(peer.classes):
                owners.setdefault(label, []).append(peer.device)
        return {label: tuple(names) for label, names in owners.items()}

    def near(self, device: str) -> tuple[str, ...]:
        """A peer's neighbours, in the order of the plan."""
        neighbours = {b for a, b in self.edges if a == device} | {
            a for a, b in self.edges if b == device
        }
        return tuple(name for name in self.devices if name in neighbours)

    def owners(self, label: int) -> tuple[str, ...]:
        return self._owners.get(label, ())

    def sole(self, device: str) -> tuple[int, ...]:
        """Classes that no other peer has."""
        return tuple(c for c in self.peer(device).classes if self.owners(c) == (device,))

    def without(self, absent: frozenset[str]) -> Peers:
        """The peers without the absent ones, with new links between peers that the absent ones had
        connected."""
        left = tuple(peer for peer in self.peers if peer.device not in absent)
        edges = [pair for pair in self.edges if not absent & set(pair)]
        names = [peer.device for peer in left]
        number = {name: n for n, name in enumerate(names)}
        for name in names[1:]:
            near: dict[int, set[int]] = {n: set() for n in number.values()}
            for a, b in edges:
                near[number[a]].add(number[b])
                near[number[b]].add(number[a])
            if number[name] not in reached(near, 0):
                edges.append((names[number[name] - 1], name))
        return msgspec.structs.replace(self, peers=left, edges=tuple(edges))

    def check(self) -> None:
        """Raises InputError if this cannot be carried out."""
        names = self.devices
        if not names or len(set(names)) != len(names):
            raise InputError(f"plan: peers {list(names)}; at least one is needed, each named once")
        if self.every < 1:
            raise InputError(
                f"plan: every = {self.every} minibatches in a round; at least 1 is allowed"
            )
        if self.tail < 1:
            raise InputError(f"plan: tail = {self.tail} rounds; at least 1 is allowed")
        for pair in self.edges:
            if pair[0] == pair[1] or not set(pair) <= set(names):
                raise InputError(
                    f"plan: link {'-'.join(pair)} does not join two of {', '.join(names)}"
                )
        sizes: dict[int, tuple[str, int]] = {}
        for peer in self.peers:
            for held in peer.held:
                first, numbers = sizes.setdefault(held.group, (peer.device, held.numbers))
                if numbers != held.numbers:
                    raise InputError(
                        f"plan: group {held.group} has {numbers} numbers at {first} and "
                        f"{held.numbers} at {peer.device}; they must be the same to be averaged"
                    )
        if self.late == "newest" and self.shared != "gossip":
            raise InputError(
                f"plan: shared = {self.shared} needs all peers at the same time, and peers with "
                "late = newest never wait; use shared = gossip"
            )


def reached(neighbours: Mapping[int, Collection[int]], start: int) -> set[int]:
    """All peers that `start` reaches over any number of links."""
    seen, todo = {start}, [start]
    while todo:
        new = set(neighbours[todo.pop()]) - seen
        seen |= new
        todo += new
    return seen
