"""The decision: which device holds which shard. Plain data, JSON both ways, printable, drawable.

    plan = decide("chain", task)     # weft.planning.decide
    print(plan)                      # a table
    Plan.load("plan.json").save("again.json")

A plan carries the fleet and the profile that it was made for, so that it can be priced again without other
files.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
from msgspec import Struct

from weft.codecs.registry import CodecName, codec_named
from weft.errors import InputError, WeftError
from weft.fleet.fleet import Fleet
from weft.fleet.owners import Owner, first_samples
from weft.graph.network import Mode as Mode
from weft.plans.bounds import MAX_FILE, check_bounds
from weft.plans.peers import Peers
from weft.plans.profile import Profile
from weft.plans.rounds import Round
from weft.plans.swarm import Swarm
from weft.reading import read_bounded
from weft.showing import Shown

Objective = Literal["time", "energy", "money", "memory"]  # what a plan is chosen for
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)


class Part(Struct, frozen=True, omit_defaults=True):
    """The part of its layers that a shard computes. An empty part means all."""

    samples: int | None = None  # number of samples of the batch
    offset: int = 0  # the first sample
    rows: tuple[int, int] | None = None
    outputs: tuple[int, int] | None = None  # of a fully connected layer
    inputs: tuple[int, int] | None = None  # of a fully connected layer; the result is a partial sum
    units: tuple[int, ...] | None = None
    classes: tuple[int, ...] | None = None


class Shard(Struct, frozen=True):
    """A range of layers, or a part of it, on one device."""

    device: str
    layers: tuple[int, int]  # first and last, 0-based, both included
    part: Part = Part()


class Predicted(Struct, frozen=True, omit_defaults=True):
    """The simulator's prediction for a plan. Training plans have step_s, inference plans latency_s."""

    compute_s: dict[str, float]
    transfer_bytes: dict[str, int]  # by channel
    memory_bytes: dict[str, int]
    step_s: float | None = None
    latency_s: float | None = None
    # By device: the runtime's own time for messages, where the profile knows it.
    messages_s: dict[str, float] = {}

    @property
    def busy(self) -> dict[str, float]:
        """By device: seconds in which it computes or is busy with messages."""
        names = {**self.compute_s, **self.messages_s}
        return {n: self.compute_s.get(n, 0.0) + self.messages_s.get(n, 0.0) for n in names}

    @property
    def seconds(self) -> float:
        value = self.step_s if self.step_s is not None else self.latency_s
        assert value is not None
        return value


