"""Who takes part in a plan of coopai+: some devices behind the gateway, and perhaps the gateway."""

from __future__ import annotations

from typing import NamedTuple


class Crew(NamedTuple):
    """So many devices, the fastest ones, and perhaps the gateway. It sits in the middle: rows that it
    shares with a neighbour cross the medium once, those of two other devices twice."""

    devices: int
    gateway: bool = False

    @property
    def size(self) -> int:
        return self.devices + self.gateway

    @property
    def seat(self) -> int | None:
        """The gateway's place in the order of rows."""
        return (self.devices + 1) // 2 if self.gateway else None

    @property
    def places(self) -> list[int]:
        """The devices in the order of their rows; -1: the gateway."""
        found = list(range(self.devices))
        if self.seat is not None:
            found.insert(self.seat, -1)
        return found
