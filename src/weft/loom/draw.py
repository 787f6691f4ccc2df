"""One draw as plain data: a network, a fleet, a strategy, and what is done with them.

    draw(seed=1, index=7)             # always the same one
    as_text(draw), from_text(text)    # what --draw takes

A draw holds everything that it needs, so that it can be shrunk field by field and repeated alone.
"""

from __future__ import annotations

import random
from typing import Literal

import msgspec
from msgspec import Struct

from weft.errors import InputError
from weft.fleet.fleet import Fleet
from weft.fleet.trace import Moment
from weft.graph.optimizers.optimizer import NAMES
from weft.loom.fleets import draw_fleet, draw_limits, fast_fleet
from weft.loom.networks import LOSSES, Net, draw_net, draw_small_net, rough_bytes
from weft.loom.settings import draw_options, fitting, run_options, searches_long
from weft.plans import registry
from weft.plans.plan import Mode

Feature = Literal["", "adapt", "resume", "plan file", "trace"]
OPTIMIZERS = tuple(name for name in NAMES if name != "muon")  # muon takes matrices alone
MISTAKES = 0.05  # how often an option has a wrong value
WRONG = ("", "-1", "0", "1.5", "nobody", "none,", "999999999999")
FEATURES: tuple[Feature, ...] = ("adapt", "resume", "plan file", "trace")


class Draw(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What is planned and, with `steps`, really run."""

    net: Net
    fleet: Fleet
    strategy: str
    mode: Mode = "train"
    batch: int = 1
    options: dict[str, str] = {}
    wrong: str = ""  # an option with a value that it does not document: it must be refused
    optimizer: str = "sgd"
    loss: str = LOSSES[0]
    steps: int = 0  # minibatches, or answers, of a real run; 0: it is only planned and simulated
    feature: Feature = ""
    trace: tuple[Moment, ...] = ()
    kill: str = ""  # a device that dies after the first minibatch
    seed: int = 0  # of weights and samples


def draw(seed: int, index: int, only: tuple[str, ...] = ()) -> Draw:
    """A draw that is planned and simulated. `only` names the strategies it may have."""
    rng = random.Random(f"{seed}/{index}")
    name = rng.choice(only or registry.names())
    strategy = registry.get(name)
    kind = fitting(strategy)
    small = searches_long(strategy)
    net = draw_net(rng, seed, kind, small)
    fleet = draw_fleet(rng, kind, small)
    mode = rng.choice(strategy.modes)
    batch = rng.choice((1, 2, 3, 5, 8) if small else (1, 2, 3, 5, 8, 16, 32, 33, 64))
    optimizer = rng.choice(OPTIMIZERS)
    fleet = draw_limits(rng, fleet, rough_bytes(net, batch))
    options = draw_options(rng, strategy, net, fleet, batch)
    wrong = rng.choice(tuple(strategy.options)) if rng.random() < MISTAKES else ""
    if wrong:
        options[wrong] = rng.choice(WRONG)
    return Draw(
        net=net,
        fleet=fleet,
        strategy=name,
        mode=mode,
        batch=batch,
        options=options,
        wrong=wrong,
        optimizer=optimizer,
        loss=rng.choice(LOSSES),
        seed=seed,
    )


def draw_run(seed: int, index: int, only: tuple[str, ...] = ()) -> Draw:
    """A draw that is really run: a small network on fast devices, so that it takes about a second."""
    rng = random.Random(f"{seed}/run/{index}")
    name = rng.choice(only or registry.names())
    strategy = registry.get(name)
    kind = fitting(strategy)
    mode = rng.choice(strategy.modes)
    net = draw_small_net(rng, seed, kind)
    fleet = fast_fleet(rng, kind)
    batch = rng.choice((1, 2, 3, 4, 6, 8))
    feature: Feature = rng.choice(("", "", "", *FEATURES)) if mode == "train" else ""
    if mode == "infer" and rng.random() < 0.2:
        feature = "plan file"
    trace = draw_trace(rng, fleet) if feature == "trace" else ()
    kill = rng.choice(fleet.names) if not feature and rng.random() < 0.1 else ""
    return Draw(
        net=net,
        fleet=fleet,
        strategy=name,
        mode=mode,
        batch=batch,
        options={**draw_options(rng, strategy, net, fleet, batch), **run_options(rng, strategy)},
        optimizer=rng.choice(OPTIMIZERS),
        loss=rng.choice(LOSSES),
        steps=rng.choice((2, 4, 6)),
        feature=feature,
        trace=trace,
        kill=kill,
        seed=rng.randrange(1000),
    )


def draw_trace(rng: random.Random, fleet: Fleet) -> tuple[Moment, ...]:
    """Small changes of devices' speeds and of links during the run."""
    moments = []
    for at in sorted(rng.uniform(0, 0.5) for _ in range(rng.randint(1, 3))):
        if fleet.link and rng.random() < 0.5:
            link = rng.choice(fleet.link)
            moments.append(Moment(at, link=link.between, up_mbps=rng.uniform(500, 2000)))
        else:
            device = rng.choice(fleet.names)
            moments.append(Moment(at, device=device, slowdown=rng.uniform(1.0, 2.0)))
    return tuple(moments)


def as_text(drawn: Draw) -> str:
    """A draw as one line of JSON, for a command."""
    return msgspec.json.encode(drawn).decode()


def from_text(text: str) -> Draw:
    """The draw that a line of JSON describes."""
    try:
        return msgspec.json.decode(text, type=Draw)
    except msgspec.MsgspecError as error:
        raise InputError(f"--draw is not a draw: {error}") from None
