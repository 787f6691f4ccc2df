"""What is known of a network on real nodes: measured once, kept, and measured again where it is missing.

    known = known_profile(graph, fleet, place, batch=32, training=True)
    known.profile             # for a plan
    known.notes               # how old the times of each device are

Times are kept for each graph and node under $XDG_CACHE_HOME/weft/measured. A node that was moved to another
host, or runs another version of Weft, is measured again. `weft profile --join` measures all of them anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Struct

from weft.codecs.registry import CODECS
from weft.errors import LostDevice
from weft.fleet.fleet import Fleet
from weft.graph.capture.cache import cache_folder, keep
from weft.graph.network import Graph, encode
from weft.graph.optimizers.optimizer import Optimizer
from weft.plans.derive import derive_profile, graph_profile
from weft.plans.profile import DeviceTimes, Profile
from weft.runtime.run.launch import Place, open_crew_of, open_nodes
from weft.runtime.run.measuring.discover import Found, FoundDevice, found_links, somebody
from weft.runtime.run.measuring.survey import MessageTimes, Say, Survey, known_share
from weft.version import __version__

ONE_THREAD = "cpu x1"  # what a node computes with where nothing else is said
WAIT_S = 5.0  # for the fleet's nodes to be seen


class Kept(Struct, frozen=True):
    """One node's times, and when they were measured (seconds since 1970)."""

    times: DeviceTimes
    measured_at: float
    version: str = __version__


@dataclass(frozen=True)
class KnownProfile:
    """A profile of real nodes, and a line about where its times come from."""

    profile: Profile
    notes: tuple[str, ...] = ()


