"""The devices that take part in a plan of coopai+: some behind the gateway, and possibly the gateway."""

from __future__ import annotations

from typing import NamedTuple


class Crew(NamedTuple):
    """The number of devices (the fastest ones are taken), and whether the gateway computes too.

    The gateway is in the middle. Rows that it shares with a neighbour cross the medium once; rows that two
    other devices share cross it twice.
    """

    devices: int
    gateway: bool = False

    @property
    def size(self) -> int:
        """The number of all that compute."""
        return self.devices + self.gateway

    @property
    def seat(self) -> int | None:
        """The gateway's place in the order of rows; None if it does not compute."""
        return (self.devices + 1) // 2 if self.gateway else None

    @property
    def places(self) -> list[int]:
        """The devices in the order of their rows; -1 is the gateway."""
        places = list(range(self.devices))
        if self.seat is not None:
            places.insert(self.seat, -1)
        return places
