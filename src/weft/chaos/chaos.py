"""Run after run, in each of which something goes wrong; and beside them runs in which nothing does.

    report = chaos(Asked(trial, (Scene.kill,), seed=1), faults=20)
    report.document()

A run whose coordinator was killed is resumed from its folder, as its user would do it. A run that failed is
tried again in the same way: it is lost only if that fails too.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from safetensors.torch import load_file

from weft.chaos.references import References
from weft.chaos.report import Outcome, Report, Row
from weft.chaos.scenes import Scene, draw
from weft.chaos.trial import Ran, Trial
from weft.chaos.worker import Died, Hung, Worker
from weft.errors import InputError, WeftError
from weft.fleet.faults import COORDINATOR, Fault, Faults, Kind
from weft.fleet.parse import parse_fleet
from weft.plans import registry
from weft.runtime.run.injector import CAME, Injected
from weft.runtime.run.records.saves import WEIGHTS

NEEDS_FOLDER = (Scene.coordinator, Scene.save, Scene.disk)

Show = Callable[[Report], None]  # after every run with faults


@dataclass(frozen=True)
class Asked:
    """What kind of runs, and what goes wrong in them."""

    trial: Trial  # without a folder and without faults
    scenes: tuple[Scene, ...] = (Scene.kill,)
    seed: int = 0
    each: int = 4  # scenes in a run
    undisturbed: int = 1  # runs in which nothing goes wrong, each with a seed of its own
    limit_s: float = 120.0  # for a run; then it hangs
    references: Path | None = None  # a folder that keeps the undisturbed runs

    @property
    def saves(self) -> bool:
        """Whether the runs can be saved and resumed."""
        return "save and resume" not in registry.get(self.trial.strategy).refuses

    def check(self) -> None:
        """Refuses what a strategy cannot do."""
        record = registry.get(self.trial.strategy)
        if "train" not in record.modes:
            raise InputError(f"{record.name} answers and does not train: chaos is for training")
        needed = [scene.value for scene in self.scenes if scene in NEEDS_FOLDER]
        if needed and not self.saves:
            why = record.refuses["save and resume"]
            raise InputError(
                f"{', '.join(needed)}: a run of {record.name} cannot be resumed, because {why}; "
                "leave these faults out"
            )


def chaos(asked: Asked, faults: int, show: Show | None = None, first: int = 0) -> Report:
    """Runs until so many faults have come. `first` is the number of the first run: the seed of a series and
    a run's number give its script."""
    asked.check()
    report = Report(asked.trial.strategy, asked.seed)
    with tempfile.TemporaryDirectory(prefix="weft-chaos-") as folder, _Runs(asked, folder) as runs:
        for number in range(asked.undisturbed):
            report.undisturbed.append(runs.undisturbed(number))
        if report.undisturbed[0].exact:
            report.rounding = runs.rounding()
        number = first
        while report.faults < faults and number < first + 2 * faults + 5:
            report.rows.append(runs.disturbed(number, report.limit))
            if show is not None:
                show(report)
            number += 1
    return report


