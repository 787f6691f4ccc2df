"""The norm of all gradients limits every update: a sum over devices between the gradients and the updates.

    phone  ... backward A | squares of A, send ──► | recv total, clip A | update A
    edge   ... backward B | squares of B, recv, clip B (add up), send total | update B

Where several devices hold a segment, only the device that adds up its gradients counts it. No update is made
before the total is known, so the last layers wait for the first layers' backward pass.
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.errors import InputError
from weft.graph.optimizers.words import clips_norm
from weft.plans.plan import Plan
from weft.program.instructions import (
    DONE,
    Clip,
    Instruction,
    Recv,
    Send,
    Squares,
    Tensor,
    Update,
)
from weft.program.lower.layout import Layout

TOTAL_BYTES = 4  # one number
Body = tuple[Instruction, ...]


def check_clip(plan: Plan) -> None:
    """Raises InputError if a plan cannot limit the norm of all gradients."""
    if not clips_norm(plan.optimizer):
        return
    why = {
        "swarm": "its devices do not wait for messages, so a part of the norm may be lost",
        "peers": "each of its devices trains a network of its own",
        "rounds": "its devices hold parts of a weight",
        "stale": "its devices update at different minibatches",
        "standby": "a device that stands by updates without the others",
    }
    for field, reason in why.items():
        if getattr(plan, field):
            raise InputError(
                f"clipping by the norm of all gradients is not possible with a plan that has {field}: "
                f"{reason}; use clip_value, or a strategy such as chain or hiertrain+"
            )


def with_clip(code: Mapping[str, Body], layout: Layout) -> dict[str, Body]:
    """The program with the sum of squares and the clipping before all updates."""
    plan = layout.plan
    hub = layout.root(len(layout.segments) - 1)
    rank = {device: n for n, device in enumerate(plan.devices)}
    updating = [d for d, body in code.items() if any(isinstance(i, Update) for i in body)]
    total = Tensor("gnorm", 0, rank[hub], part=1)
    clipped = dict(code)
    for device in updating:
        updates = [i for i in code[device] if isinstance(i, Update)]
        ends = [i for i in code[device] if isinstance(i, Send) and i.tensor == DONE]
        before = [i for i in code[device] if i not in updates and i not in ends]
        layers = tuple(i.layers for i in updates)
        roots = {s: layout.root(g) for g, s in enumerate(layout.segments)}
        own = Tensor("gnorm", 0, rank[device])
        squares = Squares(own, tuple(s for s in layers if roots[s] == device))
        others = [d for d in updating if d != hub]
        parts = {d: Tensor("gnorm", 0, rank[d]) for d in others}
        norm: list[Instruction] = [squares]
        if device == hub:
            norm += [Recv(parts[d], d) for d in others]
            norm += [Clip(total, layers, (own, *parts.values()))]
            norm += [Send(total, d, TOTAL_BYTES) for d in others]
        else:
            seen = Tensor("gnorm", 0, rank[device], part=2)
            norm += [Send(own, hub, TOTAL_BYTES), Recv(total, hub), Clip(seen, layers, (total,))]
        clipped[device] = (*before, *norm, *updates, *ends)
    return clipped
