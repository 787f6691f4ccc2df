"""A kept graph is the captured one; whatever could make it another is in its key."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from weft import api
from weft.graph.capture import cache
from weft.graph.capture.cache import (
    graph_key,
    load_graph,
    package_folder,
    sources_digest,
    store_graph,
)
from weft.graph.capture.module import capture
from weft.graph.network import Graph
from weft.planning import task


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("WEFT_CACHE", raising=False)
    return tmp_path / "weft" / "graphs"


@pytest.fixture(scope="module")
def mlp() -> Graph:
    return captured("mlp")


def captured(name: str) -> Graph:
    module, example = api.load_model(name, weights=False)
    return capture(module, example, name=name)


def key_of(name: str) -> str:
    key = graph_key(name, None, None)
    assert key is not None
    return key


@pytest.mark.parametrize("name", ["lenet5", "transformer"])
def test_a_second_command_gets_an_equal_graph_without_torch(name: str) -> None:
    graph = task.named_graph(name)
    assert graph == captured(name)
    assert load_graph(key_of(name)) == graph
    script = (
        "import sys; from weft.planning import task; from weft.graph.network import encode\n"
        f"text = encode(task.named_graph({name!r}))\n"
        "assert 'torch' not in sys.modules\n"
        "sys.stdout.buffer.write(text)"
    )
    again = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert cache.decode(again.stdout) == graph


def test_whatever_decides_a_graph_is_in_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [
        graph_key("lenet5", None, None),
        graph_key("mlp", None, None),
        graph_key("lenet5", (1, 32, 32), None),
        graph_key("lenet5", None, 7),
        graph_key("lenet5", None, None, sources="others"),
    ]
    monkeypatch.setattr(cache, "version", lambda _: "0.0")
    keys.append(graph_key("lenet5", None, None))
    assert None not in keys
    assert len(set(keys)) == len(keys)


def test_a_changed_source_file_has_another_digest(tmp_path: Path) -> None:
    digests = []
    for number, text in enumerate(("a = 1", "a = 2")):
        package = tmp_path / str(number)
        (package / "zoo").mkdir(parents=True)
        (package / "zoo" / "chains.py").write_text(text)
        digests.append(sources_digest(package))
    (tmp_path / "1" / "zoo" / "chains.py").rename(tmp_path / "1" / "chains.py")
    sources_digest.cache_clear()
    digests.append(sources_digest(tmp_path / "1"))
    assert len(set(digests)) == 3


def test_the_key_covers_the_sources_of_the_zoo() -> None:
    # The file was moved one folder down, and the key then covered the folder `graph` only.
    assert package_folder() == Path(api.__file__).parent
    assert (package_folder() / "zoo").is_dir()


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "folder"])
def test_a_damaged_entry_counts_as_absent_and_is_replaced(
    folder: Path, mlp: Graph, damage: str
) -> None:
    store_graph("key", mlp)
    (entry,) = folder.iterdir()
    data = bytearray(entry.read_bytes())
    if damage == "folder":
        entry.unlink()
        entry.mkdir()
    else:
        data[data.index(b"64") + 1] ^= 1  # 65: still JSON, but another network
        entry.write_bytes({"cut": data[:-1], "flipped": data, "empty": b""}[damage])
    assert load_graph("key") is None
    store_graph("key", mlp)
    assert load_graph("key") == (None if damage == "folder" else mlp)


def test_a_damaged_entry_is_captured_again(folder: Path, mlp: Graph) -> None:
    store_graph(key_of("mlp"), mlp)
    (entry,) = folder.iterdir()
    entry.write_bytes(b"something else")
    assert task.named_graph("mlp") == mlp
    assert load_graph(key_of("mlp")) == mlp


def test_a_users_file_is_read_each_time(tmp_path: Path, folder: Path) -> None:
    file = tmp_path / "net.py"
    for width in (3, 5):
        file.write_text(
            f"import torch\ndef build(): return torch.nn.Linear(4, {width}), torch.zeros(2, 4)\n"
        )
        graph = task.named_graph(f"{file}:build")
        assert graph.values[graph.output].shape == (1, width)
    assert not folder.exists()


def test_it_can_be_switched_off(folder: Path, mlp: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", "off")
    assert task.named_graph("mlp") == mlp
    assert not folder.exists()


def test_a_folder_that_cannot_be_written_is_no_error(
    tmp_path: Path, mlp: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    store_graph("key", mlp)
    assert load_graph("key") is None


def test_the_oldest_entries_go_when_there_are_too_many(
    folder: Path, mlp: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_graph("first", mlp)
    size = (folder / "first.graph").stat().st_size
    monkeypatch.setattr(cache, "MOST_BYTES", 2 * size)
    for number, key in enumerate(("second", "third")):
        store_graph(key, mlp)
        os.utime(folder / f"{key}.graph", (2**31 + number, 2**31 + number))
    assert sorted(path.name for path in folder.iterdir()) == ["second.graph", "third.graph"]