class Measurement:
    """What is measured: a network, at some batch sizes, in one mode. It names the files that are kept."""

    def __init__(
        self, graph: Graph, batch: int, training: bool, optimizer: Optimizer | None = None
    ) -> None:
        self.graph, self.training = graph, training
        self.optimizer = optimizer or Optimizer()
        self.fresh: dict[str, DeviceTimes] = {}  # what was measured by this record, by node
        # A batch norm in training needs two samples.
        least = min(2, batch) if training else 1
        self.sizes = tuple(sorted({max(least, batch // n) for n in (16, 4, 1)}))
        decides = [self.sizes, training, self.optimizer.name, encode(graph), sorted(CODECS)]
        self.digest = hashlib.sha256(msgspec.msgpack.encode(decides)).hexdigest()

    def of(self, survey: Survey, names: Sequence[str], costs: Mapping[str, MessageTimes]) -> None:
        """Measures the layers on these nodes, and keeps the result."""
        times = survey.layers(
            self.graph, names, sizes=self.sizes, training=self.training, optimizer=self.optimizer
        )
        for name, measured in times.items():
            compute = survey.hosts[name].compute
            self.keep(name, with_messages(measured, costs.get(name)), compute)

    def keep(self, name: str, times: DeviceTimes, compute: str = ONE_THREAD) -> None:
        """Keeps a node's times for later runs, unless the cache is off. `compute`: what it computed with."""
        self.fresh[name] = times
        if os.environ.get("WEFT_CACHE", "").lower() != "off":
            keep(self._path(name, compute), msgspec.json.encode(Kept(times, time.time())))

    def kept(self, name: str, host: str, compute: str = ONE_THREAD) -> Kept | None:
        """A node's times of an earlier measurement on this host, with what it computes with now."""
        if os.environ.get("WEFT_CACHE", "").lower() == "off":
            return None
        try:
            kept = msgspec.json.decode(self._path(name, compute).read_bytes(), type=Kept)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return None
        fits = len(kept.times.forward_s) == len(self.graph.layers) and kept.version == __version__
        return kept if fits and kept.times.host == host else None

    def _path(self, name: str, compute: str) -> Path:
        setting = "" if compute == ONE_THREAD else "-" + compute.replace(" ", "").replace(":", "")
        return cache_folder("measured") / f"{self.digest[:40]}-{name}{setting}.json"


def with_messages(times: DeviceTimes, cost: MessageTimes | None) -> DeviceTimes:
    """The times with the cost of messages. Under a CPU quota their CPU time takes longer, as all does."""
    if cost is None:
        return times
    share = known_share(times.share)
    return msgspec.structs.replace(
        times, message_s=cost.message_s / share, byte_s=cost.byte_s / share
    )


def known_profile(
    graph: Graph,
    fleet: Fleet,
    place: Place,
    *,
    batch: int,
    training: bool,
    optimizer: Optimizer | None = None,
    say: Say = lambda text: None,
) -> KnownProfile:
    """A profile of the fleet's real nodes: kept times, and new ones where nothing is known. A device that is
    not there has the times that follow from its gflops."""
    measurement = Measurement(graph, batch, training, optimizer)
    kept: dict[str, Kept] = {}
    with open_nodes(place, fleet.data_device()) as crew:
        with contextlib.suppress(LostDevice):
            crew.wait_for(fleet.names, WAIT_S)
        present = [name for name in fleet.names if name in crew.present]
        survey = Survey(crew, present, say)
        for name in present:
            there = survey.hosts[name]
            times = measurement.kept(name, there.host, there.compute)
            if times is not None:
                kept[name] = times
        new = [name for name in present if name not in kept]
        if new:
            measurement.of(survey, new, survey.messages(new))
    devices = {name: k.times for name, k in kept.items()} | measurement.fresh
    absent = [name for name in fleet.names if name not in devices]
    if absent:
        derived = derive_profile(graph, fleet.within(absent))
        devices |= derived.devices
    ordered = {name: devices[name] for name in fleet.names}
    notes = _notes(kept, new, absent)
    say(f"times of {graph.name}: {'; '.join(notes)}")
    return KnownProfile(graph_profile(graph, ordered), notes)


@dataclass(frozen=True)
class MeasuredFleet:
    """Real nodes as a fleet, with the measured times of a network on them."""

    fleet: Fleet
    profile: Profile


def measured_fleet(
    graph: Graph,
    place: Place,
    *,
    batch: int,
    training: bool,
    optimizer: Optimizer | None = None,
    wait: float = 2.0,
    say: Say = lambda text: None,
) -> MeasuredFleet:
    """Measures all nodes that are there: layers, links and messages. The times are kept for later runs."""
    measurement = Measurement(graph, batch, training, optimizer)
    with open_crew_of(place) as crew:
        time.sleep(wait)  # nodes come at their own pace: nothing tells "that is all"
        names = somebody(crew, place, wait)
        survey = Survey(crew, names, say)
        pairs = survey.pairs()
        costs = {
            name: cost
            for pair in pairs
            for name, cost in zip(pair.link.between, pair.costs, strict=True)
        }
        measurement.of(survey, names, costs)
    devices = tuple(
        FoundDevice(name, w.cores, w.memory_mb, "", _gflops(graph, measurement.fresh[name], batch))
        for name, w in survey.hosts.items()
    )
    fleet = Found(devices, found_links(pairs)).fleet
    return MeasuredFleet(fleet, graph_profile(graph, measurement.fresh))


def _gflops(graph: Graph, times: DeviceTimes, batch: int) -> float | None:
    """Effective speed in this network's forward pass."""
    seconds = times.forward(0, len(graph.layers) - 1, batch)
    return graph.forward_flops * batch / seconds / 1e9 if seconds > 0 else None


def _notes(kept: Mapping[str, Kept], new: Sequence[str], absent: Sequence[str]) -> tuple[str, ...]:
    notes = [f"{', '.join(new)}: measured now"] if new else []
    notes += [
        f"{name}: measured {age(time.time() - k.measured_at)} ago" for name, k in kept.items()
    ]
    if absent:
        notes.append(f"{', '.join(absent)}: not there; times derived from gflops")
    return tuple(notes)


def age(seconds: float) -> str:
    """How long ago, in words."""
    for name, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {name}{'s' if count > 1 else ''}"
    return f"{max(0, int(seconds))} s"
