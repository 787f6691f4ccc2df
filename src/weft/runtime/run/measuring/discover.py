"""Finds the nodes of a network and, if asked, measures them: from nothing to a fleet file."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable

from msgspec import Struct

from weft.errors import WeftError
from weft.fleet.fleet import Device, Fleet, Link
from weft.runtime.run.launch import Place, open_crew_of
from weft.runtime.run.measuring.survey import Pair, Survey, link_of
from weft.runtime.wire import messages as msg
from weft.runtime.wire.crew import Crew
from weft.runtime.wire.reach import reach
from weft.runtime.wire.session import check_admitted


class FoundDevice(Struct, frozen=True):
    """A node that answered."""

    name: str
    cores: int
    memory_mb: float
    busy: str
    gflops: float | None = None

    def cells(self) -> tuple[str, ...]:
        speed = f"{self.gflops:.2f}" if self.gflops is not None else "-"
        return (self.name, str(self.cores), f"{self.memory_mb:.0f} MB", speed, self.busy or "-")


class FoundLink(Struct, frozen=True):
    """A link between two nodes, as measured."""

    source: str
    dest: str
    mbps: float
    latency_ms: float

    def cells(self) -> tuple[str, ...]:
        return (self.source, self.dest, f"{self.mbps:.1f}", f"{self.latency_ms:.2f} ms")


class Found(Struct, frozen=True):
    """The fleet that is there."""

    devices: tuple[FoundDevice, ...]
    links: tuple[FoundLink, ...]

    @property
    def fleet(self) -> Fleet:
        """As a fleet file; tiers are left at `device` for the user to say."""
        rates = {(link.source, link.dest): link for link in self.links}
        links = []
        for a, b in itertools.combinations([d.name for d in self.devices], 2):
            if (a, b) in rates and (b, a) in rates:
                up, down = rates[a, b], rates[b, a]
                latency = round((up.latency_ms + down.latency_ms) / 2, 3)
                links.append(Link((a, b), round(up.mbps, 3), round(down.mbps, 3), latency))
        devices = tuple(
            Device(
                d.name,
                gflops=round(d.gflops, 3) if d.gflops is not None else None,
                memory_mb=round(d.memory_mb),
            )
            for d in self.devices
        )
        return Fleet(devices, tuple(links))


def discover(
    join: tuple[str, ...],
    *,
    group: str = "weft",
    wait: float = 2.0,
    probe: bool = False,
    config: str | None = None,
) -> Found:
    """Looks for `wait` seconds; WeftError where nobody is there."""
    place = Place(join=join, group=group, config=config)
    with open_crew_of(place) as crew:
        time.sleep(wait)  # nodes come at their own pace: nothing tells "that is all"
        names = somebody(crew, place, wait)
        crew.settle(names, 10.0)
        devices = []
        for name, (welcome,) in crew.ask_all(dict.fromkeys(names, msg.Hello()), 10.0).items():
            assert isinstance(welcome, msg.Welcome)
            speed = _speed(crew, name) if probe else None
            busy = "a run" if welcome.busy else ""
            devices.append(FoundDevice(name, welcome.cores, welcome.memory_mb, busy, speed))
        pairs = Survey(crew, names).pairs() if probe else []
        return Found(tuple(devices), found_links(pairs))


def somebody(crew: Crew, place: Place, wait: float) -> tuple[str, ...]:
    """The names of all nodes that are there. Raises WeftError if there is none."""
    names = crew.present
    if not names:
        endpoints = reach(place.group, join=place.join, config=place.config)
        if endpoints.keys is not None:
            check_admitted(endpoints.known, endpoints.keys)
        where = ", ".join((*place.join, *endpoints.known)) or "the local network"
        raise WeftError(f"no nodes found on {where} in {wait:g} s; start `weft node --name ...`")
    return names


def found_links(pairs: Iterable[Pair]) -> tuple[FoundLink, ...]:
    """Both directions of every measured pair, without the runtime's own time."""
    links = []
    for pair in pairs:
        link = link_of(pair)
        ends, rates = link.between, (link.up_bytes_per_s, link.down_bytes_per_s)
        for (a, b), rate in zip((ends, ends[::-1]), rates, strict=True):
            links.append(FoundLink(a, b, rate * 8 / 1e6, link.rtt_s * 500))
    return tuple(links)


def _speed(crew: Crew, name: str) -> float:
    (probed,) = crew.ask(name, msg.ProbeCompute(), 60.0)
    assert isinstance(probed, msg.Probed)
    return probed.gflops