@dataclass
class _Runs:
    asked: Asked
    folder: str
    worker: Worker = field(default_factory=Worker)

    def __enter__(self) -> _Runs:
        return self

    def __exit__(self, *_: object) -> None:
        self.worker.close()

    def undisturbed(self, number: int) -> Row:
        """Nothing goes wrong; the first one has the seed of all runs with faults."""
        trial = msgspec.structs.replace(
            self.asked.trial, out=f"{self.folder}/undisturbed-{number}",
            seed=self.asked.trial.seed + number,
        )  # fmt: skip
        row = self._calm(-1 - number, trial)
        if row.outcome != Outcome.done:
            raise WeftError(f"a run without any fault failed: {row.error}")
        return row

    def rounding(self) -> float:
        """How far the weights of two runs without faults are apart if only their plans differ: this one's,
        and one in which the device with the data does all. Sums in another order are rounded otherwise, and
        a long run makes this larger."""
        text = self.asked.trial.fleet
        source = next(device.name for device in parse_fleet(text).devices if device.data)
        alone = msgspec.structs.replace(
            self.asked.trial, strategy=registry.DEFAULT, out=f"{self.folder}/alone",
            options={"micro_batches": "1", "devices": source},
        )  # fmt: skip
        return self._calm(-1, alone).difference or 0.0

    def _calm(self, number: int, trial: Trial) -> Row:
        """A run without faults, or what is known of the same one."""
        references = References(self.asked.references) if self.asked.references else None
        row = references.recall(trial, Path(trial.out)) if references is not None else None
        if row is None:
            row = self._row(number, trial, Faults())
            if references is not None and row.outcome == Outcome.done:
                references.keep(trial, row)
            return row
        difference = self._difference(trial)
        return msgspec.structs.replace(row, run=number, difference=difference)

    def disturbed(self, number: int, limit: float) -> Row:
        """One run with a script of its own. `limit` is how far its weights may be from the others'."""
        asked, steps = self.asked, self.asked.trial.steps
        script = draw(asked.seed, number, asked.scenes, asked.each, steps)
        every = max(2, steps // 40) if asked.saves else None
        trial = msgspec.structs.replace(
            asked.trial, out=f"{self.folder}/{number}", save_every=every
        )
        return msgspec.structs.replace(self._row(number, trial, script), limit=limit)

    def _row(self, number: int, trial: Trial, script: Faults) -> Row:
        begin = time.monotonic()
        course = _Course(script)
        if any(_of_coordinator(fault) for fault in script.fault):
            self.worker.prepare_another()
        while course.outcome is None:
            resume = course.starts > 0 and any((Path(trial.out) / "saves").glob("*"))
            try:
                ran = self._run(msgspec.structs.replace(trial, faults=course.left, resume=resume))
            except Hung as error:
                course.hung(error)
            except Died as error:
                course.died(error, self.asked.saves, _came(Path(trial.out)))
            else:
                course.ended(ran, self.asked.saves)
        survived = course.outcome in (Outcome.done, Outcome.resumed)
        ran = course.ran
        return Row(
            number, course.outcome, script, tuple(course.injected), ran.repeated,
            self._difference(trial) if survived else None, ran.exact, ran.final_loss, ran.done,
            ran.losses, round(time.monotonic() - begin, 2), "; then ".join(course.errors),
            ran.events,
        )  # fmt: skip

    def _run(self, trial: Trial) -> Ran:
        answer = self.worker.run(msgspec.json.encode(trial), self.asked.limit_s)
        return msgspec.json.decode(answer, type=Ran)

    def _difference(self, trial: Trial) -> float | None:
        """The largest difference of any weight from the undisturbed run."""
        one, other = (Path(out) / WEIGHTS for out in (trial.out, f"{self.folder}/undisturbed-0"))
        if not one.exists() or not other.exists():
            return None
        weights, expected = load_file(one), load_file(other)
        if weights.keys() != expected.keys():
            return None
        return max(
            float((weights[name].double() - tensor.double()).abs().max())
            for name, tensor in expected.items()
        )


class _Course:
    """What happens to one run: it ends, fails, hangs, or loses its coordinator and is resumed."""

    def __init__(self, script: Faults) -> None:
        self.left = script  # the faults that are still ahead
        self.injected: list[Injected] = []
        self.errors: list[str] = []
        self.starts = 0
        self.ran = Ran()
        self.outcome: Outcome | None = None  # while it goes on

    def ended(self, ran: Ran, saves: bool) -> None:
        """The run ended with a result or an error; after an error it is resumed once, without faults."""
        self.starts += 1
        self.ran = ran
        self.injected += ran.faults
        if not ran.error:
            self.outcome = Outcome.resumed if self.errors else Outcome.done
            return
        self._failed(ran.error, saves)

    def died(self, error: Died, saves: bool, came: list[Injected]) -> None:
        """The run's process ended: by the script, or by itself. `came`: faults that it has told of."""
        self.starts += 1
        place = next((n for n, f in enumerate(self.left.fault) if _of_coordinator(f)), None)
        if place is None or not saves or not came:
            self._failed(str(error), saves)
            return
        self.injected += came
        rest = self.left.fault[place + 1 :]
        self.left = msgspec.structs.replace(self.left, fault=rest)

    def hung(self, error: Hung) -> None:
        """The run did not end."""
        self.errors.append(str(error))
        self.outcome = Outcome.hang

    def _failed(self, error: str, saves: bool) -> None:
        self.errors.append(error)
        self.left = Faults()
        if len(self.errors) > 1 or not saves:
            self.outcome = Outcome.lost


def _came(folder: Path) -> list[Injected]:
    """The faults of a run whose process was killed, as it wrote them down before; the last one is that
    death."""
    path = folder / CAME
    if not path.exists():
        return []
    came = msgspec.json.decode(path.read_bytes(), type=list[Injected])
    path.unlink()
    return came


def _of_coordinator(fault: Fault) -> bool:
    return fault.kind == Kind.kill and fault.device == COORDINATOR
