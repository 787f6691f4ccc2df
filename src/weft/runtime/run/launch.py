"""Opens the fleet that a run shall use: emulated here, emulated in network namespaces, or real.

with open_crew(plan, Place(local=True), needed) as (crew, settings): ...
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec

from weft.errors import InputError, LostDevice
from weft.plans.plan import Plan
from weft.runtime.emulate.local import LocalFleet
from weft.runtime.emulate.namespaces import NamespaceFleet
from weft.runtime.emulate.roads import Shaping, involved
from weft.runtime.node.node import Node
from weft.runtime.run.jobs import Settings
from weft.runtime.wire.crew import Crew
from weft.runtime.wire.reach import reach
from weft.runtime.wire.session import Endpoints

START_S = 60.0  # for a node process to join, where it is spawned also to import PyTorch


@dataclass(frozen=True)
class Place:
    """Where a plan runs. At most one of `local`, `netns` and `join` is meant. Without them, the fleet is
    looked for where its keys say, or on the local network."""

    local: bool = False
    netns: bool = False
    join: tuple[str, ...] = ()
    group: str = "weft"
    config: str | None = None

    def __post_init__(self) -> None:
        if (self.local or self.netns) and self.join:
            raise InputError(
                "--local and --join exclude each other: is the fleet here or elsewhere?"
            )
        if self.emulated and self.config is not None:
            raise InputError(
                f"--zenoh-config {self.config} is for real nodes: leave it out with --local and --netns"
            )

    @property
    def emulated(self) -> bool:
        return self.local or self.netns


@contextlib.contextmanager
def open_crew(
    plan: Plan, place: Place, settings: Settings, also: tuple[str, ...] = ()
) -> Iterator[tuple[Crew, Settings]]:
    """A crew in which every device of the plan is present, and the settings that fit the place.

    `also` are devices that may get a part later: emulated ones are started, real ones may be absent.
    """
    devices = involved(plan.fleet, plan.devices)
    if place.emulated:
        names = tuple(dict.fromkeys((*devices, *also)))
        kind = NamespaceFleet(plan.fleet, names) if place.netns else LocalFleet(names)
        with kind as local:
            _await_children(local)
            shaping: Shaping = "latency" if place.netns else "fabric"
            yield (
                local.crew,
                replace(
                    settings,
                    shaping=shaping,
                    scratch=local.scratch,
                    same_clock=True,
                    machines=local,
                ),
            )
        return
    with open_nodes(place, plan.source) as crew:
        crew.wait_for(devices, settings.deadline_s)
        crew.settle(devices, settings.deadline_s)
        yield crew, replace(settings, paced=frozenset())


@contextlib.contextmanager
def open_nodes(place: Place, source: str) -> Iterator[Crew]:
    """A crew of real nodes. The source is started here if nobody else is it."""
    reached = reach(place.group, join=place.join, config=place.config)
    with Crew(reached, place.group) as crew, _here(crew, source, place, reached):
        yield crew


def open_crew_of(place: Place) -> Crew:
    """The real nodes of a place, whoever is there. This process is not one of them."""
    return Crew(reach(place.group, join=place.join, config=place.config), place.group)


def _await_children(local: LocalFleet) -> None:
    """Waits for all nodes to join; one that ended instead is reported with its own words."""
    waited = 0.0
    while True:
        local.check()
        try:
            local.crew.wait_for(local.names, 0.5)
            return
        except LostDevice:
            waited += 0.5
            if waited >= START_S:
                raise


@contextlib.contextmanager
def _here(crew: Crew, source: str, place: Place, reached: Endpoints) -> Iterator[None]:
    """The machine where the user calls Weft is a node too: the source, where nobody else is it."""
    with contextlib.suppress(LostDevice):
        crew.wait_for([source], 2.0)
    if source in crew.present:
        yield
        return
    stop = threading.Event()
    # It is a node of the owner's: with the owner's certificate it may have any name.
    endpoints = msgspec.structs.replace(reached, asks_only=False)
    with Node(source, endpoints, place.group) as node:
        thread = threading.Thread(target=node.serve, args=(stop,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(timeout=5.0)