class Plan(Struct, Shown, frozen=True, kw_only=True):
    """Which device computes what, with the fleet and the profile that the plan was made for."""

    strategy: str
    model: str
    batch: int
    mode: Mode
    shards: tuple[Shard, ...]
    source: str  # the device that holds the data (training) or asks (inference)
    fleet: Fleet
    profile: Profile
    micro_batches: int = 1  # pieces that a minibatch is cut into
    in_flight: int = 1  # how many of them may be under way at once
    # Minibatches that a source without layers may feed before the first of them is done. 1 is serial, as in
    # the papers. With 2 the next samples cross the links while this minibatch is computed.
    ahead: int = 1
    stale: int = 0  # minibatches that a first stage may be ahead of its update: weights are stashed
    # Shards that compute nothing. They receive the holder's gradients, make the same updates, and can take
    # over at any moment.
    standby: tuple[Shard, ...] = ()
    codec: CodecName = "none"  # for activations and their gradients
    input_codec: CodecName = "none"  # for the samples: images of 256 levels lose nothing with int8
    gradient_codec: CodecName = "none"  # for gradients of weights that several devices hold
    # For a plan with lanes; see program/lower/order.py.
    schedule: Literal["staged", "eager"] = "staged"
    stream: bool = False  # gradients of shared layers are sent one by one, not block by block
    route: Literal["min", "store_and_forward"] = "min"
    # Which layers are meant; graph/sequence.py, graph/norms.py
    layering: Literal["depth", "sequence", "norms"] = "depth"
    rounds: tuple[Round, ...] = ()  # of a plan that cuts feature maps or vectors
    swarm: Swarm | None = None  # of a plan that spreads a network by units over lossy radio
    peers: Peers | None = None  # of devices that train networks of their own and exchange
    optimizer: str = "sgd"  # its state counts in memory
    decisions: dict[str, Any] = {}  # for people: no code reads them
    predicted: Predicted | None = None
    planning_s: float = 0.0
    # Where several devices have data of their own: their shares of the batch, one after the other. The
    # first of them is `source`. Empty: the source has all samples.
    owners: tuple[Owner, ...] = ()
    # Layers that begin with batch norms whose statistics all pieces of a minibatch share, and the bytes of
    # their sums. Empty: each piece has its own statistics.
    norms: tuple[tuple[int, int], ...] = ()
    objective: Objective = "time"  # what it was chosen for
    version: int = 0  # counts the plans of one run; messages carry it

    def __post_init__(self) -> None:
        for codec in (self.codec, self.input_codec, self.gradient_codec):
            codec_named(codec)  # an unknown name is refused, whoever made the plan
        if self.owners:
            _check_owners(self)

    @property
    def devices(self) -> tuple[str, ...]:
        """Every device with work, the sources first."""
        shards = (*self.shards, *self.standby)
        return tuple(dict.fromkeys([*self.sources, *(s.device for s in shards)]))

    @property
    def sources(self) -> tuple[str, ...]:
        """The devices with data."""
        return tuple(owner.device for owner in self.owners) or (self.source,)

    def owned_by(self, device: str) -> tuple[int, int]:
        """The first sample of the batch that a source has, and the one after its last."""
        if not self.owners:
            return 0, self.batch
        firsts = first_samples([owner.samples for owner in self.owners])
        place = self.sources.index(device)
        return firsts[place], firsts[place] + self.owners[place].samples

    def owner_of(self, sample: int) -> str:
        """The device that has a sample of the batch."""
        for device in self.sources:
            first, end = self.owned_by(device)
            if first <= sample < end:
                return device
        raise InputError(f"plan: sample {sample} of the batch of {self.batch} has no owner")

    def deciding(self, **decisions: Any) -> Plan:
        """The same plan with more decisions, which are shown to people."""
        return msgspec.structs.replace(self, decisions={**self.decisions, **decisions})

    def save(self, path: str | Path) -> None:
        Path(path).write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1))

    @staticmethod
    def load(path: str | Path) -> Plan:
        data = read_bounded(path, MAX_FILE, "plan file")
        try:
            plan = msgspec.json.decode(data, type=Plan)
            check_bounds(plan)
            return plan
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InputError(f"plan file {path} is not a plan: {error}") from None
        except InputError as error:
            raise InputError(f"plan file {path}: {error}") from None

    def draw(self, path: str | Path) -> None:
        """Draws which device holds what (PNG, SVG or PDF by the file's ending)."""
        if _DRAW is None:
            raise WeftError("no drawing function is set: import weft first")
        _DRAW(self, Path(path))

    def __str__(self) -> str:
        """A table if `weft` itself was imported; else one line."""
        return _line(self) if _TABLE is None else _TABLE(self)


def _check_owners(plan: Plan) -> None:
    names = [owner.device for owner in plan.owners]
    total = sum(owner.samples for owner in plan.owners)
    if len(set(names)) != len(names) or names[0] != plan.source:
        raise InputError(
            f"plan: owners are {', '.join(names)}; they must be different devices, {plan.source} first"
        )
    if total != plan.batch or any(owner.samples < 1 for owner in plan.owners):
        raise InputError(
            f"plan: its owners have {total} samples; each needs one, and the batch has {plan.batch}"
        )


_TABLE: Callable[[Plan], str] | None = None
_DRAW: Callable[[Plan, Path], None] | None = None


def show_with(table: Callable[[Plan], str], draw: Callable[[Plan, Path], None]) -> None:
    """Sets the functions that print and draw plans. `weft.api` calls it."""
    global _TABLE, _DRAW
    _TABLE, _DRAW = table, draw


def _line(plan: Plan) -> str:
    cost = "" if plan.predicted is None else f", {plan.predicted.seconds:.4g} s predicted"
    return f"{plan.strategy}: {plan.model}, batch {plan.batch}, on {', '.join(plan.devices)}{cost}"
