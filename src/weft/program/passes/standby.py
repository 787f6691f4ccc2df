"""A device that stands by: it holds a copy of another's layers and makes the same updates.

    edge1  recv a; F B; loss; B B; send g; send follow; update B
    edge2  recv follow; reduce B (take it over); update B

`follow` carries the weights' gradients and the buffers (running statistics follow from no gradient).
The copy has the same weights and the same optimizer memory, so when the holder dies only the
minibatches in flight have to be done again.
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.errors import InputError
from weft.plans.plan import Plan, Shard
from weft.program.instructions import Backward, Instruction, Recv, Reduce, Send, Tensor, Update


def with_standby(
    plan: Plan, code: Mapping[str, tuple[Instruction, ...]]
) -> dict[str, tuple[Instruction, ...]]:
    """The program with the messages and updates of the plan's standby shards."""
    if plan.mode != "train":
        raise InputError(f"plan: standby shards are for training, not to {plan.mode}")
    found = {device: list(body) for device, body in code.items()}
    for number, shard in enumerate(plan.standby):
        holder = _holder(plan, shard)
        first, last = shard.layers
        tensor = Tensor("follow", first, number, last)
        body = found[holder]
        end = max(
            n for n, i in enumerate(body) if isinstance(i, Backward) and i.layers == (first, last)
        )
        lag = body[end].lag
        # After the gradient that the stage before waits for: that one is on the way of every step.
        while end + 1 < len(body) and isinstance(body[end + 1], Send):
            end += 1
        size = sum(layer.param_bytes for layer in plan.profile.layers[first : last + 1])
        body.insert(end + 1, Send(tensor, shard.device, size, lag=lag))
        follower = found[shard.device]
        behind = max([lag, *(i.lag for i in follower)])
        follower += [
            Recv(tensor, holder, lag=behind),
            Reduce(layers=shard.layers, parts=(tensor,), replace=True, lag=behind),
            Update(layers=shard.layers, lag=behind),
        ]
    return {device: tuple(body) for device, body in found.items()}


def _holder(plan: Plan, shard: Shard) -> str:
    for other in plan.shards:
        if other.layers == shard.layers and other.device != shard.device:
            return other.device
    raise InputError(
        f"plan: {shard.device} stands by for layers {list(shard.layers)}; there must be a shard of "
        f"just these layers on another device; there are "
        + ", ".join(f"{s.device} {list(s.layers)}" for s in plan.shards)
    )
