"""A run's folder is whole at any moment, and resuming from a bad one says what is wrong."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import msgspec
import pytest
import torch

from weft.errors import InputError
from weft.runtime.run.records.record import Folder
from weft.runtime.run.records.saves import RunFile

RUN = RunFile("lenet5", "chain", 40, 64, 0)
WEIGHTS = {"a.weight": torch.arange(6.0).view(2, 3), "a.count": torch.tensor(3)}
OPTIMIZER = {"a.weight/exp_avg": torch.ones(2, 3)}


def test_what_was_saved_is_what_is_loaded(tmp_path: Path) -> None:
    Folder(tmp_path / "deep" / "run").save_state(RUN, WEIGHTS, OPTIMIZER)
    saved = Folder(tmp_path / "deep" / "run").load()
    assert msgspec.structs.replace(saved.run, files={}) == RUN
    assert set(saved.weights) == set(WEIGHTS)
    assert all(torch.equal(saved.weights[n], t) for n, t in WEIGHTS.items())
    assert torch.equal(saved.optimizer["a.weight/exp_avg"], torch.ones(2, 3))


def test_tensors_that_are_not_contiguous_can_be_saved(tmp_path: Path) -> None:
    Folder(tmp_path).save_state(RUN, {"w": WEIGHTS["a.weight"].T}, {})
    assert torch.equal(Folder(tmp_path).load().weights["w"], WEIGHTS["a.weight"].T)


def test_a_write_that_fails_leaves_the_file_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Folder(tmp_path)
    folder.write("run.json", b"old")

    def power_cut(*_: object) -> None:
        raise OSError("no power")

    monkeypatch.setattr(os, "replace", power_cut)
    with pytest.raises(OSError, match="no power"):
        folder.write("run.json", b"new")
    assert (tmp_path / "run.json").read_bytes() == b"old"


def test_no_half_written_file_stays_behind(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.save_state(RUN, WEIGHTS, OPTIMIZER, averaged=WEIGHTS)
    assert (tmp_path / "ema.safetensors").exists()
    folder.save_state(RUN, WEIGHTS, {})
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "optimizer.safetensors", "run.json", "saves", "weights.safetensors",
    ]  # fmt: skip
    assert sorted(p.name for p in (tmp_path / "saves").iterdir()) == ["000001-run", "000002-run"]


def test_metrics_are_lines_that_are_added_to_until_a_new_run_begins(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.add_metrics([{"step": 0, "loss": 2.5}])
    folder.add_metrics([{"step": 1, "loss": 2.0}])
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 1]
    folder.forget_metrics()
    folder.add_metrics([{"step": 0, "loss": 3.0}])
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 1


def test_resuming_from_nothing_or_from_rubbish_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing to resume.*run\.json"):
        Folder(tmp_path / "none").load()
    folder = Folder(tmp_path)
    folder.save_state(RUN, WEIGHTS, OPTIMIZER)
    shutil.rmtree(tmp_path / "saves")
    (tmp_path / "weights.safetensors").write_bytes(b"\x00" * 100)
    with pytest.raises(InputError, match=r"cannot resume.*weights.safetensors has 100 bytes"):
        folder.load()
    (tmp_path / "weights.safetensors").unlink()
    with pytest.raises(InputError, match=r"cannot resume.*weights.safetensors cannot be read"):
        folder.load()
    (tmp_path / "run.json").write_text('{"model": 3}')
    with pytest.raises(InputError, match="cannot resume"):
        folder.load()
    with pytest.raises(InputError, match="is a file; give a folder"):
        Folder(tmp_path / "run.json")
