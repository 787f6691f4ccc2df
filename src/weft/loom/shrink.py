"""Makes a failing draw smaller, step by step, as long as the same check still fails.

shrink(draw, fails)       # fails(draw) says whether it still does
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
from msgspec.structs import replace

from weft.fleet.fleet import Device
from weft.loom.draw import Draw

MOST = 400  # tries, so that slow draws come to an end


def shrink(draw: Draw, fails: Callable[[Draw], bool], most: int = MOST) -> Draw:
    """The smallest draw that is reached by greedy steps."""
    tried = 0
    seen = {msgspec.json.encode(draw)}
    found = True
    while found and tried < most:
        found = False
        for smaller in candidates(draw):
            key = msgspec.json.encode(smaller)
            if key in seen:
                continue
            seen.add(key)
            tried += 1
            if fails(smaller):
                draw, found = smaller, True
                break
            if tried >= most:
                break
    return draw


def candidates(draw: Draw) -> Iterator[Draw]:
    """The same draw with one thing removed, the largest steps first."""
    yield from _without_extras(draw)
    yield from _fewer_devices(draw)
    yield from _smaller_network(draw)
    for key in draw.options:
        yield replace(draw, options={k: v for k, v in draw.options.items() if k != key})
    for batch in (1, 2, draw.batch // 2, draw.batch - 1):
        if 0 < batch < draw.batch:
            yield replace(draw, batch=batch)
    for steps in (1, 2, draw.steps // 2):
        if 0 < steps < draw.steps:
            yield replace(draw, steps=steps)
    yield from _plainer_numbers(draw)


def _without_extras(draw: Draw) -> Iterator[Draw]:
    if draw.feature:
        yield replace(draw, feature="", trace=())
    if draw.kill:
        yield replace(draw, kill="")
    if draw.options:
        yield replace(draw, options={})
    if draw.optimizer != "sgd":
        yield replace(draw, optimizer="sgd")
    if draw.loss != "cross_entropy":
        yield replace(draw, loss="cross_entropy")
    if draw.seed:
        yield replace(draw, seed=0)


def _fewer_devices(draw: Draw) -> Iterator[Draw]:
    fleet = draw.fleet
    for name in reversed(fleet.names):
        if len(fleet.names) > 1:
            kept = fleet.within([other for other in fleet.names if other != name])
            yield replace(draw, fleet=kept, kill="" if draw.kill == name else draw.kill)
    for n in range(len(fleet.link)):
        yield replace(draw, fleet=replace(fleet, link=fleet.link[:n] + fleet.link[n + 1 :]))
    for n in range(len(fleet.medium)):
        yield replace(draw, fleet=replace(fleet, medium=fleet.medium[:n] + fleet.medium[n + 1 :]))


def _smaller_network(draw: Draw) -> Iterator[Draw]:
    net = draw.net
    for layers in (1, 2, net.layers // 2, net.layers - 1):
        if 0 < layers < net.layers:
            yield replace(draw, net=replace(net, layers=layers))
    for classes in (1, 2, net.classes // 2):
        if 0 < classes < net.classes:
            yield replace(draw, net=replace(net, classes=classes))
    if net.times != "derived":
        yield replace(draw, net=replace(net, times="derived"))


def _plainer_numbers(draw: Draw) -> Iterator[Draw]:
    """The same draw without limits, latencies and losses, and with speeds of one digit."""
    fleet = draw.fleet
    for n, device in enumerate(fleet.devices):
        for plain in _plainer_devices(device):
            devices = (*fleet.devices[:n], plain, *fleet.devices[n + 1 :])
            yield replace(draw, fleet=replace(fleet, devices=devices))
    for n, link in enumerate(fleet.link):
        plain_link = replace(
            link, latency_ms=0.0, loss=0.0, up_loss=None, down_loss=None,
            up_mbps=_round(link.up_mbps), down_mbps=_round(link.down_mbps),
        )  # fmt: skip
        if plain_link != link:
            links = (*fleet.link[:n], plain_link, *fleet.link[n + 1 :])
            yield replace(draw, fleet=replace(fleet, link=links))
    for n, medium in enumerate(fleet.medium):
        plain_medium = replace(medium, latency_ms=0.0, loss=0.0, mbps=_round(medium.mbps))
        if plain_medium != medium:
            media = (*fleet.medium[:n], plain_medium, *fleet.medium[n + 1 :])
            yield replace(draw, fleet=replace(fleet, medium=media))


def _plainer_devices(device: Device) -> Iterator[Device]:
    if device.memory_mb is not None:
        yield replace(device, memory_mb=None)
    if device.gflops is not None and device.gflops != _round(device.gflops):
        yield replace(device, gflops=_round(device.gflops))


def _round(value: float) -> float:
    return float(f"{value:.1g}")
