"""From a fleet to the links and next hops of each device."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from weft.fleet.fleet import Fleet
from weft.runtime.wire.links.channel import OutLink, Roads
from weft.runtime.wire.links.shaping import clock_name

# How links get their speed. Real links have their own. `fabric` shapes rate and latency. `latency` leaves the
# rate to the kernel (network namespaces) and adds only the latency.
Shaping = Literal["none", "fabric", "latency"]


def roads_of(
    fleet: Fleet,
    device: str,
    partners: tuple[str, ...],
    *,
    shaping: Shaping,
    cut_through: bool,
    scratch: Path | None = None,
    best_effort: bool = False,
) -> Roads:
    """The outgoing links of `device` and its next hop to each of `partners`.

    If nothing is emulated, the network itself routes, so every device is a neighbour.
    """
    if shaping == "none":
        return Roads(
            links=tuple(OutLink(p, f"{device}>{p}") for p in partners if p != device),
            next_hop={p: p for p in partners if p != device},
            cut_through=cut_through,
        )
    media = {m.name for m in fleet.medium}
    links = tuple(
        OutLink(
            neighbour=hop.dest,
            channel=hop.channel,
            # The loss of a link lowers its rate if lost packets would be sent again.
            bytes_per_s=0.0
            if shaping != "fabric"
            else hop.bytes_per_s / (1 - hop.loss)
            if best_effort
            else hop.bytes_per_s,
            latency_s=hop.latency_s,
            shared=clock_name(hop.channel)
            if scratch and hop.channel in media and shaping == "fabric"
            else None,
        )
        for hop in fleet.hops()
        if hop.source == device and hop.dest in partners
    )
    next_hop = {
        p: fleet.route(device, p)[0].dest
        for p in partners
        if p != device and fleet.connected(device, p)
    }
    return Roads(links=links, next_hop=next_hop, cut_through=cut_through)


def involved(fleet: Fleet, devices: tuple[str, ...]) -> tuple[str, ...]:
    """The devices of a plan and the relays between them."""
    found = dict.fromkeys(devices)
    for a in devices:
        for b in devices:
            if a != b and fleet.connected(a, b):
                for hop in fleet.route(a, b):
                    found.setdefault(hop.dest)
    return tuple(found)
