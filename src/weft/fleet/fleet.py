"""The machines: devices, the links between them, and shared media. Plain data, written in TOML.

fleet = Fleet.load("fleet.toml")
fleet.device("pi").gflops
fleet.route("pi", "cloud")      # the hops a message takes
"""

from __future__ import annotations

import math
from collections.abc import Collection
from functools import cached_property
from pathlib import Path
from typing import Literal

from msgspec import Struct, field

from weft.errors import InputError

Tier = Literal["device", "edge", "cloud"]
Route = Literal["min", "store_and_forward"]


class Device(Struct, frozen=True, omit_defaults=True):
    """A machine of the fleet: one `[[device]]` table of the fleet file."""

    name: str
    tier: Tier = "device"
    gflops: float | None = None  # effective; used where no measured profile is given
    memory_mb: float | None = None  # None: unlimited
    data: bool = False  # training data lives here
    samples: int | None = None  # how many it has: its share of the batch, where several have data
    watts: float | None = None  # while it computes
    price_per_hour: float = 0.0
    # What a pass through a layer takes besides its mathematics, in times that follow from gflops.
    call_ms: float = 0.0


class Link(Struct, frozen=True, omit_defaults=True):
    """A point-to-point link. `up` is first to second, `down` second to first."""

    between: tuple[str, str]
    up_mbps: float
    down_mbps: float
    latency_ms: float = 0.0
    loss: float = 0.0
    # A radio link may lose more in one direction. Either both are given, and `loss` is 0, or neither.
    up_loss: float | None = None
    down_loss: float | None = None
    price_per_gb: float = 0.0  # of what crosses it, either way

    @property
    def losses(self) -> tuple[float, float]:
        """The link's loss from first to second, and from second to first."""
        up = self.loss if self.up_loss is None else self.up_loss
        return up, self.loss if self.down_loss is None else self.down_loss


class Medium(Struct, frozen=True, omit_defaults=True):
    """A shared medium such as a gateway's Wi-Fi: one queue for all members, both ways."""

    name: str
    gateway: str
    members: tuple[str, ...]
    mbps: float
    latency_ms: float = 0.0
    loss: float = 0.0
    price_per_gb: float = 0.0


class Hop(Struct, frozen=True):
    """One crossing of a channel. Hops on one channel share its time, first come first served."""

    channel: str  # "pi>nuc" for a link's direction, the medium's name for a medium
    source: str
    dest: str
    bytes_per_s: float  # after loss: a reliable message is sent 1/(1-loss) times on average
    latency_s: float
    loss: float = 0.0


class Fleet(Struct, frozen=True, dict=True):
    """All machines and channels. The fields have the names of the TOML tables."""

    devices: tuple[Device, ...] = field(name="device")
    link: tuple[Link, ...] = ()
    medium: tuple[Medium, ...] = ()

    @staticmethod
    def load(path: str | Path) -> Fleet:
        from weft.fleet.parse import load_fleet

        return load_fleet(Path(path))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(device.name for device in self.devices)

    def within(self, names: Collection[str]) -> Fleet:
        """The fleet with only these devices, and the links between them."""
        media = []
        for medium in self.medium:
            members = tuple(member for member in medium.members if member in names)
            if medium.gateway in names and members:
                media.append(Medium(medium.name, medium.gateway, members, medium.mbps,
                                    medium.latency_ms, medium.loss, medium.price_per_gb))  # fmt: skip
        return Fleet(
            tuple(device for device in self.devices if device.name in names),
            tuple(link for link in self.link if all(end in names for end in link.between)),
            tuple(media),
        )

    def device(self, name: str) -> Device:
        device = self._by_name.get(name)
        if device is not None:
            return device
        known = ", ".join(self.names) or "none"
        raise InputError(f"the fleet has no device {name!r}; its devices are: {known}")

    def data_device(self) -> str:
        """The device with the data: the one with `data = true`, else the first of tier device, else the
        first."""
        for device in self.devices:
            if device.data:
                return device.name
        for device in self.devices:
            if device.tier == "device":
                return device.name
        return self.devices[0].name

    def hops(self) -> tuple[Hop, ...]:
        """Every direct hop: both directions of each link, each member to and from its gateway."""
        return self._hops

    def route(self, source: str, dest: str) -> tuple[Hop, ...]:
        """The hops from source to dest: the route with the fewest hops, and among those the one whose slowest
        hop is fastest.

        The route is empty if both are the same device. Raises WeftError if there is no route.
        """
        routes = self._routes_from(source)
        if dest not in routes:
            from weft.fleet.routes import no_route

            self.device(dest)  # raises an error for an unknown name
            raise no_route(source, dest, routes)
        return routes[dest]

    def connected(self, source: str, dest: str) -> bool:
        """Whether there is a route at all. A device that is not in the fleet (yet) reaches nobody."""
        return source in self._by_name and dest in self._routes_from(source)

    def path_rate(self, source: str, dest: str, route: Route = "min") -> float:
        """Bytes per second from source to dest in the papers' cost models; infinite if both are the same
        device.

        `min` takes the slowest hop (cut-through), `store_and_forward` adds up the hops' times.
        """
        rates = [hop.bytes_per_s for hop in self.route(source, dest)]
        if not rates:
            return math.inf
        return min(rates) if route == "min" else 1 / sum(1 / rate for rate in rates)

    def path_latency(self, source: str, dest: str) -> float:
        """Seconds that an empty message takes from source to dest."""
        return sum(hop.latency_s for hop in self.route(source, dest))

    @cached_property
    def _hops(self) -> tuple[Hop, ...]:
        from weft.fleet.routes import direct_hops

        return direct_hops(self)

    @cached_property
    def hops_from(self) -> dict[str, list[int]]:
        """By device: the numbers of the hops that leave it."""
        leaving: dict[str, list[int]] = {}
        for number, hop in enumerate(self._hops):
            leaving.setdefault(hop.source, []).append(number)
        return leaving

    @cached_property
    def _by_name(self) -> dict[str, Device]:
        return {device.name: device for device in reversed(self.devices)}

    def _routes_from(self, source: str) -> dict[str, tuple[Hop, ...]]:
        from weft.fleet.routes import find_routes

        routes = self._routes.get(source)
        if routes is None:
            routes = self._routes[source] = find_routes(self, source)
        return routes

    @cached_property
    def _routes(self) -> dict[str, dict[str, tuple[Hop, ...]]]:
        """Routes computed so far, by source. A fleet never changes, so they stay right."""
        return {}
