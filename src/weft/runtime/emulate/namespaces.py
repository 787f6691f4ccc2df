"""The root variant of the emulated fleet: every device in its own network namespace.

Each link of the fleet is a veth pair whose ends are shaped by `tc tbf`, so the kernel's real TCP
carries the traffic. Every namespace also has a second, unshaped interface to a bridge here, over which
the run talks to its nodes. The fabric still adds the latency.
"""

from __future__ import annotations

import os
import secrets
import subprocess

from weft.errors import InputError, WeftError
from weft.fleet.fleet import Fleet
from weft.runtime.emulate.local import LocalFleet
from weft.runtime.wire.session import Endpoints, free_endpoint

MANAGEMENT = "10.213"  # of the bridges' networks; links get 10.214.<link>.{1,2}


class NamespaceFleet(LocalFleet):
    """A LocalFleet whose nodes are in network namespaces. Needs root and iproute2."""

    def __init__(self, fleet: Fleet, names: tuple[str, ...]) -> None:
        if os.name != "posix" or os.geteuid() != 0:
            raise InputError("--netns needs root (it makes network namespaces); try --local")
        if fleet.medium:
            raise InputError("--netns has no shared media yet; use --local for this fleet")
        super().__init__(names)
        self._fleet = fleet
        self._tag = secrets.token_hex(2)
        self._made: list[str] = []
        self._bridge = f"wf{self._tag}"
        # an own network, so that two fleets on one machine rarely collide
        self._network = f"{MANAGEMENT}.{int(self._tag, 16) % 256}"
        self._addresses: dict[str, list[str]] = {name: [] for name in names}
        self._peers: dict[str, list[str]] = {name: [] for name in names}

    def lay_out(self) -> None:
        self._build()
        self.endpoint = free_endpoint(f"{self._network}.1")

    def space(self, name: str) -> str:
        return f"weft-{self._tag}-{self.names.index(name)}"

    def namespace(self, name: str) -> str | None:
        return self.space(name)

    def endpoints(self, name: str) -> Endpoints:
        """A node listens on its ends of the links, and connects to the other ends and to the run."""
        listen = tuple(f"tcp/{address}:7447" for address in self._addresses[name])
        join = tuple(f"tcp/{address}:7447" for address in self._peers[name])
        return Endpoints(
            join=(self.endpoint, *join), listen=listen or ("tcp/127.0.0.1:0",), gossip=False
        )

    def close(self) -> None:
        super().close()
        # The kernel removes a namespace some time later, but its connection to the bridge at once.
        for i, _ in enumerate(self._made):
            _ip("link", "del", self._way(i), check=False)
        for space in self._made:
            _ip("netns", "del", space, check=False)
        _ip("link", "del", self._bridge, check=False)
        self._made = []

    def _way(self, i: int) -> str:
        """This side's end of the connection from the i-th namespace to the bridge."""
        return f"wm{self._tag}{i}"

    def _build(self) -> None:
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("addr", "add", f"{self._network}.1/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        for i, name in enumerate(self.names):
            space = self.space(name)
            _ip("netns", "add", space)
            self._made.append(space)
            _ip("-n", space, "link", "set", "lo", "up")
            outer, inner = self._way(i), "manage"
            _ip("link", "add", outer, "type", "veth", "peer", "name", inner, "netns", space)
            _ip("link", "set", outer, "master", self._bridge, "up")
            _ip("-n", space, "addr", "add", f"{self._network}.{i + 2}/24", "dev", inner)
            _ip("-n", space, "link", "set", inner, "up")
        for i, link in enumerate(self._fleet.link):
            if set(link.between) <= set(self.names):
                self._link(i, link.between, (link.up_mbps, link.down_mbps))

    def _link(self, i: int, between: tuple[str, str], mbps: tuple[float, float]) -> None:
        device = f"link{i}"
        spaces = [self.space(name) for name in between]
        _ip("-n", spaces[0], "link", "add", device, "type", "veth", "peer", "name", device,
            "netns", spaces[1])  # fmt: skip
        for end, (space, rate) in enumerate(zip(spaces, mbps, strict=True)):
            address = f"10.214.{i}.{end + 1}"
            _ip("-n", space, "addr", "add", f"{address}/24", "dev", device)
            _ip("-n", space, "link", "set", device, "up")
            # A burst of a few packets keeps the rate exact; the queue must hold a window of TCP.
            _run("ip", "netns", "exec", space, "tc", "qdisc", "add", "dev", device, "root", "tbf",
                 "rate", f"{rate:g}mbit", "burst", "32kb", "latency", "400ms")  # fmt: skip
            self._addresses[between[end]].append(address)
        self._peers[between[1]].append(f"10.214.{i}.1")


def _ip(*arguments: str, check: bool = True) -> None:
    _run("ip", *arguments, check=check)


def _run(*command: str, check: bool = True) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except FileNotFoundError:
        raise WeftError(f"{command[0]} is not installed; --netns needs iproute2") from None
    if check and done.returncode:
        raise WeftError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
