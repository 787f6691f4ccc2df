"""How a fleet changes in time: which device or link changes when. Plain data, JSON or TOML.

    trace = Trace.load("moving.json", fleet)
    trace.slowdown("edge1", 12.5)          # how many times slower than its profile, at 12.5 s
    trace.link(fleet.link[0], 12.5)        # the link with that moment's rates and latency

    {"moment": [{"at_s": 0, "device": "edge1", "slowdown": 1.4},
                {"at_s": 5, "link": ["phone", "edge1"], "up_mbps": 3, "latency_ms": 20},
                {"at_s": 9, "device": "edge1", "in_reach": false},
                {"at_s": 9, "device": "phone", "position": [120, 45]}]}

Every value holds until the next moment that names it. `up` is from the first device of `link` to the
second. A device that is out of reach still runs, but nothing crosses its links to the device with the data.
Positions (metres east and north) change nothing: they are for maps.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from weft.errors import InputError
from weft.fleet.fleet import Fleet, Link
from weft.reading import read_bounded

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

T = TypeVar("T")
MAX_BYTES = 8 << 20
OF_A_DEVICE = ("slowdown", "in_reach", "position")
OF_A_LINK = ("up_mbps", "down_mbps", "latency_ms")


class Moment(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The values that a device or a link has from `at_s` on."""

    at_s: float
    device: str | None = None
    slowdown: float | None = None  # its seconds over those of its profile
    in_reach: bool | None = None
    position: tuple[float, float] | None = None  # metres east and north; for maps
    link: tuple[str, str] | None = None
    up_mbps: float | None = None
    down_mbps: float | None = None
    latency_ms: float | None = None


class Trace(Struct, frozen=True, forbid_unknown_fields=True):
    """How an emulated fleet changes in time."""

    moment: tuple[Moment, ...] = ()  # in the order of time

    @staticmethod
    def load(path: str | Path, fleet: Fleet) -> Trace:
        """Read a trace and check it against the fleet; errors name the moment and the key."""
        where = f"trace {path}"
        data = read_bounded(path, MAX_BYTES, "trace")
        try:
            if str(path).endswith(".toml"):
                trace = msgspec.convert(tomllib.loads(data.decode()), Trace)
            else:
                trace = msgspec.json.decode(data, type=Trace)
        except (msgspec.MsgspecError, tomllib.TOMLDecodeError, ValueError, RecursionError) as error:
            raise InputError(f"{where} is not a trace: {error}") from None
        check(trace, fleet, where)
        return Trace(tuple(sorted(trace.moment, key=lambda m: m.at_s)))

    def slowdown(self, device: str, now: float) -> float:
        return self._last(device, "slowdown", now, 1.0)

    def in_reach(self, device: str, now: float) -> bool:
        return self._last(device, "in_reach", now, True)

    def path(self, device: str, now: float) -> list[tuple[float, float]]:
        """The positions of a device up to this time, the newest one last."""
        return [
            m.position for m in self.moment if m.device == device and m.position and m.at_s <= now
        ]

    def link(self, link: Link, now: float) -> Link:
        """The link with its values at this time."""
        values = {"up_mbps": link.up_mbps, "down_mbps": link.down_mbps,
                  "latency_ms": link.latency_ms}  # fmt: skip
        for moment in self.moment:
            if moment.at_s > now:
                break
            if moment.link is not None and set(moment.link) == set(link.between):
                turned = moment.link != link.between
                for key, mine in zip(OF_A_LINK, _turned(OF_A_LINK, turned), strict=True):
                    value = getattr(moment, key)
                    if value is not None:
                        values[mine] = value
        return msgspec.structs.replace(link, **values)

    def fleet(self, fleet: Fleet, now: float) -> Fleet:
        """The fleet with the values of its links at this time."""
        return Fleet(
            fleet.devices, tuple(self.link(link, now) for link in fleet.link), fleet.medium
        )

    def times(self) -> tuple[float, ...]:
        """All times at which something changes, and 0."""
        return tuple(sorted({0.0, *(moment.at_s for moment in self.moment)}))

    def _last(self, device: str, key: str, now: float, default: T) -> T:
        latest = default
        for moment in self.moment:
            if moment.at_s > now:
                break
            if moment.device == device:
                value = getattr(moment, key)
                latest = latest if value is None else value
        return latest


def _turned(keys: tuple[str, ...], turned: bool) -> tuple[str, ...]:
    return (keys[1], keys[0], *keys[2:]) if turned else keys


def check(trace: Trace, fleet: Fleet, where: str = "trace") -> None:
    """Raises InputError if a moment names a device or link that the fleet does not have, or has an impossible
    value."""
    for number, moment in enumerate(trace.moment, start=1):
        for problem in _problems(moment, fleet):
            raise InputError(f"{where}, moment {number} (at_s = {moment.at_s:g}): {problem}")


def _problems(moment: Moment, fleet: Fleet) -> Iterator[str]:
    if not (math.isfinite(moment.at_s) and moment.at_s >= 0):
        yield f"at_s = {moment.at_s} is not allowed; it must be 0 or more seconds"
    if (moment.device is None) == (moment.link is None):
        yield "it must have either device or link"
    keys = [k for k in (*OF_A_DEVICE, *OF_A_LINK) if getattr(moment, k) is not None]
    allowed = OF_A_LINK if moment.device is None else OF_A_DEVICE
    for key in keys:
        if key not in allowed:
            yield f"{key} = {getattr(moment, key)} does not belong here; allowed: {', '.join(allowed)}"
    if not keys:
        yield f"it changes nothing; give one of {', '.join(allowed)}"
    if moment.device is not None and moment.device not in fleet.names:
        yield f"device = {moment.device!r} is unknown; there are {', '.join(fleet.names)}"
    pairs = [set(link.between) for link in fleet.link]
    if moment.link is not None and set(moment.link) not in pairs:
        yield f"link = {list(moment.link)} is unknown; the fleet file has no such [[link]]"
    for key in ("slowdown", "up_mbps", "down_mbps"):
        value = getattr(moment, key)
        if value is not None and not (math.isfinite(value) and value > 0):
            yield f"{key} = {value} is not allowed; it must be above 0"
    if moment.position is not None and not all(map(math.isfinite, moment.position)):
        yield f"position = {list(moment.position)} is not allowed; it must be two numbers of metres"
    if moment.latency_ms is not None and not 0 <= moment.latency_ms <= 10_000:
        yield f"latency_ms = {moment.latency_ms} is not allowed; it must be 0 to 10000"
