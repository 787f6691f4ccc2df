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

    @property
    def unequal(self) -> bool:
        """Whether the weights are not those of an undisturbed run, though they must be."""
        return self.exact and (self.difference is None or self.difference > EQUAL)


@dataclass
class Report:
    """All runs of one strategy."""

    strategy: str
    seed: int
    rows: list[Row] = field(default_factory=list)
    undisturbed: list[Row] = field(default_factory=list)

    @property
    def injected(self) -> list[Injected]:
        return [fault for row in self.rows for fault in row.faults]

    @property
    def faults(self) -> int:
        """All that went wrong; a device that comes back is not counted."""
        return sum(fault.kind != Kind.restart for fault in self.injected)

    @property
    def failed(self) -> bool:
        """Whether a run hung or was lost, or ended with other weights than it must have."""
        bad = (Outcome.hang, Outcome.lost)
        return any(row.outcome in bad or row.unequal for row in self.rows)

    def document(self) -> dict[str, Any]:
        """The document of `weft chaos --json`."""
        count = Counter(row.outcome for row in self.rows)
        losses = [row.final_loss for row in self.undisturbed if row.final_loss is not None]
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
            "undisturbed_loss": [min(losses), max(losses)] if losses else None,
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
