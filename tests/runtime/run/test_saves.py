"""A save is whole or is not taken: cut off at every file operation, torn, mixed, foreign, on a full disk."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from weft.errors import InputError
from weft.runtime.run.records.record import Folder
from weft.runtime.run.records.saves import RUN_FILE, RunFile, check_like

RUN = RunFile("lenet5", "chain", 20, 64, 0, "adam", "a1")
TENSORS = ("weights.safetensors", "optimizer.safetensors")


def save(folder: Path, steps: int, run: str = "a1", size: int = 8) -> None:
    """A save whose tensors all hold the number of its minibatch."""
    record = msgspec.structs.replace(RUN, steps=steps, id=run)
    value = torch.full((size,), float(steps))
    Folder(folder).save_state(record, {"w": value}, {"w/exp_avg": value})


def steps_in(folder: Path) -> int:
    """The minibatch of the save that a resumed run would take; all of it is of that minibatch."""
    saved = Folder(folder).load()
    values = torch.cat([saved.weights["w"], saved.optimizer["w/exp_avg"]])
    assert torch.equal(values, torch.full_like(values, saved.run.steps))
    return saved.run.steps


def newest(folder: Path) -> Path:
    return Folder(folder).saves.all()[-1]


# --- torn and mixed ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TENSORS)
def test_files_of_two_saves_at_the_top_are_not_resumed(tmp_path: Path, name: str) -> None:
    """Without the folder of saves, as a copy of the top would be."""
    save(tmp_path, 20)
    older = (tmp_path / name).read_bytes()
    save(tmp_path, 40)
    shutil.rmtree(tmp_path / "saves", ignore_errors=True)
    assert steps_in(tmp_path) == 40
    (tmp_path / name).unlink()
    (tmp_path / name).write_bytes(older)
    with pytest.raises(InputError, match=f"{name} is of minibatch 20 of run a1, and run.json of"):
        Folder(tmp_path).load()


@pytest.mark.parametrize("name", [*TENSORS, "run.json"])
@pytest.mark.parametrize("harm", ["cut off", "other bytes", "missing", "of another run"])
def test_a_torn_save_is_passed_over_and_the_one_before_is_taken(
    tmp_path: Path, name: str, harm: str
) -> None:
    out = tmp_path / "run"
    save(out, 20)
    save(out, 40)
    save(tmp_path / "other", 40, run="b2")
    path = newest(out) / name
    data = path.read_bytes()
    path.unlink()
    if harm == "cut off":
        path.write_bytes(data[:-10])
    elif harm == "other bytes":
        path.write_bytes(data[:-10] + b"\x01" * 10)
    elif harm == "of another run":
        shutil.copyfile(newest(tmp_path / "other") / name, path)
    assert steps_in(out) == 20
    reason = Folder(out).load().passed_over
    assert reason.startswith(f"{newest(out).name} is not whole: ")
    assert name in reason
    shutil.rmtree(Folder(out).saves.all()[0])
    with pytest.raises(InputError, match=f"cannot resume.*not whole.*{name}"):
        Folder(out).load()


def test_a_save_of_another_run_does_not_stand_in_for_a_torn_one(tmp_path: Path) -> None:
    save(tmp_path, 500, run="b2")
    save(tmp_path, 20)
    assert steps_in(tmp_path) == 20  # the newest one, not the one with most minibatches
    os.truncate(newest(tmp_path) / "weights.safetensors", 30)
    with pytest.raises(InputError, match=r"has 30 bytes and was saved with.*is of another run"):
        Folder(tmp_path).load()


def test_a_file_that_somebody_put_at_the_top_is_not_silently_ignored(tmp_path: Path) -> None:
    save(tmp_path / "other", 40, run="b2")
    save(tmp_path / "run", 20)
    os.replace(tmp_path / "other" / TENSORS[0], tmp_path / "run" / TENSORS[0])
    with pytest.raises(InputError, match=r"weights.safetensors is of none of the saves"):
        Folder(tmp_path / "run").load()


def test_a_folder_without_digests_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 20)
    shutil.rmtree(tmp_path / "saves")
    record = json.loads((tmp_path / "run.json").read_text())
    del record["files"]
    (tmp_path / "run.json").write_text(json.dumps(record))
    with pytest.raises(InputError, match=r"no size and no digest of weights.*older version"):
        Folder(tmp_path).load()


def test_the_last_two_saves_are_kept_and_the_top_shows_the_newest(tmp_path: Path) -> None:
    for steps in (10, 20, 30):
        save(tmp_path, steps)
    assert [path.name for path in Folder(tmp_path).saves.all()] == ["000002-a1", "000003-a1"]
    for name in (*TENSORS, "run.json"):
        assert (tmp_path / name).read_bytes() == (newest(tmp_path) / name).read_bytes()


# --- cut off ----------------------------------------------------------------------------------------

WATCHED = ("open", "os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir")


def save_and_die(folder: Path, steps: int, last: int) -> bool:
    """Another process saves, and ends before its file operation number `last`. Whether it ended so."""
    pid = os.fork()
    if pid == 0:
        count = 0

        def hook(event: str, _: object) -> None:
            nonlocal count
            if event in WATCHED:
                count += 1
                if count > last:
                    os._exit(9)

        sys.addaudithook(hook)
        try:
            save(folder, steps)
        finally:
            os._exit(0 if sys.exc_info()[0] is None else 1)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, 9)
    return code == 9


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_that_dies_at_any_moment_of_a_save_leaves_a_whole_one(tmp_path: Path) -> None:
    seen = []
    for last in range(200):
        out = tmp_path / str(last)
        save(out, 20)
        save(out, 30)
        died = save_and_die(out, 40, last)
        seen.append(steps_in(out))
        assert not Folder(out).load().passed_over
        save(out, 50)  # and the folder can be used on
        assert steps_in(out) == 50
        assert sorted(p.name for p in (out / "saves").iterdir())[1:] == [newest(out).name]
        if not died:
            break
    assert not died
    assert len(seen) > 20
    assert seen == sorted(seen)  # the older one until one moment, the newer one from then on
    assert set(seen) == {30, 40}


# --- full disk --------------------------------------------------------------------------------------


@contextlib.contextmanager
def full_disk(room: int) -> Iterator[None]:
    """The system takes no file that is larger than `room` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_loses_no_earlier_save(tmp_path: Path) -> None:
    save(tmp_path, 20)
    save(tmp_path, 40)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with full_disk(3000), pytest.raises(OSError, match="too large"):
        save(tmp_path, 60, size=4000)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert steps_in(tmp_path) == 40
    save(tmp_path, 60, size=4000)
    assert steps_in(tmp_path) == 60


