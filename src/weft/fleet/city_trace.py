"""A walk through the city as a trace for a small emulated fleet.

    trace = city_trace(Day(city, Walk(city.box, 5.0, seed=1), seed=1), fleet, length_s=60.0, hurry=5.0)

Each edge server of the fleet stands for one of the city's servers: those that cover the walk best. The
fleet's cloud machine stands for the city's. Loads, round trips and reach are those of the city. A link has
the same share of its rate in the fleet file as the client has of the city's peak rate. `hurry` seconds of the
walk pass in one second of the trace, so that a short run sees as many changes as a long one.
"""

from __future__ import annotations

import json

import msgspec
import numpy as np
from numpy.typing import NDArray

from weft.errors import InputError
from weft.fleet.city import PEAK_UP, Day
from weft.fleet.city import Moment as Second
from weft.fleet.fleet import Fleet, Link
from weft.fleet.trace import Moment, Trace


def city_trace(
    day: Day, fleet: Fleet, length_s: float, hurry: float = 1.0, every_s: float = 2.0
) -> Trace:
    """The state of all servers and links, every `every_s` seconds of the trace."""
    source = next((device.name for device in fleet.devices if device.data), None)
    if source is None:
        raise InputError("a walk needs a client: give one device of the fleet data = true")
    times = np.arange(0.0, length_s, every_s)
    seconds = (times * hurry).astype(int)
    whole = day.until(float(seconds[-1]))
    walked = Second(*(part[seconds] for part in whole))
    edges = [d.name for d in fleet.devices if d.tier == "edge" and d.name != source]
    sites = dict(zip(edges, covering(walked.reach[:, :-1], len(edges)), strict=True))
    sites |= {d.name: -1 for d in fleet.devices if d.tier == "cloud"}
    links = {name: _link(fleet, source, name) for name in sites}
    paths = day.walk.at(seconds.astype(float))
    moments = [
        Moment(0.0, device=name, position=_metres(day.city.places[site]))
        for name, site in sites.items()
        if site >= 0  # the cloud is not in the city
    ]
    near = dict.fromkeys(sites, True)
    for row, at in enumerate(times.tolist()):
        moments.append(Moment(at, device=source, position=_metres(paths[row])))
        for name, site in sites.items():
            in_reach = bool(walked.reach[row, site])
            if in_reach != near[name]:
                moments.append(Moment(at, device=name, in_reach=in_reach))
            near[name] = in_reach
            if in_reach:
                slow = round(float(walked.slowdown[row, site]), 2)
                moments.append(Moment(at, device=name, slowdown=slow))
                moments.append(_way(at, links[name], source, walked, row, site))
    return Trace(tuple(moments))


def covering(reach: NDArray[np.bool_], count: int) -> list[int]:
    """`count` servers, chosen one after the other. Each covers most of the time that is still uncovered.
    Among equals, the one that is in reach longest is chosen."""
    chosen: list[int] = []
    covered = np.zeros(len(reach), dtype=bool)
    for _ in range(count):
        new, whole = (reach & ~covered[:, None]).sum(axis=0), reach.sum(axis=0)
        new[chosen], whole = -1, whole / (len(reach) + 1)
        chosen.append(int((new + whole).argmax()))
        covered |= reach[:, chosen[-1]]
    return chosen


def write_trace(trace: Trace) -> str:
    """The trace as JSON, one moment per line."""
    lines = [json.dumps(msgspec.to_builtins(moment)) for moment in trace.moment]
    return '{"moment": [\n  ' + ",\n  ".join(lines) + "\n]}\n"


def _metres(place: NDArray[np.float64]) -> tuple[float, float]:
    return round(float(place[0]), 1), round(float(place[1]), 1)


def _link(fleet: Fleet, source: str, name: str) -> Link:
    for link in fleet.link:
        if set(link.between) == {source, name}:
            return link
    raise InputError(
        f"the fleet has no link between {source} and {name}; a walk changes such links"
    )


def _way(at: float, link: Link, source: str, walked: Second, row: int, site: int) -> Moment:
    """A link's entry at one moment. `up` is the direction from the first device that the entry names."""
    up, down = link.up_mbps, link.down_mbps
    if link.between[0] != source:
        up, down = down, up
    name = next(end for end in link.between if end != source)
    share = float(walked.up_bytes_per_s[row, site]) / PEAK_UP
    return Moment(
        at, link=(source, name), up_mbps=round(up * share, 2), down_mbps=round(down * share, 2),
        latency_ms=round(float(walked.rtt_s[row, site]) * 500, 1),
    )  # fmt: skip
