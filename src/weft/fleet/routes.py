"""The route of a message: the one with the fewest hops, and among those the one with the fastest slowest hop.

pi ──5──► nuc ──3──► cloud        one route: pi>nuc, nuc>cloud
rpi1 ──wifi──► gw ──wifi──► rpi2  members of a medium meet at its gateway: one channel, twice
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from weft.errors import WeftError
from weft.fleet.fleet import Fleet, Hop


def direct_hops(fleet: Fleet) -> tuple[Hop, ...]:
    """All hops between direct neighbours, in the order of the fleet file."""
    hops: list[Hop] = []
    for link in fleet.link:
        first, second = link.between
        up, down = link.losses
        for source, dest, mbps, loss in (
            (first, second, link.up_mbps, up),
            (second, first, link.down_mbps, down),
        ):
            hops.append(_hop(f"{source}>{dest}", source, dest, mbps, link.latency_ms, loss))
    for medium in fleet.medium:
        for member in medium.members:
            for source, dest in ((member, medium.gateway), (medium.gateway, member)):
                hops.append(
                    _hop(medium.name, source, dest, medium.mbps, medium.latency_ms, medium.loss)
                )
    return tuple(hops)


def _hop(channel: str, source: str, dest: str, mbps: float, latency_ms: float, loss: float) -> Hop:
    # A lost packet is sent again, so only the share (1 - loss) of the bandwidth is useful.
    rate = mbps * 1e6 / 8 * (1 - loss)
    return Hop(channel, source, dest, rate, latency_ms / 1e3, loss)


def find_routes(fleet: Fleet, source: str) -> dict[str, tuple[Hop, ...]]:
    """The routes from a device to every device that it reaches, itself included.

    Breadth-first search: one hop further in each round, keeping the widest route to each device. Of equally
    wide routes the one whose last hop stands first in the fleet file is taken.
    """
    fleet.device(source)  # raises an error for an unknown name
    hops, leaving = fleet.hops(), fleet.hops_from
    reached: dict[str, tuple[Hop, ...]] = {source: ()}
    frontier = {source: math.inf}  # slowest hop so far, by device
    while frontier:
        widest: dict[str, float] = {}
        ways: dict[str, tuple[Hop, ...]] = {}
        for number in sorted(number for name in frontier for number in leaving.get(name, ())):
            hop = hops[number]
            if hop.dest in reached:
                continue
            width = min(frontier[hop.source], hop.bytes_per_s)
            if width > widest.get(hop.dest, 0.0):
                widest[hop.dest] = width
                ways[hop.dest] = (*reached[hop.source], hop)
        reached.update(ways)
        frontier = widest
    return reached


def no_route(source: str, dest: str, reached: Iterable[str]) -> WeftError:
    """The error for two devices that cannot talk to each other."""
    return WeftError(
        f"there is no route from {source!r} to {dest!r}: {source!r} reaches only "
        f"{', '.join(reached)}; add a [[link]] or [[medium]] to the fleet file"
    )
