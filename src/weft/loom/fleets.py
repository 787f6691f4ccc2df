"""Generated fleets: tiers, cells behind a gateway, swarms on lossy radio, peers, and anything else.

draw_fleet(rng, "cell")      # mostly a gateway with its members; sometimes any other kind
fast_fleet(rng, "tiers")     # devices faster than this machine: a real run is not slowed down
"""

from __future__ import annotations

import random
from itertools import combinations, pairwise

import msgspec

from weft.fleet.fleet import Device, Fleet, Link, Medium, Tier

KINDS = ("tiers", "cell", "swarm", "peers", "any")
TIERS: tuple[Tier, ...] = ("device", "edge", "cloud")
ANOTHER = 0.15  # how often the fleet is not of the kind that the strategy is made for
SEVERAL_WITH_DATA = 0.15  # of the fleets of tiers
FAST_GFLOPS = 1e5
FAST_MBPS = (1000.0, 4000.0)


def draw_fleet(rng: random.Random, kind: str, small: bool = False) -> Fleet:
    """A random fleet: devices, links, media, tiers and memory."""
    if rng.random() < ANOTHER:
        kind = rng.choice(KINDS)
    count = rng.choice((1, 2, 3, 3) if small else (1, 2, 3, 3, 4, 5, 6, 8, 12))
    if kind == "cell":
        return _cell(rng, min(count + 1, 7))
    if kind == "swarm":
        return _mesh(rng, max(3, min(count, 7)), lossy=True)
    if kind == "peers":
        return _mesh(rng, min(count, 8), lossy=rng.random() < 0.3)
    if kind == "tiers":
        return _tiers(rng, max(3, min(count, 6)))
    return _anything(rng, count)


def fast_fleet(rng: random.Random, kind: str) -> Fleet:
    """A few devices and links that hardly slow a real run down."""
    count = rng.randint(2, 4)
    if kind == "cell":
        fleet = _cell(rng, count + 1)
    elif kind == "swarm":
        fleet = _mesh(rng, max(3, count), lossy=True)
    elif kind == "peers":
        fleet = _mesh(rng, count, lossy=False)
    else:
        fleet = _tiers(rng, max(3, count))
    devices = tuple(
        msgspec.structs.replace(d, gflops=FAST_GFLOPS * rng.uniform(1, 4)) for d in fleet.devices
    )
    links = tuple(
        msgspec.structs.replace(
            link,
            up_mbps=rng.uniform(*FAST_MBPS),
            down_mbps=rng.uniform(*FAST_MBPS),
            latency_ms=rng.choice((0.0, 0.5, 2.0)),
        )
        for link in fleet.link
    )
    media = tuple(
        msgspec.structs.replace(m, mbps=rng.uniform(*FAST_MBPS), latency_ms=rng.choice((0.0, 1.0)))
        for m in fleet.medium
    )
    return Fleet(devices, links, media)


def draw_limits(rng: random.Random, fleet: Fleet, around: float) -> Fleet:
    """In a third of the fleets some devices have little memory: about as much as the network needs."""
    if rng.random() > 0.33:
        return fleet
    devices = []
    for device in fleet.devices:
        limit = None
        if rng.random() < 0.6:
            limit = round(max(around * 10 ** rng.uniform(-1.5, 1.0) / 1e6, 1e-3), 4)
        devices.append(msgspec.structs.replace(device, memory_mb=limit))
    return msgspec.structs.replace(fleet, devices=tuple(devices))


def _device(rng: random.Random, name: str, tier: Tier = "device", data: bool = False) -> Device:
    exponent = TIERS.index(tier) + rng.uniform(-1, 1)
    return Device(name, tier, gflops=round(10**exponent, 3), data=data)


def _link(rng: random.Random, a: str, b: str, loss: float = 0.0) -> Link:
    up = round(10 ** rng.uniform(-1, 3), 2)
    down = up if rng.random() < 0.5 else round(10 ** rng.uniform(-1, 3), 2)
    latency = rng.choice((0.0, 0.0, round(rng.uniform(0.1, 100), 1)))
    if rng.random() < 0.5:
        a, b = b, a
    return Link((a, b), up, down, latency, loss)


