"""A device that stands by: it holds a copy of another's layers and makes the same updates.

    edge1  recv a; F B; loss; B B; send g; send follow; update B
    edge2  recv follow; reduce B (take it over); update B

`follow` carries the weights' gradients and the buffers (running statistics cannot be computed from
gradients). The copy has the same weights and the same optimizer memory, so when the holder dies only the
minibatches in flight have to be done again. A segment that several devices hold needs no such copy: each of
them has the same weights already.
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.errors import InputError
from weft.plans.plan import Shard
from weft.program.instructions import Backward, Instruction, Recv, Reduce, Send, Tensor, Update
from weft.program.lower.layout import Layout


def with_standby(
    code: Mapping[str, tuple[Instruction, ...]], layout: Layout
) -> dict[str, tuple[Instruction, ...]]:
    """The program with the messages and updates of the plan's standby shards."""
    plan = layout.plan
    if plan.mode != "train":
        raise InputError(f"plan: standby shards are for training, not to {plan.mode}")
    bodies = {device: list(body) for device, body in code.items()}
    for number, shard in enumerate(plan.standby):
        for g in _segments(layout, shard):
            _follow(bodies, layout, g, number, shard.device)
    return {device: tuple(body) for device, body in bodies.items()}


def _follow(
    code: dict[str, list[Instruction]], layout: Layout, g: int, number: int, standby: str
) -> None:
    """The holder of a segment sends its gradients to a device that stands by, which updates as well."""
    layers = first, last = layout.segments[g]
    holder = layout.root(g)
    tensor = Tensor("follow", first, number, last)
    body = code[holder]
    end = max(n for n, i in enumerate(body) if isinstance(i, Backward) and i.layers == layers)
    lag = body[end].lag
    # Sent after the gradient that the device before waits for, because every step waits for that gradient.
    while end + 1 < len(body) and isinstance(body[end + 1], Send):
        end += 1
    size = sum(layer.param_bytes for layer in layout.plan.profile.layers[first : last + 1])
    body.insert(end + 1, Send(tensor, standby, size, lag=lag))
    follower = code[standby]
    behind = max([lag, *(i.lag for i in follower)])
    follower += [
        Recv(tensor, holder, lag=behind),
        Reduce(layers=layers, parts=(tensor,), replace=True, lag=behind),
        Update(layers=layers, lag=behind),
    ]


def _segments(layout: Layout, shard: Shard) -> list[int]:
    """The segments of a standby shard. Raises InputError if no device, several devices or the standby itself
    hold them."""
    first, last = shard.layers
    inside = [g for g, (a, b) in enumerate(layout.segments) if first <= a and b <= last]
    layers = [layer for g in inside for layer in range(*_span(layout, g))]
    if not layers or layers != list(range(first, last + 1)):
        raise InputError(
            f"plan: {shard.device} stands by for layers {list(shard.layers)}; they must be whole "
            f"segments of the plan: {', '.join(str(list(pair)) for pair in layout.segments)}"
        )
    for g in inside:
        holders = layout.holders(g)
        if len(holders) > 1:
            raise InputError(
                f"plan: {shard.device} stands by for layers {list(layout.segments[g])}, which "
                f"{' and '.join(holders)} hold together; each is a copy of the other already: leave "
                "this standby out"
            )
        if shard.device in holders:
            raise InputError(
                f"plan: {shard.device} stands by for layers {list(layout.segments[g])}, which it "
                "holds itself; name another device"
            )
    return inside


def _span(layout: Layout, g: int) -> tuple[int, int]:
    first, last = layout.segments[g]
    return first, last + 1
