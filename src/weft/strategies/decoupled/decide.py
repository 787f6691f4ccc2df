"""Who has which classes, and what a peer's own network costs.

    decoupled(task).sets              # 4 devices, 10 classes: the paper's 4N_5Cls

`decoupled+` gives classes by speed and memory. `fedavg` gives everybody the whole network. strategy.py makes
plans of this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from weft.errors import InputError
from weft.plans import options
from weft.plans.task import Task
from weft.strategies.decoupled.topology import (
    ClassSets,
    by_speed,
    checked,
    dealt,
    literal,
    overlapping,
    topology,
)

COPIES = 3  # of every weight in memory: itself, its gradient, momentum
FILTERS = 10  # percent: the paper's
PLUS_FILTERS = (
    10,
    19,
)  # decoupled+: in its first decoupled layer and in later ones, which are cheap
PLUS_TAIL = 4  # last rounds
PLUS_OWNERS = 3.2  # of a class: nearly all classes at each of four peers
OPTIONS = {
    "classes": "sets by peer, such as 0,1,2/2,3,4 (devices in the fleet's order)",
    "overlap": "classes that a peer shares with either neighbour; it holds twice as many",
    "topology": "ring | mesh | links by number such as 0-1,1-2",
    "last": "convolutions that are decoupled, counted from the end",
    "filters": "percent of a layer's filters that a class keeps, or one for each layer: 10,19,19",
    "rounds": "exchanges",
    "steps": "minibatches of a peer in each round",
    "tail": "last rounds whose mean the network at the end is",
    "data": "replicate | split: whether owners of a class share its samples out",
    "shared": "ring | gossip: how the shared layers are averaged",
}


@dataclass(frozen=True)
class Chosen:
    """Who has which classes, and of which kind the plan is."""

    sets: Mapping[str, tuple[int, ...]]  # classes by device
    plus: bool = False  # the filters and the tail of decoupled+, and nobody waits
    whole: bool = False  # every device has the whole network


def decoupled(task: Task) -> Chosen:
    """The paper's: classes as given, by overlap, or in equal rows over all devices."""
    names = peers_of(task)
    return Chosen(_by_device(names, class_sets(task, len(names))))


def decoupled_plus(task: Task) -> Chosen:
    """Classes by speed and memory."""
    names = peers_of(task)
    if "classes" in task.options or "overlap" in task.options:
        return Chosen(_by_device(names, class_sets(task, len(names))), plus=True)
    share = structure_share(task, plus=True)
    speeds = [1 / peer_seconds(task, name, share(1)) for name in names]
    able = [most_classes(task, name, plus=True) for name in names]
    kept = [i for i, most in enumerate(able) if most > 0]
    if not kept:
        raise InputError(
            f"no device has the memory for the shared layers of {task.profile.model} and one class"
        )
    sets = by_speed(
        classes_of(task), [speeds[i] for i in kept], [able[i] for i in kept],
        copies=min(PLUS_OWNERS, len(kept)),
    )  # fmt: skip
    return Chosen(_by_device([names[i] for i in kept], sets), plus=True)


def fedavg(task: Task) -> Chosen:
    """The baseline: the whole network everywhere, each device with the samples of its classes."""
    names = peers_of(task)
    return Chosen(_by_device(names, class_sets(task, len(names))), whole=True)


def _by_device(names: Sequence[str], sets: ClassSets) -> dict[str, tuple[int, ...]]:
    return {name: tuple(held) for name, held in zip(names, sets, strict=False)}


def peers_of(task: Task) -> tuple[str, ...]:
    """Every device that the source can reach."""
    return tuple(n for n in task.fleet.names if task.fleet.connected(task.source, n))


def classes_of(task: Task) -> int:
    """The network's logits: what its last layer gives, as float32."""
    return task.profile.layers[-1].output_bytes // 4


def class_sets(task: Task, peers: int) -> ClassSets:
    classes = classes_of(task)
    if "classes" in task.options:
        sets = literal(task.options["classes"], classes)
    elif "overlap" in task.options:
        overlap = options.integer(task, "overlap", 1, high=max(classes // 2, 1))
        sets = overlapping(classes, overlap)
    else:
        sets = dealt(classes, min(peers, classes))
    if len(sets) > peers:
        raise InputError(
            f"the classes are for {len(sets)} peers, but only {peers} devices can be reached; "
            "set a larger overlap, or other classes"
        )
    return checked(sets, classes)


def filters_of(task: Task, *, plus: bool) -> list[int]:
    """Percent of the filters that a class keeps, by decoupled layer."""
    count = len(task.profile.layers)
    # All but the head and one shared layer may be decoupled; a profile does not say which convolve.
    last = options.integer(task, "last", max(1, min(3, count - 2)), high=max(count - 2, 1))
    first, later = PLUS_FILTERS if plus else (FILTERS, FILTERS)
    return options.integers(task, "filters", [first, *[later] * (last - 1)], high=100)


def structure_share(task: Task, *, plus: bool = False) -> Callable[[int], list[float]]:
    """By layer, the share of the dense layer's work that `held` classes take."""
    count = len(task.profile.layers)
    kept = [percent / 100 for percent in filters_of(task, plus=plus)]

    def shares(held: int) -> list[float]:
        if count < 2:
            raise InputError(
                f"{task.profile.model} has only one layer; to decouple it needs one before its "
                "head: use fedavg"
            )
        pairs = pairwise([1.0, *kept])  # the first decoupled layer reads all shared channels
        before = [1.0] * (count - 1 - len(kept))
        return [*before, *(held * i * o for i, o in pairs), held * kept[-1] / classes_of(task)]

    return shares


def peer_seconds(task: Task, device: str, shares: Sequence[float]) -> float:
    """One minibatch of a sub-model on a device."""
    times, batch = task.profile.devices[device], task.batch
    return sum(
        share * (times.forward(i, i, batch) + times.backward(i, i, batch) + times.update(i, i))
        for i, share in enumerate(shares)
    )


def peer_bytes(task: Task, shares: Sequence[float]) -> float:
    """Weights, gradients, momentum and activations of a sub-model."""
    return sum(
        share * (COPIES * layer.param_bytes + task.batch * layer.saved_bytes)
        for layer, share in zip(task.profile.layers, shares, strict=True)
    )


def most_classes(task: Task, device: str, *, plus: bool = False) -> int:
    """How many classes fit into a device's memory; 0: not even the shared layers and one."""
    limit, classes = task.fleet.device(device).memory_mb, classes_of(task)
    share = structure_share(task, plus=plus)
    if limit is None:
        return classes
    fitting = [k for k in range(1, classes + 1) if peer_bytes(task, share(k)) <= limit * 1e6]
    return max(fitting, default=0)


def layer_shares(task: Task, chosen: Chosen) -> dict[str, list[float]]:
    """By device, the share of each dense layer's work that its own network takes."""
    share = structure_share(task, plus=chosen.plus)
    everything = [1.0] * len(task.profile.layers)
    return {
        name: everything if chosen.whole else share(len(held)) for name, held in chosen.sets.items()
    }


def neighbours(task: Task, chosen: Chosen) -> dict[str, list[str]]:
    """Who exchanges structures with whom."""
    names = list(chosen.sets)
    near = topology(task.options.get("topology", "ring"), len(names))
    return {names[p]: sorted(names[q] for q in around) for p, around in near.items()}