def test_lines_that_a_full_disk_does_not_take_leave_no_half_line(tmp_path: Path) -> None:
    folder, rows = Folder(tmp_path), [{"step": n, "loss": 1.5} for n in range(40)]
    folder.add_metrics(rows[:2])
    with full_disk(200), pytest.raises(OSError, match="too large"):
        folder.add_metrics(rows[2:])
    folder.add_metrics(rows[2:])
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == rows


# --- another run ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value"),
    [("strategy", "hiertrain"), ("batch", 32), ("seed", 7), ("optimizer", "sgd")],
)
def test_a_run_that_is_not_like_the_saved_one_is_refused(option: str, value: object) -> None:
    check_like(Path("runs/first"), RUN, RUN)
    other = msgspec.structs.replace(RUN, **{option: value})
    before = getattr(RUN, option)
    with pytest.raises(
        InputError, match=f"with {option} {before}, .* {option} {value}; give --{option} {before}"
    ):
        check_like(Path("runs/first"), RUN, other)


@pytest.mark.parametrize("links", [True, False])
def test_only_its_user_reads_the_file_with_the_run_s_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    """Seen: every user of the machine could read it, and get the copies that nodes keep of the run."""
    if not links:
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError("no links here")))
    save(tmp_path, 20)
    files = [tmp_path / RUN_FILE, newest(tmp_path) / RUN_FILE]
    assert [file.stat().st_mode & 0o777 for file in files] == [0o600, 0o600]
