"""What a policy sees of a run, and what it may ask for: plain records, the same for a simulated city
and a live run.

    decision = policy.decide(seen)      # None: go on as it is

A policy decides for one client and its servers: who is the worker, where the network is cut, how
many minibatches are in flight. It keeps whatever memory it wants; it opens nothing and sends nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from msgspec import Struct

from weft.codecs.registry import CodecName
from weft.fleet.fleet import Tier
from weft.plans.plan import Plan


class Setting(Struct, frozen=True):
    """How client and worker share the network."""

    worker: str | None  # None: the client trains alone
    cut: int  # layers 0..cut-1 are the client's
    in_flight: int = 1
    codec: CodecName = "none"  # for activations and their gradients


class Server(Struct, frozen=True):
    """What was last measured of a server that is in reach."""

    name: str
    slowdown: float  # its seconds over those of the profile; load included
    up_bytes_per_s: float  # client to server
    down_bytes_per_s: float
    rtt_s: float  # propagation there and back, without transmission
    tier: Tier = "edge"
    stays_s: float = math.inf  # how long it will be in reach, as far as the client can tell
    over: int = 1  # minibatches behind these numbers: how far chance is averaged out
    shared: bool = False  # both ways are one channel, such as a Wi-Fi's


class Seen(Struct, frozen=True):
    """One look at a run: what has happened since the last one."""

    step: int  # minibatches done
    now_s: float  # since the run began
    setting: Setting
    period_s: float  # measured, per minibatch, changes of setting left out; 0 before the first
    servers: tuple[Server, ...]  # those in reach; empty: nobody is there
    lost: bool = False  # the worker is out of reach or dead
    # Answers to the probe that the last decision asked for. A run may probe by itself before the first
    # minibatch and when the worker is lost; where it has not, policies go by `servers`.
    probed: tuple[Server, ...] = ()
    faster: tuple[str, ...] = ()  # servers that have told us since then that they got faster
    # Before the first minibatch: where the weights lie already. What stays there need not be moved.
    placed: Setting | None = None


class Decision(Struct, frozen=True):
    """What a policy asks for."""

    setting: Setting
    why: str  # for people: goes into the run's events
    # Train the test network on every server in reach while training goes on; the answers are in the
    # next look. The setting may stay as it is.
    probe: bool = False
    profile: bool = False  # measure layer by layer on client and worker first, training stopped


class Policy(Protocol):
    """Asked before the first minibatch (step 0, the client alone), then every `every` minibatches, and
    at once when the worker is lost."""

    every: int  # minibatches between two looks

    def decide(self, seen: Seen) -> Decision | None: ...


Labels = Literal["worker", "home"]
Fits = Callable[[Setting], bool]  # whether client and worker have the memory for a setting


def always_fits(setting: Setting) -> bool:
    """Where nobody's memory is limited."""
    return True


@dataclass(frozen=True)
class OnlineRequest:
    """What a live run tells the strategy whose policy shall watch it."""

    plan: Plan
    options: Mapping[str, object]
    # Minibatches between two looks; None: as many as the policy itself wants, times `scale`. A live run
    # has hundreds of minibatches where the papers have ten thousands.
    every: int | None = None
    scale: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Online:
    """A policy for a live run, and what the run must know to ask it."""

    policy: Policy
    reference: str  # the server whose times the policy's costs are: others are so many times slower
    standby: str = "auto"  # auto | none | a server that keeps a copy of the worker's layers
    labels: Labels = "worker"  # where the loss is computed
    profiled: int = 100  # minibatches of a layer-by-layer profile, where a policy wants one
