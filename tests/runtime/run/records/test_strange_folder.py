"""A folder to resume from, by a stranger: each file has a limit, and is refused in words."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from weft.errors import InputError
from weft.runtime.run.records.live import EVENTS, earlier_events
from weft.runtime.run.records.record import Folder
from weft.runtime.run.records.saves import RUN_FILE, WEIGHTS, RunFile


def sparse(path: Path) -> Path:
    """A file that would fill the memory, and takes no room on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(1 << 40)
    return path


USES: dict[str, Callable[[Folder], object]] = {
    "metrics.jsonl": lambda folder: folder.evaluations(),
    "best.safetensors": lambda folder: folder.best(),
    EVENTS: lambda folder: earlier_events(folder.path, 3),
}


@pytest.mark.parametrize("name", USES)
def test_a_terabyte_of_nothing_is_refused(tmp_path: Path, name: str) -> None:
    sparse(tmp_path / name)
    with pytest.raises(InputError, match=rf"{name}.* larger than"):
        USES[name](Folder(tmp_path))


def test_metrics_of_a_terabyte_are_not_cut(tmp_path: Path) -> None:
    sparse(tmp_path / "metrics.jsonl")
    with pytest.raises(InputError, match=r"metrics.jsonl.* larger than"):
        Folder(tmp_path).forget_metrics(3)


def test_huge_files_beside_a_whole_save_are_seen_before_they_are_read(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    tensors = {WEIGHTS: {"w": torch.zeros(2)}, "optimizer.safetensors": {}}
    first = folder.saves.add(RunFile("m", "s", 1, 1, 0), tensors)
    (tmp_path / RUN_FILE).write_bytes((first / RUN_FILE).read_bytes())
    sparse(tmp_path / WEIGHTS)
    with pytest.raises(InputError, match="is of none of the saves"):
        folder.load()
    (tmp_path / WEIGHTS).unlink()
    sparse(tmp_path / RUN_FILE)
    assert folder.load().run.steps == 1


@pytest.mark.parametrize(
    "head",
    [
        {"w": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]}},
        {"w": {"dtype": "F32", "shape": [0, 2**63], "data_offsets": [0, 0]}},
    ],
)
def test_a_head_that_pytorch_cannot_follow_is_refused_in_words(
    tmp_path: Path, head: dict[str, dict[str, object]]
) -> None:
    """Seen: `--weights` with such a file ended with a KeyError or a TypeError."""
    packed = json.dumps(head).encode()
    data = struct.pack("<Q", len(packed)) + packed + bytes(head["w"]["data_offsets"][1])  # type: ignore[index]
    (tmp_path / "best.safetensors").write_bytes(data)
    with pytest.raises(InputError, match="not a safetensors file"):
        Folder(tmp_path).best()


def test_a_good_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "best.safetensors").write_bytes(save({"w": torch.ones(3)}))
    best = Folder(tmp_path).best()
    assert best is not None
    assert torch.equal(best["w"], torch.ones(3))