def _tiers(rng: random.Random, count: int) -> Fleet:
    """At least one device of each tier, data on a device; a triangle, a row, a star or more."""
    tiers: list[Tier] = ["device", "edge", "cloud"]
    tiers += [rng.choice(TIERS) for _ in range(count - 3)]
    several = rng.random() < SEVERAL_WITH_DATA
    if several:
        tiers.append("device")
    devices = tuple(
        _device(rng, f"d{n}", tier, data=n == 0 and rng.random() < 0.7)
        for n, tier in enumerate(tiers)
    )
    if several:
        devices = _with_data(rng, devices)
    return Fleet(devices, _links(rng, [d.name for d in devices]))


def _with_data(rng: random.Random, devices: tuple[Device, ...]) -> tuple[Device, ...]:
    """All devices of tier `device` have data of their own, alike or in different amounts."""
    alike = rng.random() < 0.5
    return tuple(
        msgspec.structs.replace(d, data=True, samples=None if alike else rng.randint(1, 9))
        if d.tier == "device"
        else d
        for d in devices
    )


def _links(rng: random.Random, names: list[str]) -> tuple[Link, ...]:
    shape = rng.choice(("mesh", "mesh", "row", "star", "tree"))
    if shape == "mesh":
        pairs = list(combinations(names, 2))
    elif shape == "row":
        pairs = list(pairwise(names))
    elif shape == "star":
        pairs = [(names[0], name) for name in names[1:]]
    else:
        pairs = [(rng.choice(names[:n]), names[n]) for n in range(1, len(names))]
    return tuple(_link(rng, a, b) for a, b in pairs)


def _cell(rng: random.Random, count: int) -> Fleet:
    """A gateway and its members; sometimes a cloud machine behind it, sometimes a second medium."""
    gateway = _device(rng, "gw", rng.choice(TIERS), data=rng.random() < 0.8)
    same = rng.random() < 0.4
    first = _device(rng, "m0")
    members = [
        msgspec.structs.replace(first, name=f"m{n}") if same else _device(rng, f"m{n}")
        for n in range(max(count - 1, 1))
    ]
    mbps, latency = round(10 ** rng.uniform(0, 3), 2), rng.choice((0.0, 0.0, 0.5, 20.0))
    loss = rng.choice((0.0, 0.0, 0.1))
    names = tuple(m.name for m in members)
    devices = (gateway, *members) if rng.random() < 0.7 else (*members, gateway)
    media = [Medium("wifi", "gw", names, mbps, latency, loss)]
    if len(names) > 2 and rng.random() < 0.15:
        media = [Medium("wifi", "gw", names[:-1], mbps, latency, loss)]
        media.append(Medium("mesh", rng.choice(("gw", names[0])), names[-1:], mbps * 2))
    if rng.random() < 0.2:
        cloud = _device(rng, "sky", "cloud")
        return Fleet((*devices, cloud), (_link(rng, "gw", "sky"),), tuple(media))
    return Fleet(devices, (), tuple(media))


def _mesh(rng: random.Random, count: int, lossy: bool) -> Fleet:
    """A link between every two devices."""
    same = rng.random() < 0.4
    devices = tuple(_device(rng, f"p{n}", data=n == 0 and rng.random() < 0.3) for n in range(count))
    if same:
        devices = tuple(msgspec.structs.replace(d, gflops=devices[0].gflops) for d in devices)
    links = []
    for a, b in combinations([d.name for d in devices], 2):
        link = _link(rng, a, b)
        if lossy and rng.random() < 0.5:
            up, down = round(rng.uniform(0, 0.95), 3), round(rng.uniform(0, 0.95), 3)
            link = msgspec.structs.replace(link, up_loss=up, down_loss=down)
        elif lossy:
            link = msgspec.structs.replace(link, loss=round(rng.uniform(0, 0.95), 3))
        links.append(link)
    return Fleet(devices, tuple(links))


def _anything(rng: random.Random, count: int) -> Fleet:
    """Any tiers, any links, perhaps a medium, perhaps a device without any link."""
    devices = tuple(
        _device(rng, f"x{n}", rng.choice(TIERS), data=n == 0 and rng.random() < 0.5)
        for n in range(count)
    )
    names = [d.name for d in devices]
    inside = names[:-1] if count > 2 and rng.random() < 0.2 else names
    links = _links(rng, inside)
    media: tuple[Medium, ...] = ()
    if count > 2 and rng.random() < 0.4:
        gateway, *members = rng.sample(names, rng.randint(2, count))
        mbps = round(10 ** rng.uniform(0, 3), 2)
        media = (Medium("air", gateway, tuple(members), mbps, rng.choice((0.0, 5.0))),)
    return Fleet(devices, links, media)
