"""The plans that a run had, minibatch by minibatch: written to its folder, and repeated by a later run.

    record = PlanRecord.load(Path("runs/first"))
    record.first, record.changes        # the plan of the first minibatch, and each change

    runs/first/changes.json   {"first": PLAN, "changes": [{"step": 50, "why": "...", "plan": PLAN}, ...]}

`Replayed` is the adviser of a run that repeats a record: it asks for the same plan at the same minibatch and
for nothing else. Two runs with the same plans, data and seed compute the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from weft.errors import InputError
from weft.graph.network import Graph
from weft.plans.bounds import check_bounds
from weft.plans.plan import Plan
from weft.reading import read_bounded
from weft.runtime.run.advice import Change
from weft.runtime.run.survivors import Survivors, shards_of

if TYPE_CHECKING:
    from weft.runtime.run.run import Run

CHANGES = "changes.json"
MAX_BYTES = 256 << 20
NEVER = 1 << 40  # minibatches: longer than any run


class PlanChange(Struct, frozen=True, omit_defaults=True):
    """From minibatch `step` on another plan ran."""

    step: int
    plan: Plan
    why: str = ""


class PlanRecord(Struct, frozen=True):
    """The plan of a run's first minibatch, and its changes in the order in which they came."""

    first: Plan
    changes: tuple[PlanChange, ...] = ()

    @staticmethod
    def load(path: Path) -> PlanRecord:
        """The record in a run's folder, or in a file. InputError if there is none, or if it cannot be."""
        file = path / CHANGES if path.is_dir() else path
        try:
            record = msgspec.json.decode(read_bounded(file, MAX_BYTES, "--replay"), type=PlanRecord)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InputError(f"--replay {file} is not a record of plans: {error}") from None
        for plan in (record.first, *(change.plan for change in record.changes)):
            check_bounds(plan)
        for change in record.changes:
            if change.step < 0 or change.plan.batch != record.first.batch:
                raise InputError(
                    f"--replay {file}: a change at minibatch {change.step} with batch {change.plan.batch}; "
                    f"the run began with batch {record.first.batch}"
                )
        return record

    def resumed(self, step: int, after: PlanRecord) -> PlanRecord:
        """This record up to minibatch `step`, and from there on the record of the run that went on."""
        before = tuple(change for change in self.changes if change.step < step)
        again = PlanChange(step, after.first, "resumed")
        return PlanRecord(self.first, (*before, again, *after.changes))

    @property
    def lasting(self) -> tuple[PlanChange, ...]:
        """The changes that count: where a run went back after a loss, what it did after that minibatch was
        done again under the later plan."""
        kept: list[PlanChange] = []
        for change in self.changes:
            kept = [before for before in kept if before.step < change.step]
            kept.append(change)
        return tuple(kept)


class Replayed(Survivors):
    """Repeats the changes of a record. A device that is lost is dealt with as in any run."""

    def __init__(
        self, record: PlanRecord, plan: Plan, options: Mapping[str, object], graph: Graph | None
    ) -> None:
        super().__init__(plan.strategy, plan, options, graph)
        self._looks_every = self.every
        self._due = list(record.lasting)

    def begin(self, run: Run, step: int) -> Change | None:
        if not run.recovery.goes_back:
            self._looks_every = NEVER
        while self._due and self._due[0].step < step:  # of minibatches that a resumed run has done
            self._due.pop(0)
        if self._due and self._due[0].step == step:
            return self._change(run)
        self._aim(step)
        return None

    def margin(self, run: Run) -> int:
        return 1 if self._due else super().margin(run)

    def look(self, run: Run, done: int) -> Change | None:
        end = run.series_end
        if self._due and self._due[0].step == end:
            return self._change(run)
        # Swarms and peers deal with lost devices, and with those that are back, by themselves.
        change = super().look(run, done) if run.recovery.goes_back else None
        self._aim(end)
        return change

    def follow(self, run: Run) -> None:
        self._aim(min(run.outcome.done.values(), default=-1) + 1)

    def _change(self, run: Run) -> Change:
        due = self._due.pop(0)
        return Change(due.plan, f"as in the record: {due.why}", shards_of(run.plan, due.plan))

    def _aim(self, at: int) -> None:
        """The next series ends where the next change is due."""
        self.every = self._looks_every
        if self._due and self._due[0].step > at:
            self.every = self._due[0].step - at
