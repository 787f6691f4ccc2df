"""The sizes that a plan may have. A plan file may come from anybody: it is checked before any work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.errors import InputError
from weft.plans.peers import SHARED

if TYPE_CHECKING:
    from weft.plans.plan import Plan

MAX_FILE = 64 << 20  # bytes of a plan file
MAX_BATCH = 1 << 24
MAX_PARTS = 10_000  # shards, rounds, layers, messages of a kind
MAX_WORK = 100_000  # pieces of a minibatch times shards: the program is longer by about ten
MAX_AHEAD = 1024
MAX_PACKETS = 256  # that one message may be sent as
MAX_TURNS = 100_000


def check_bounds(plan: Plan) -> None:
    """InputError for a plan whose program would have no end."""
    _between("batch", plan.batch, 1, MAX_BATCH)
    _between("micro_batches", plan.micro_batches, 1, plan.batch)
    for name in ("in_flight", "ahead"):
        _between(name, getattr(plan, name), 1, max(MAX_AHEAD, plan.micro_batches))
    _between("stale", plan.stale, 0, MAX_AHEAD)
    for name in ("shards", "standby", "rounds", "owners", "norms"):
        _between(f"number of {name}", len(getattr(plan, name)), 0, MAX_PARTS)
    _between("number of layers", len(plan.profile.layers), 1, MAX_PARTS)
    last = len(plan.profile.layers) - 1
    for shard in (*plan.shards, *plan.standby):
        _between(f"last layer of {shard.device[:64]}", shard.layers[1], 0, last)
        _between(f"first layer of {shard.device[:64]}", shard.layers[0], 0, shard.layers[1])
    _between("number of turns", sum(len(r.turns) for r in plan.rounds), 0, MAX_TURNS)
    work = plan.micro_batches * max(1, len(plan.shards) + len(plan.standby) + len(plan.rounds))
    _between("micro_batches times its shards", work, 1, MAX_WORK)
    if plan.swarm is not None:
        _between("swarm.every", plan.swarm.every, 1, MAX_BATCH)
        _between("number of swarm.messages", len(plan.swarm.messages), 0, MAX_TURNS)
        for message in plan.swarm.messages:
            _between("swarm: direct packets", message.direct, 0, MAX_PACKETS)
            _between("swarm: relayed packets", message.relayed, 0, MAX_PACKETS)
    if plan.peers is not None:
        for name, most in (("every", MAX_WORK), ("tail", MAX_PARTS), ("last", MAX_PARTS)):
            _between(f"peers.{name}", getattr(plan.peers, name), 1, most)
        for name in ("pretrain", "public"):
            _between(f"peers.{name}", getattr(plan.peers, name), 0, MAX_BATCH)
        _between("number of peers", len(plan.peers.peers), 1, MAX_PARTS)
        for peer in plan.peers.peers:
            if not peer.has(SHARED):
                raise InputError(
                    f"plan: the peer {peer.device[:64]} lacks the group that all share"
                )


def _between(what: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InputError(f"plan: its {what} is {value}; {least} to {most} are allowed")
