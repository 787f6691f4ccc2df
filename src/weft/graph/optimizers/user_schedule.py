"""From a scheduler of torch.optim to numbers for each minibatch, which are plain data.

    timetable = Timetable(rule, read_schedule("cosine"), steps=100, warmup=10)
    timetable.between(0, 50)        # the settings of minibatches 0 to 49, for devices

The scheduler is run here, on an optimizer without the network: a scheduler looks only at the number of steps
and at an optimizer's settings. One that looks at a metric (ReduceLROnPlateau) is told it by `metric`.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import torch
from torch.optim import lr_scheduler

from weft.errors import InputError
from weft.graph.optimizers.optimizer import Optimizer, arguments_of
from weft.graph.optimizers.schedule import Course, Number


class Scheduler(Protocol):
    """What Weft uses of a scheduler."""

    optimizer: torch.optim.Optimizer

    def step(self, metrics: Any = ..., /) -> None: ...


Make = Callable[[torch.optim.Optimizer], Any]
Given = str | type | Callable[[torch.optim.Optimizer], Any] | lr_scheduler.LRScheduler | None
Settings = dict[tuple[int, str], Number]  # by group and key

# The name of each scheduler, its class, and arguments that follow from the length of the run ("steps") or the
# learning rate ("lr") where they are not given.
NAMES: dict[str, tuple[str, dict[str, object]]] = {
    "step": ("StepLR", {}),
    "multistep": ("MultiStepLR", {}),
    "exponential": ("ExponentialLR", {}),
    "linear": ("LinearLR", {"start_factor": 1.0, "end_factor": 0.0, "total_iters": "steps"}),
    "polynomial": ("PolynomialLR", {"total_iters": "steps"}),
    "cosine": ("CosineAnnealingLR", {"T_max": "steps"}),
    "cosine-restarts": ("CosineAnnealingWarmRestarts", {}),
    "onecycle": ("OneCycleLR", {"max_lr": "lr", "total_steps": "steps"}),
    "cyclic": ("CyclicLR", {"max_lr": "lr"}),
    "plateau": ("ReduceLROnPlateau", {}),
}


class Timetable:
    """The settings of an optimizer at every minibatch of a run."""

    def __init__(self, rule: Optimizer, make: Make | None, *, steps: int, warmup: int = 0) -> None:
        if not 0 <= warmup <= steps:
            raise InputError(f"warmup {warmup} is not allowed; 0 to {steps} (all steps) are")
        self.warmup = warmup
        self._optimizer, self._shift = _stand_in(rule)
        self._keys = arguments_of(rule.name)
        self._first = self._settings()
        self._scheduler: Scheduler | None = None
        if make is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._scheduler = _made(make, self._optimizer)
            self._optimizer = self._scheduler.optimizer
        self._known: list[Settings] = []  # of the scheduler's steps so far
        self._changed: set[tuple[int, str]] = set()
        self._metrics: list[int] = []  # minibatches from which on a metric has counted
        self.at(steps - 1)  # what has no setting is refused before a run starts

    @property
    def looks(self) -> bool:
        """Whether it needs a metric, as ReduceLROnPlateau does."""
        return isinstance(self._scheduler, lr_scheduler.ReduceLROnPlateau)

    @property
    def wants_smaller(self) -> bool:
        """Whether the metric that it looks at is better where it is smaller."""
        return getattr(self._scheduler, "mode", "min") == "min"

    def lr(self, step: int) -> float:
        """The learning rate of the first group at one minibatch."""
        value = self.at(step).get((0, "lr"))
        return value if isinstance(value, float) else 0.0

    def metric(self, step: int, value: float) -> None:
        """Tells the scheduler a metric; its answer holds from minibatch `step` on.

        A metric that comes again for the same minibatch, after a run went back, counts once.
        """
        if self._scheduler is None or not self.looks or step in self._metrics:
            return
        self._extend(max(step - self.warmup, 0))
        self._metrics.append(step)
        self._scheduler.step(value)
        del self._known[max(step - self.warmup, 0) :]

    def between(self, first: int, last: int) -> tuple[Course, ...]:
        """The settings of minibatches first..last-1 that differ from the optimizer's own."""
        rows = [self.at(step) for step in range(first, last)]
        for row in rows:
            self._changed |= {key for key, value in row.items() if value != self._first[key]}
        return tuple(
            Course(group + self._shift, key, _points(first, [row[group, key] for row in rows]))
            for group, key in sorted(self._changed)
        )

    def at(self, step: int) -> Settings:
        """The settings of one minibatch."""
        place = max(step - self.warmup, 0)
        self._extend(place + 1)
        settings = self._known[place]
        if step >= self.warmup:
            return settings
        share = (step + 1) / self.warmup
        return {
            (group, key): value * share if key == "lr" and isinstance(value, float) else value
            for (group, key), value in settings.items()
        }

    def _extend(self, count: int) -> None:
        """Runs the scheduler until it has been asked for so many minibatches."""
        while len(self._known) < count:
            if self._known and self._scheduler is not None and not self.looks:
                self._step()
            self._known.append(self._settings())

    def _step(self) -> None:
        assert self._scheduler is not None
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # torch misses the optimizer's steps, which devices make
            try:
                self._scheduler.step()
            except (TypeError, ValueError) as error:
                raise InputError(
                    f"the schedule has no setting for minibatch {len(self._known) + self.warmup}: {error}"
                ) from None

    def _settings(self) -> Settings:
        return {
            (number, key): _number(group[key])
            for number, group in enumerate(self._optimizer.param_groups)
            for key in self._keys
            if isinstance(group.get(key), int | float | tuple | torch.Tensor)
            and not isinstance(group[key], bool)
        }


