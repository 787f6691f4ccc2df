"""What came of many runs with faults: one row for each, one document, one table."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from msgspec import Struct

from weft.fleet.faults import COORDINATOR, Faults, Kind
from weft.runtime.run.injector import Injected

EQUAL = 1e-5  # the largest difference of any weight, where the plan may have changed
TIMES = 10  # or so many times that of two undisturbed runs with different plans, where that is more


class Outcome(str, Enum):
    """How a run ended."""

    done = "done"  # with all its minibatches
    resumed = "resumed"  # it failed, and was resumed from its folder to its end
    lost = "lost"
    hang = "hang"


class Row(Struct, frozen=True, omit_defaults=True):
    """One run."""

    run: int  # its number; negative: nothing went wrong
    outcome: Outcome
    script: Faults
    faults: tuple[Injected, ...]  # that came
    repeated: int = 0  # minibatches
    difference: float | None = None  # of the weights from the undisturbed run's, the largest
    exact: bool = False  # whether there must be none
    final_loss: float | None = None
    done: int = 0
    losses: int = 0
    seconds: float = 0.0
    error: str = ""
    events: tuple[dict[str, Any], ...] = ()
    limit: float = EQUAL  # a difference up to this is rounding

    @property
    def unequal(self) -> bool:
        """Whether the weights are not those of an undisturbed run, though they must be."""
        return self.exact and (self.difference is None or self.difference > self.limit)


@dataclass
class Report:
    """All runs of one strategy."""

    strategy: str
    seed: int
    rows: list[Row] = field(default_factory=list)
    undisturbed: list[Row] = field(default_factory=list)
    rounding: float | None = (
        None  # the largest difference of two undisturbed runs with different plans
    )

    @property
    def limit(self) -> float:
        """How far the weights of a run with faults may be from those of one without."""
        return max(EQUAL, TIMES * (self.rounding or 0.0))

    @property
    def injected(self) -> list[Injected]:
        return [fault for row in self.rows for fault in row.faults]

    @property
    def faults(self) -> int:
        """All that went wrong; a device that comes back is not counted."""
        return sum(fault.kind != Kind.restart for fault in self.injected)

    @property
    def noise(self) -> tuple[float, float] | None:
        """The range of the loss at the end, over the seeds without faults; None where there is one seed."""
        losses = self.undisturbed_losses
        return (min(losses), max(losses)) if len(losses) > 1 else None

    @property
    def undisturbed_losses(self) -> list[float]:
        return [row.final_loss for row in self.undisturbed if row.final_loss is not None]

    @property
    def above_noise(self) -> int | None:
        """How many runs with faults end with a larger loss than any seed without faults."""
        if self.noise is None:
            return None
        return sum(
            row.final_loss is not None and row.final_loss > self.noise[1] for row in self.rows
        )

    @property
    def failed(self) -> bool:
        """Whether a run hung or was lost, or ended with other weights than it must have."""
        bad = (Outcome.hang, Outcome.lost)
        return any(row.outcome in bad or row.unequal for row in self.rows)

    def document(self) -> dict[str, Any]:
        """The document of `weft chaos --json`."""
        count = Counter(row.outcome for row in self.rows)
        losses = self.undisturbed_losses
        return {
            "strategy": self.strategy,
            "seed": self.seed,
            "runs": len(self.rows),
            "kills": sum(fault.kind == Kind.kill for fault in self.injected),
            "faults": dict(Counter(fault.kind.value for fault in self.injected)),
            "hangs": count[Outcome.hang],
            "lost_runs": count[Outcome.lost],
            "resumed_after_failure": count[Outcome.resumed],
            "coordinator_killed": sum(f.device == COORDINATOR for f in self.injected),
            "recovery_s": recovery(self.injected),
            "repeated": sum(row.repeated for row in self.rows),
            "unequal": sum(row.unequal for row in self.rows),
            "largest_difference": max(
                (row.difference for row in self.rows if row.difference is not None), default=None
            ),
            "rounding": self.rounding,
            "undisturbed_loss": [min(losses), max(losses)] if losses else None,
            "above_noise": self.above_noise,
            "rows": self.rows,
        }


def recovery(faults: list[Injected]) -> dict[str, float | None]:
    """Seconds until training went on, of the faults that hit a device with a part in the plan."""
    seconds = sorted(f.recovered_s for f in faults if f.recovered_s is not None)
    if not seconds:
        return {"median": None, "p95": None}
    return {
        "median": round(statistics.median(seconds), 3),
        "p95": round(seconds[min(len(seconds) - 1, int(0.95 * len(seconds)))], 3),
    }
