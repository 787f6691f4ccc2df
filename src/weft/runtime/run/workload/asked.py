"""What the user asked for, as `weft.train` has read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from weft.data.user_data import Data
from weft.fleet.fleet import Fleet
from weft.graph.optimizers.optimizer import Optimizer
from weft.graph.optimizers.user_schedule import Timetable
from weft.graph.precision import Precision
from weft.plans.plan import Objective, Plan
from weft.plans.profile import Profile
from weft.runtime.run.launch import Place
from weft.runtime.run.results import Step

Loss = nn.Module | Callable[[Any, Any], Tensor]  # of (what the network returns, the targets)


@dataclass(frozen=True)
class Asked:
    """`plan` where one was given; else `strategy` decides it."""

    model: nn.Module
    data: Data
    loss: Loss
    fleet: Fleet
    strategy: str
    plan: Plan | None
    steps: int
    batch: int
    rule: Optimizer
    place: Place
    timetable: Timetable | None = None  # the optimizer's settings by minibatch, where they change
    options: Mapping[str, object] = field(default_factory=dict)
    seed: int = 0
    deadline: float = 30.0
    patience: float = 1.0
    profile: Profile | None = None
    objective: Objective = "time"  # what a plan is chosen for
    measure: bool = True  # on real nodes, where no profile is given
    say: Callable[[str], None] = lambda text: None  # gets a line about each part of measuring
    precision: Precision = "float32"  # of products
    name: str = ""
    on_progress: Callable[[Step], None] | None = None
