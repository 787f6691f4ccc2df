"""The minibatches of a device that loads: from a data set that it has, or sent by the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from weft.data import batch_indices, load, owned_indices
from weft.data.batches import joint_indices
from weft.errors import InputError
from weft.graph.execute import TargetTotals
from weft.runtime.node.class_samples import ClassSamples
from weft.runtime.wire.fabric import Fabric
from weft.runtime.wire.frames import unpack_tensors
from weft.runtime.wire.messages import Job
from weft.stored import tensors_in

TARGET = "@"  # prefix for the targets of a minibatch that is sent; no input has such a name
# The inputs by name, and the targets: one, several by name, or none where the network only answers.
Minibatch = tuple[dict[str, Tensor], Tensor | dict[str, Tensor] | None]

COORDINATOR = (
    "@coordinator"  # whom a device waits for that waits for samples; no device has this name
)


class Samples(Protocol):
    """Where a device gets its minibatches from. Where several devices have data, it is its own share."""

    def minibatch(self, step: int) -> Minibatch: ...


class OwnSamples:
    """A data set on this machine. The samples of a minibatch depend only on its number."""

    def __init__(self, job: Job) -> None:
        assert job.data.name is not None
        self._set = load(job.data.name)
        if len(job.inputs) != 1:
            raise InputError(f"{job.data.name} feeds one input; the network has {len(job.inputs)}")
        self._job = job
        self._totals: TargetTotals | None = None
        if job.data.totals is not None:
            tensors = tensors_in(job.data.totals.state)
            self._totals = TargetTotals(job.data.totals.loss, tensors)
        self._last: tuple[int, Minibatch] | None = None

    def minibatch(self, step: int) -> Minibatch:
        if self._last is None or self._last[0] != step:
            job = self._job
            count, data = len(self._set.train_x), job.data
            if data.shares:
                index = owned_indices(count, data.shares, data.owner, step, data.seed)
            else:
                index = batch_indices(count, job.batch, step, data.seed)
            targets = {"target": self._set.train_y[index]}
            if self._totals is not None:
                whole = joint_indices(count, data.shares, step, data.seed) if data.shares else index
                targets |= self._totals({"target": self._set.train_y[whole]})
            self._last = (step, ({job.inputs[0]: self._set.train_x[index]}, targets))
        return self._last[1]


class FedSamples:
    """Minibatches that the run sends in advance. They do not use the emulated links."""

    def __init__(self, job: Job, fabric: Fabric) -> None:
        self._job = job
        self._mailbox = fabric.mailbox  # of this run
        self._last: tuple[int, Minibatch] | None = None
        # Called before a wait. The run sends samples when it hears how far the device is, and a quick device
        # uses them up between two of its regular reports.
        self.on_wait: Callable[[], None] = lambda: None

    def minibatch(self, step: int) -> Minibatch:
        if self._last is None or self._last[0] != step:
            key = (self._job.version, step, "feed", 0, 0, 0)
            if not self._mailbox.has(key):
                self.on_wait()
            letter = self._mailbox.take(
                key,
                max(self._job.deadline_s, 30.0),
                lambda: f"the samples of minibatch {step} from the coordinator",
                COORDINATOR,
            )
            tensors = unpack_tensors(letter.header, letter.payload)
            self._last = (step, self._sorted(tensors))
        return self._last[1]

    def _sorted(self, tensors: dict[str, Tensor]) -> Minibatch:
        """Inputs and targets apart. Older versions send a target without the prefix."""
        names = self._job.inputs
        inputs = {name: tensors[name] for name in names if name in tensors}
        targets = {
            name.removeprefix(TARGET): tensor
            for name, tensor in tensors.items()
            if name.startswith(TARGET) or (name == "target" and name not in names)
        }
        return inputs, targets or None


def by_name(target: Tensor | dict[str, Tensor] | None) -> dict[str, Tensor]:
    """The targets of a minibatch by the names that the loss has for them."""
    if target is None:
        return {}
    return {"target": target} if isinstance(target, Tensor) else target


def open_samples(job: Job, fabric: Fabric) -> Samples:
    """The samples that a job names: a data set by its name, some classes of it, or samples that the run
    sends."""
    if job.data.classes is not None:
        return ClassSamples(job)
    return OwnSamples(job) if job.data.name is not None else FedSamples(job, fabric)
