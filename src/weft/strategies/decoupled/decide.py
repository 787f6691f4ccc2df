"""Decides which classes each peer holds, and computes what its network costs.

    decoupled(task).sets              # 4 devices, 10 classes: the paper's 4N_5Cls

`decoupled+` gives classes by speed and memory. `fedavg` gives the whole network to every device.
strategy.py makes plans from these decisions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from weft.errors import InputError
from weft.plans import options
from weft.plans.task import Task
from weft.strategies.decoupled.parts import Parts, parts_of
from weft.strategies.decoupled.settings import check_filters
from weft.strategies.decoupled.topology import (
    TOPOLOGIES,
    ClassSets,
    by_speed,
    checked,
    dealt,
    literal,
    overlapping,
    topology,
)

COPIES = 3  # of every weight in memory: the weight, its gradient, its momentum
PLUS_OWNERS = 3.2  # peers that hold a class, on average: four peers hold nearly all classes each
FEWER_OWNERS = (3.2, 2.6, 2.0)  # tried where a minibatch would take too long


@dataclass(frozen=True)
class Chosen:
    """The classes of each device, and what kind of plan it will be."""

    sets: Mapping[str, tuple[int, ...]]  # classes by device
    parts: Parts | None  # None: every device has the whole network
    plus: bool = False  # decoupled+: its filters, its last rounds, and no peer waits

    @property
    def whole(self) -> bool:
        """Whether each device has the whole network."""
        return self.parts is None


def decoupled(task: Task, parts: Parts | None = None) -> Chosen:
    """The paper's decision: classes as the user set them, by overlap, or equal rows over all devices. `parts`
    are computed if they are not given."""
    names = peers_of(task)
    plain = parts or parts_of(task, plus=False)
    return Chosen(_by_device(names, class_sets(task, len(names))), plain)


def decoupled_plus(task: Task, parts: Parts, owners: float = PLUS_OWNERS) -> Chosen:
    """More classes for faster devices with more memory; InputError if no device can hold one class.

    As in the paper there are no more peers than classes; here they are the fastest devices. A class is held
    by `owners` peers on average.
    """
    names = peers_of(task)
    if "classes" in task.options or "overlap" in task.options:
        return Chosen(_by_device(names, class_sets(task, len(names))), parts, plus=True)
    speeds = [1 / peer_seconds(task, name, parts.work(1)) for name in names]
    able = [most_classes(task, name, parts) for name in names]
    kept = [i for i, most in enumerate(able) if most > 0]
    if not kept:
        raise InputError(
            f"no device has the memory for the shared layers of {task.profile.model} and one class"
        )
    # Links by number name every device. Else a slow device that nobody needs would only prolong the run.
    if task.options.get("topology", "ring") in TOPOLOGIES:
        kept = sorted(sorted(kept, key=lambda i: -speeds[i])[: parts.classes])
    sets = by_speed(
        parts.classes, [speeds[i] for i in kept], [able[i] for i in kept],
        copies=min(owners, len(kept)),
    )  # fmt: skip
    return Chosen(_by_device([names[i] for i in kept], sets), parts, plus=True)


def lighter(task: Task) -> Iterator[Chosen]:
    """What `decoupled+` may choose: the network taken apart, ever lighter, and at last the whole network.

    Filters go first: in one place, more filters in late layers bring nothing that can be seen. Then a class
    has fewer owners, and then the classes and filters are those of `decoupled`. A class keeps at least one
    filter, so where a layer has fewer filters than a peer has classes, the structures compute more than the
    layer did. Then the network stays whole, unless the user says how it is to be taken apart.
    """
    yield decoupled_plus(task, parts_of(task, plus=True))
    plain = parts_of(task, plus=False)
    for owners in FEWER_OWNERS:
        yield decoupled_plus(task, plain, owners)
    yield replace(decoupled(task, plain), plus=True)
    if not {"last", "filters"} & task.options.keys():
        yield replace(fedavg(task), plus=True)


def fedavg(task: Task) -> Chosen:
    """The baseline: each device has the whole network and the samples of its classes."""
    check_filters(task)
    names = peers_of(task)
    return Chosen(_by_device(names, class_sets(task, len(names))), None)


def _by_device(names: Sequence[str], sets: ClassSets) -> dict[str, tuple[int, ...]]:
    return {name: tuple(held) for name, held in zip(names, sets, strict=False)}


def peers_of(task: Task) -> tuple[str, ...]:
    """All devices that the source can reach."""
    return tuple(n for n in task.fleet.names if task.fleet.connected(task.source, n))


def classes_of(task: Task) -> int:
    """The number of classes: how many numbers (float32) the last layer gives for a sample."""
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
    """The classes of each peer; InputError if the options contradict or need more devices."""
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
    """Seconds of one minibatch of a peer's network on a device; `shares` as in `layer_shares`."""
    times, batch = task.profile.devices[device], task.batch
    return sum(
        share * (times.forward(i, i, batch) + times.backward(i, i, batch) + times.update(i, i))
        for i, share in enumerate(shares)
    )


def peer_bytes(task: Task, parts: Parts, held: int) -> int:
    """Bytes of a peer's network: weights, gradients, momentum and activations."""
    return COPIES * parts.weights.total(held) + task.batch * parts.saved.total(held)


def most_classes(task: Task, device: str, parts: Parts) -> int:
    """How many classes fit into a device's memory; 0 if not even one fits with the shared layers."""
    limit = task.fleet.device(device).memory_mb
    if limit is None:
        return parts.classes
    counts = range(1, parts.classes + 1)
    return max((k for k in counts if peer_bytes(task, parts, k) <= limit * 1e6), default=0)


def layer_shares(task: Task, chosen: Chosen) -> dict[str, list[float]]:
    """By device: the share of each layer's work that its network needs (1.0: the whole layer)."""
    parts = chosen.parts
    everything = [1.0] * len(task.profile.layers)
    return {
        name: everything if parts is None else parts.work(len(held))
        for name, held in chosen.sets.items()
    }


def neighbours(task: Task, chosen: Chosen) -> dict[str, list[str]]:
    """By device: the devices with which it exchanges weights."""
    names = list(chosen.sets)
    near = topology(task.options.get("topology", "ring"), len(names))
    return {names[p]: sorted(names[q] for q in around) for p, around in near.items()}
