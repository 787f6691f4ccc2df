"""Who has which classes, and what a peer's own network costs.

    decoupled(task).sets              # 4 devices, 10 classes: the paper's 4N_5Cls

`decoupled+` gives classes by speed and memory. `fedavg` gives everybody the whole network. strategy.py makes
plans of this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weft.errors import InputError
from weft.plans import options
from weft.plans.task import Task
from weft.strategies.decoupled.parts import Parts, parts_of
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
    parts: Parts | None  # None: every device has the whole network
    plus: bool = False  # the filters and the tail of decoupled+, and nobody waits

    @property
    def whole(self) -> bool:
        return self.parts is None


def decoupled(task: Task) -> Chosen:
    """The paper's: classes as given, by overlap, or in equal rows over all devices."""
    parts, names = parts_of(task, plus=False), peers_of(task)
    return Chosen(_by_device(names, class_sets(task, len(names))), parts)


def decoupled_plus(task: Task) -> Chosen:
    """Classes by speed and memory."""
    parts, names = parts_of(task, plus=True), peers_of(task)
    if "classes" in task.options or "overlap" in task.options:
        return Chosen(_by_device(names, class_sets(task, len(names))), parts, plus=True)
    speeds = [1 / peer_seconds(task, name, parts.work(1)) for name in names]
    able = [most_classes(task, name, parts) for name in names]
    kept = [i for i, most in enumerate(able) if most > 0]
    if not kept:
        raise InputError(
            f"no device has the memory for the shared layers of {task.profile.model} and one class"
        )
    sets = by_speed(
        classes_of(task), [speeds[i] for i in kept], [able[i] for i in kept],
        copies=min(PLUS_OWNERS, len(kept)),
    )  # fmt: skip
    return Chosen(_by_device([names[i] for i in kept], sets), parts, plus=True)


def fedavg(task: Task) -> Chosen:
    """The baseline: the whole network everywhere, each device with the samples of its classes."""
    names = peers_of(task)
    return Chosen(_by_device(names, class_sets(task, len(names))), None)


def _by_device(names: Sequence[str], sets: ClassSets) -> dict[str, tuple[int, ...]]:
    return {name: tuple(held) for name, held in zip(names, sets, strict=False)}


def peers_of(task: Task) -> tuple[str, ...]:
    """Every device that the source can reach."""
    return tuple(n for n in task.fleet.names if task.fleet.connected(task.source, n))


def classes_of(task: Task) -> int:
    """The network's logits: what its last layer gives, as float32."""
    if task.graph is not None:
        shape = task.graph.values[task.graph.output].shape
        if len(shape) != 2:
            raise InputError(
                f"{task.graph.name} gives {'x'.join(map(str, shape[1:]))} numbers for a sample; peers that "
                "learn different classes need a network that gives one row of logits"
            )
        return shape[-1]
    return task.profile.layers[-1].output_bytes // 4


def class_sets(task: Task, peers: int) -> ClassSets:
    """Which classes each peer has."""
    classes = classes_of(task)
    if "classes" in task.options and "overlap" in task.options:
        raise InputError(
            f"--set classes={task.options['classes']} and --set overlap={task.options['overlap']} both say "
            "which classes a peer has; give one of them"
        )
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


def peer_seconds(task: Task, device: str, shares: Sequence[float]) -> float:
    """One minibatch of a sub-model on a device."""
    times, batch = task.profile.devices[device], task.batch
    return sum(
        share * (times.forward(i, i, batch) + times.backward(i, i, batch) + times.update(i, i))
        for i, share in enumerate(shares)
    )


def peer_bytes(task: Task, parts: Parts, held: int) -> int:
    """Weights, gradients, momentum and activations of a sub-model."""
    return COPIES * parts.weights.total(held) + task.batch * parts.saved.total(held)


def most_classes(task: Task, device: str, parts: Parts) -> int:
    """How many classes fit into a device's memory; 0: not even the shared layers and one."""
    limit = task.fleet.device(device).memory_mb
    if limit is None:
        return parts.classes
    counts = range(1, parts.classes + 1)
    return max((k for k in counts if peer_bytes(task, parts, k) <= limit * 1e6), default=0)


def layer_shares(task: Task, chosen: Chosen) -> dict[str, list[float]]:
    """By device, the share of each dense layer's work that its own network takes."""
    parts = chosen.parts
    everything = [1.0] * len(task.profile.layers)
    return {
        name: everything if parts is None else parts.work(len(held))
        for name, held in chosen.sets.items()
    }


def neighbours(task: Task, chosen: Chosen) -> dict[str, list[str]]:
    """Who exchanges structures with whom."""
    names = list(chosen.sets)
    near = topology(task.options.get("topology", "ring"), len(names))
    return {names[p]: sorted(names[q] for q in around) for p, around in near.items()}
