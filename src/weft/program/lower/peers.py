"""From a plan of peers to a program: every peer trains its own network, and each round ends with an exchange.

    p1 | load  F  loss  B  update | ... k minibatches ... | exchange

The exchange of one round, a peer with class 3 and one neighbour that has it, shared layers on a ring
of three:

    share 3; send it; recv the neighbour's; blend 3            mean over those who have the class
    share the rest as a row; send piece; recv piece; add       twice n-1 short messages
    ...; blend the rest                                        the row's sum over n

All groups are shared before any is blended, so all means are of the weights before the exchange.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from weft.codecs.registry import coded_bytes
from weft.errors import InputError
from weft.plans.peers import SHARED, Peer, Peers
from weft.plans.plan import Plan
from weft.program.instructions import (
    Backward,
    Blend,
    Extract,
    Forward,
    Instruction,
    Keep,
    Load,
    Loss,
    Recv,
    Send,
    Share,
    Stitch,
    Tensor,
    Update,
)
from weft.program.lower.schedule import micro_sizes
from weft.program.program import Program

NUMBER = 4  # bytes
ROW = "row"  # the one value of a tensor that is a row of numbers


def lower_peers(plan: Plan) -> Program:
    """The program of a plan whose devices each have their own network."""
    assert plan.peers is not None
    plan.peers.check()
    missing = [name for name in plan.peers.devices if name not in plan.profile.devices]
    if missing:
        raise InputError(f"profile: devices has no {missing[0]!r}, which is a peer of the plan")
    if plan.mode != "train" or plan.source not in plan.peers.devices:
        raise InputError(
            f"plan: mode = {plan.mode}, source = {plan.source}; peers train, and one of them is the source"
        )
    return Program(
        plan=plan,
        code={d: tuple(PeerWriter(plan, plan.peers, d).code()) for d in plan.peers.devices},
    )


def chunks(numbers: int, count: int) -> list[tuple[int, int]]:
    """The begin and end of `count` pieces of a row. The first pieces are longer by one if needed.

    >>> chunks(7, 3)
    [(0, 3), (3, 5), (5, 7)]
    """
    sizes = [numbers // count + (n < numbers % count) for n in range(count)]
    ends = list(accumulate(sizes))
    return [(end - size, end) for end, size in zip(ends, sizes, strict=True)]


class PeerWriter:
    """Writes the instructions of one peer."""

    def __init__(self, plan: Plan, peers: Peers, device: str) -> None:
        self.plan, self.peers, self.device = plan, peers, device
        self.names = peers.devices
        self.rank = self.names.index(device)
        self.me = peers.peer(device)
        self.near = [peers.peer(name) for name in peers.near(device)]
        self.every = peers.every

    def code(self) -> Iterator[Instruction]:
        yield from self.minibatch()
        if len(self.names) < 2:
            return
        first, then, last = self.structures()
        yield from first
        if self.peers.shared == "gossip":
            before, between, after = self.gossip()
            yield from (*before, *then, *between, *last, *after)
            return
        yield Share(self.row(), SHARED, row=True, scale=self.weight, every=self.every)
        yield from then
        yield from last  # no weight belongs to both a structure and the shared layers
        yield from self.ring() if self.peers.shared == "ring" else self.hub()

    def minibatch(self) -> Iterator[Instruction]:
        layers = (0, len(self.plan.profile.layers) - 1)
        sizes = micro_sizes(self.plan.batch, self.plan.micro_batches)
        for micro, size in enumerate(sizes):
            begin = sum(sizes[:micro])
            yield Load(micro, (begin, begin + size))
            yield Forward(layers, micro, size)
            yield Loss(micro, size)
            yield Backward(layers, micro, size)
        yield Update(layers)

    # --- structures -----------------------------------------------------------------------------

    def structures(self) -> tuple[list[Instruction], list[Instruction], list[Instruction]]:
        """(shares and sends, receives, blends) of classes that a neighbour also has.

        A class that no other peer has is sent to all neighbours, which keep it.
        """
        first: list[Instruction] = []
        then: list[Instruction] = []
        last: list[Instruction] = []
        sole = set(self.peers.sole(self.device))
        for label in self.me.classes if self.peers.structures == "rounds" else ():
            if not self.me.has(label):
                continue
            alone = label in sole
            with_it = [peer for peer in self.near if peer.has(label)]
            tell = self.near if alone else with_it
            if tell:
                first.append(self.shared(label))
                first += [self.send(self.share(label), peer.device, label) for peer in tell]
            if with_it:
                then += [self.recv(self.share(label, peer), peer.device) for peer in with_it]
                last.append(self.mean(label, with_it))
        for peer in self.near if self.peers.structures == "rounds" else ():
            for label in self.peers.sole(peer.device):
                if peer.has(label):
                    then.append(self.recv(self.share(label, peer), peer.device))
                    last.append(Keep(self.share(label, peer), label, every=self.every))
        return first, then, last

    def mean(self, label: int, others: Sequence[Peer]) -> Blend:
        return Blend(
            label,
            self.me.of(label).weight,
            tuple(self.share(label, peer) for peer in others),
            tuple(peer.of(label).weight for peer in others),
            every=self.every,
        )

    # --- shared layers --------------------------------------------------------------------------

    def gossip(self) -> tuple[list[Instruction], list[Instruction], list[Instruction]]:
        """Mixing with neighbours. A neighbour's weight is 1 / (1 + the larger number of neighbours of the
        two)."""
        shared = self.share(SHARED)
        sends = [self.send(shared, peer.device, SHARED) for peer in self.near]
        recvs = [self.recv(self.share(SHARED, peer), peer.device) for peer in self.near]
        counts = [len(self.peers.near(peer.device)) for peer in self.near]
        weights = tuple(1 / (1 + max(len(self.near), count)) for count in counts)
        parts = tuple(self.share(SHARED, peer) for peer in self.near)
        blend = Blend(SHARED, 1 - sum(weights), parts, weights, total=1.0, every=self.every)
        return [self.shared(SHARED), *sends], [*recvs], [blend]

    def ring(self) -> Iterator[Instruction]:
        """Piece c starts at peer c. Every peer adds its own numbers, and then the sum is passed to all.

        half 1   peer r sends piece r-s, gets r-1-s and adds its own     s = 0 .. n-2
        half 2   peer r sends the sum of r+1-s, gets that of r-s
        """
        n, rank = len(self.names), self.rank
        after, before = self.names[(rank + 1) % n], self.names[rank - 1]
        places = chunks(self.me.of(SHARED).numbers, n)
        leaving = Tensor("row", rank, rank)
        yield Stitch(leaving, (self.own(rank),), every=self.every)
        for s in range(n - 1):
            piece = (rank - 1 - s) % n
            maker = (rank - 1) % n
            received = Tensor("row" if s == 0 else "sum", piece, maker)
            yield self.send_row(leaving, after, places[leaving.at])
            yield self.recv(received, before)
            size = places[piece][1] - places[piece][0]
            leaving = Tensor("sum", piece, rank)
            both = (self.own(piece), Extract(received, ROW, 0, 0, size))
            yield Stitch(leaving, both, add=True, every=self.every)
        sums = {leaving.at: leaving}
        for s in range(n - 1):
            piece = (rank - s) % n
            received = Tensor("sum", piece, (piece - 1) % n)  # the peer that added its numbers last
            yield self.send_row(leaving, after, places[leaving.at])
            yield self.recv(received, before)
            sums[piece] = leaving = received
        pieces = tuple(
            Extract(sums[c], ROW, 0, 0, last - first) for c, (first, last) in enumerate(places)
        )
        total = Tensor("sum", n, rank)
        yield Stitch(total, pieces, every=self.every)
        yield self.blend_sum(total)

    def hub(self) -> Iterator[Instruction]:
        """The first peer adds the rows of all peers and sends them the sum."""
        hub, numbers = self.names[0], self.me.of(SHARED).numbers
        total = Tensor("sum", len(self.names), 0)
        if self.device != hub:
            yield self.send_row(self.row(), hub, (0, numbers))
            yield self.recv(total, hub)
            yield self.blend_sum(total)
            return
        rows = [self.row(rank) for rank in range(len(self.names))]
        for row, name in zip(rows[1:], self.names[1:], strict=True):
            yield self.recv(row, name)
        pieces = tuple(Extract(row, ROW, 0, 0, numbers) for row in rows)
        yield Stitch(total, pieces, add=True, every=self.every)
        for name in self.names[1:]:
            yield self.send_row(total, name, (0, numbers))
        yield self.blend_sum(total)

    def blend_sum(self, total: Tensor) -> Blend:
        weights = sum(peer.of(SHARED).weight for peer in self.peers.peers)
        return Blend(SHARED, 0.0, (total,), (1.0,), total=weights, every=self.every)

    # --- words ----------------------------------------------------------------------------------

    @property
    def weight(self) -> float:
        return self.me.of(SHARED).weight

    def shared(self, group: int) -> Share:
        return Share(self.share(group), group, codec=self.plan.codec, every=self.every)

    def share(self, group: int, peer: Peer | None = None) -> Tensor:
        rank = self.rank if peer is None else self.names.index(peer.device)
        return Tensor("group", group, rank)

    def row(self, rank: int | None = None) -> Tensor:
        """All of a peer's shared numbers as one row. Its pieces have the numbers before it."""
        return Tensor("row", len(self.names), self.rank if rank is None else rank)

    def own(self, piece: int) -> Extract:
        first, last = chunks(self.me.of(SHARED).numbers, len(self.names))[piece]
        return Extract(self.row(), ROW, 0, first, last)

    def send(self, tensor: Tensor, dest: str, group: int) -> Send:
        size = coded_bytes(self.me.of(group).numbers * NUMBER, self.plan.codec)
        return Send(tensor, dest, size, self.plan.codec, late=self.peers.late, every=self.every)

    def send_row(self, tensor: Tensor, dest: str, place: tuple[int, int]) -> Send:
        """Sends a row without a codec: a sum that is rounded at each hop would not be the mean of all
        peers."""
        return Send(tensor, dest, (place[1] - place[0]) * NUMBER, every=self.every)

    def recv(self, tensor: Tensor, source: str) -> Recv:
        return Recv(tensor, source, late=self.peers.late, every=self.every)
