"""Runs without faults are kept for later series; processes that run trials; the size of a series' runs."""

from __future__ import annotations

import importlib
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from weft.chaos import chaos
from weft.chaos.chaos import Asked, _Runs
from weft.chaos.fleets import TIERS
from weft.chaos.references import References, key_of
from weft.chaos.report import Outcome, Row
from weft.chaos.trial import Ran, Trial
from weft.chaos.worker import Died, Worker
from weft.fleet.faults import Faults
from weft.fleet.parse import dump_fleet
from weft.runtime.run.records.saves import WEIGHTS

TRIAL = Trial("cnn5", "digits", dump_fleet(TIERS), "chain", 100, "")
ECHO = (sys.executable, "-c", "import sys\nprint('{}', flush=True)\n"
        "for line in sys.stdin: print(line.strip(), flush=True)")  # fmt: skip
DIES = (sys.executable, "-c", "print('{}', flush=True)\ninput()")


def kept(folder: Path, trial: Trial) -> Row:
    Path(trial.out).mkdir()
    save_file({"w": torch.arange(3.0)}, Path(trial.out) / WEIGHTS)
    row = Row(-1, Outcome.done, Faults(), (), final_loss=0.25)
    References(folder).keep(trial, row)
    return row


def test_a_kept_run_comes_back_with_its_weights(tmp_path: Path) -> None:
    trial = msgspec.structs.replace(TRIAL, out=str(tmp_path / "first"))
    row = kept(tmp_path / "kept", trial)
    References(tmp_path / "kept").keep(trial, row)  # a second time, as from another process
    again = msgspec.structs.replace(trial, out=str(tmp_path / "second"))
    references = References(tmp_path / "kept")
    assert references.recall(again, Path(again.out)) == row
    assert load_file(Path(again.out) / WEIGHTS)["w"].tolist() == [0.0, 1.0, 2.0]
    other = msgspec.structs.replace(again, seed=1)
    assert references.recall(other, Path(other.out)) is None
    assert [path.name for path in (tmp_path / "kept").iterdir()] == [key_of(trial)]


def test_a_file_of_the_user_that_changes_makes_another_run(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    trial = msgspec.structs.replace(TRIAL, model=f"{file}:net")
    file.write_text("a = 1")
    before = key_of(trial)
    file.write_text("a = 2")
    assert key_of(trial) != before


def test_a_series_does_not_train_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[Trial] = []

    def ran(runs: Any, trial: Trial) -> Ran:
        trained.append(trial)
        Path(trial.out).mkdir(parents=True)
        save_file({"w": torch.full((3,), float(len(trial.options)))}, Path(trial.out) / WEIGHTS)
        return Ran(done=100, final_loss=0.5)

    monkeypatch.setattr(_Runs, "_run", ran)
    asked = Asked(TRIAL, undisturbed=2, references=tmp_path / "kept")
    for folder, count in (("one", 3), ("two", 0)):
        trained.clear()
        runs = chaos._Runs(asked, str(tmp_path / folder))
        assert [runs.undisturbed(number).run for number in (0, 1)] == [-1, -2]
        assert runs.rounding() == 2.0  # alone it has two options
        assert len(trained) == count


def test_another_process_is_ready_when_the_first_one_is_killed(tmp_path: Path) -> None:
    worker = Worker(DIES, tmp_path)
    try:
        worker.prepare_another()  # there is no first one yet
        assert worker._next is None
        worker._ready_one()
        worker.prepare_another()
        another = worker._next
        with pytest.raises(Died):
            worker.run(b"end", 20.0)
        assert worker._ready_one() is another
    finally:
        worker.close()


def test_a_process_answers_one_trial_after_the_other(tmp_path: Path) -> None:
    worker = Worker(ECHO, tmp_path)
    begin = time.monotonic()
    try:
        assert [worker.run(word, 20.0).strip() for word in (b"one", b"two")] == [b"one", b"two"]
    finally:
        worker.close()
    assert time.monotonic() - begin < 20.0


def test_a_run_of_a_swarm_ends_when_no_further_fault_can_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    size_of = importlib.import_module("chaos").size_of
    given = Namespace(steps=400, each=12)
    assert size_of("chain", given) == (400, 12)
    assert size_of("stitchnet", given) == (100, 3)
    assert size_of("stitchnet", Namespace(steps=200, each=3)) == (200, 3)
