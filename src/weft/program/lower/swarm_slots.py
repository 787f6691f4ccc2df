"""Whether a swarm's slots are long enough for its own messages.

A message that takes longer than its slot is never heard: the run would train on zeros without a word. So a
plan with such a slot is refused, and the error names the least that is enough for every message by itself.
Computing, and messages that queue behind each other, come on top.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from math import ceil

from weft.errors import InputError
from weft.fleet.fleet import Hop
from weft.plans.plan import Plan
from weft.program.instructions import Instruction, Send


def check_slots(plan: Plan, code: Mapping[str, Iterable[Instruction]]) -> None:
    """InputError where `slot_ms` is shorter than one of the messages takes on its links."""
    swarm = plan.swarm
    if swarm is None or not swarm.slot_ms:
        return
    hops = {(hop.source, hop.dest): hop for hop in plan.fleet.hops()}
    longest_s, longest = max(
        (
            (crossing_s(hops, device, send), f"{send.tensor} from {device} to {send.dest}")
            for device, body in code.items()
            for send in body
            if isinstance(send, Send) and send.radio is not None
        ),
        default=(0.0, ""),
    )
    if longest_s * 1e3 > swarm.slot_ms:
        raise InputError(
            f"slot_ms={swarm.slot_ms:g} is not allowed: {longest} takes {longest_s * 1e3:.3g} ms on its way, "
            f"so it would never be heard. Give at least slot_ms={ceil(longest_s * 1e3)}, "
            "a smaller batch, or a codec (--set codec=int8)"
        )


def crossing_s(hops: Mapping[tuple[str, str], Hop], source: str, send: Send) -> float:
    """Seconds that one packet of a message is on its way, by the faster of the ways that it is sent.

    A packet is never sent again, so a link's loss takes no time.
    """
    assert send.radio is not None
    ways: list[tuple[str, ...]] = []
    if send.radio.direct:
        ways.append((source, send.dest))
    if send.radio.relayed:
        ways.append((source, send.radio.via, send.dest))

    def link_s(hop: Hop) -> float:
        return send.bytes * (1 - hop.loss) / hop.bytes_per_s + hop.latency_s

    return min(sum(link_s(hops[pair]) for pair in pairwise(way)) for way in ways)