def read_schedule(
    asked: Given, *, steps: int, lr: float, arguments: Mapping[str, object] | None = None
) -> Make | None:
    """A function that makes the scheduler. `steps` and `lr` are for arguments that are not given."""
    arguments = dict(arguments or {})
    if asked is None:
        if arguments:
            raise InputError(f"arguments of a schedule ({', '.join(arguments)}) without a schedule")
        return None
    if isinstance(asked, str):
        name, defaults = _named(asked)
        known = {"steps": max(steps, 1), "lr": lr}
        filled = {
            key: known.get(value, value) if isinstance(value, str) else value
            for key, value in defaults.items()
        }
        return partial(getattr(lr_scheduler, name), **{**filled, **arguments})
    if isinstance(asked, lr_scheduler.LRScheduler):
        if arguments:
            raise InputError("this scheduler has its arguments already: leave the others out")
        return _again(asked)
    if not callable(asked):
        raise InputError(
            f"schedule {asked!r} is not allowed; give a name ({', '.join(NAMES)}), a scheduler of "
            "torch.optim, or a function that makes one from an optimizer"
        )
    return partial(asked, **arguments)


def _named(text: str) -> tuple[str, dict[str, object]]:
    wanted = text.lower()
    if wanted in NAMES:
        return NAMES[wanted]
    for name, defaults in NAMES.values():
        if wanted == name.lower():
            return name, defaults
    raise InputError(f"schedule {text!r} is not one of {', '.join(NAMES)}")


def _again(scheduler: lr_scheduler.LRScheduler) -> Make:
    """The same scheduler on an optimizer of its own, without the network's weights."""
    if scheduler.last_epoch > 0:
        raise InputError(
            f"this {type(scheduler).__name__} has already made {scheduler.last_epoch} steps; make a new one"
        )
    weights = (p for group in scheduler.optimizer.param_groups for p in group["params"])
    memo = {id(weight): torch.zeros(1, 1) for weight in weights}

    def make(stand_in: torch.optim.Optimizer) -> Any:
        own = copy.deepcopy(scheduler, memo)
        count = len(own.optimizer.param_groups)
        if type(own.optimizer) is not type(stand_in) or count != len(stand_in.param_groups):
            raise InputError(
                "the scheduler belongs to another optimizer; give the optimizer that it was made for"
            )
        return own

    return make


def _stand_in(rule: Optimizer) -> tuple[torch.optim.Optimizer, int]:
    """An optimizer with one small weight in each group, and how many groups devices have before them.

    Where all weights are in groups of the user, a scheduler sees these groups alone.
    """
    names = ["", *(group.names[0] if group.names else "" for group in rule.groups)]
    weights = [torch.zeros(1, 1, requires_grad=True) for _ in names]
    optimizer = rule.build(weights, names)
    if rule.groups and all("lr" in group.arguments for group in rule.groups):
        del optimizer.param_groups[0]
        return optimizer, 1
    return optimizer, 0


def _made(make: Make, optimizer: torch.optim.Optimizer) -> Scheduler:
    try:
        scheduler = make(optimizer)
    except (TypeError, ValueError) as error:
        raise InputError(f"schedule: {error}") from None
    if not isinstance(scheduler, lr_scheduler.LRScheduler):
        raise InputError(
            f"schedule: {type(scheduler).__name__} is no scheduler of torch.optim.lr_scheduler"
        )
    result: Any = scheduler
    return result  # type: ignore[no-any-return]


def _number(value: Any) -> Number:
    return tuple(value) if isinstance(value, tuple) else float(value)


def _points(first: int, values: list[Number]) -> tuple[tuple[int, Number], ...]:
    """Only the minibatches at which the value changes."""
    return tuple(
        (first + n, value) for n, value in enumerate(values) if n == 0 or value != values[n - 1]
    )
