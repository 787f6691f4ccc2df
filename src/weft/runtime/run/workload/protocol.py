"""What a run trains. The defaults are those of one network that all devices share.

work = OneNetwork(asked)            # captured, measured, planned
work.plan, work.graph, work.state   # what is handed out
work.result(run)                    # what comes home, put together
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from torch import Tensor, nn

from weft.program.timeline import Span, Timeline
from weft.runtime.run.measured import timeline_of
from weft.runtime.run.workload.networks import Own

if TYPE_CHECKING:
    from weft.runtime.run.run import Run


@dataclass(frozen=True)
class Trained:
    """What came out of a run."""

    model: nn.Module
    state: Mapping[str, Tensor]
    memory: Mapping[str, Tensor]  # the optimizer's
    test_accuracy: float | None = None
    network: str = ""  # what the model is, where it is not the user's own
    averaged: nn.Module | None = None  # the model with the running means of its weights
    parts: Mapping[str, Tensor] = field(default_factory=dict)  # as in `Workload.parts`


class Workload:
    """What a run trains; the base is one network that all devices share."""

    # Shares of one loss add up; of losses of several networks the mean counts.
    losses: Literal["sum", "mean"] = "sum"
    own: Mapping[str, Own] = {}  # devices with networks of their own
    together = True  # whether devices wait for each other, so that all are at the same minibatch
    has_copies = True  # whether devices report copies of one network while they train
    test: tuple[Tensor, Tensor] | None = None  # the data set's own test samples and targets
    measured: tuple[str, ...] = ()  # when the times of real devices were measured

    def is_enough(self, run: Run, waiting: set[str]) -> bool:
        """Whether the run may end though some devices have not done all of their minibatches."""
        return False

    def parts(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What a resumed run needs where devices have networks of their own: all of their weights."""
        return {}

    def passed(self, step: int) -> None:
        """No minibatch before `step` will be asked for again."""

    def timeline(self, run: Run, spans: list[Span]) -> Timeline:
        return timeline_of(spans, run.program.beat)
