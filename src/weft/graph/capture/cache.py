"""Captured graphs of the zoo, kept between commands: capturing one takes seconds, reading one does not.

    graph = load_graph(key)        # None if it is absent or damaged
    store_graph(key, graph)

Only graphs of the zoo's networks are kept. They depend on Weft's sources and on the version of PyTorch, and
the key contains both. A user's file may import or read anything, so its graph is captured each time. Files
are under XDG_CACHE_HOME (~/.cache) in weft/graphs; WEFT_CACHE=off turns this off.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from weft.graph.network import Graph, decode, encode

MOST_BYTES = 64 * 1024 * 1024  # of all entries; one is between 10 kB and 1 MB
DIGEST = hashlib.sha256().digest_size


def graph_key(
    name: str,
    input_shape: Sequence[int] | None,
    classes: int | None,
    sources: str | None = None,
) -> str | None:
    """The file name for a zoo network's graph, from everything that the graph depends on. None if it may not
    be kept."""
    if name.endswith(".py") or ":" in name or os.environ.get("WEFT_CACHE", "").lower() == "off":
        return None
    try:
        torch = version("torch")
    except PackageNotFoundError:  # without a version number, a change of torch cannot be noticed
        return None
    shape = None if input_shape is None else list(input_shape)
    decides = [name, shape, classes, torch, sources or sources_digest(package_folder())]
    return hashlib.sha256(msgspec.json.encode(decides)).hexdigest()


@cache
def sources_digest(folder: Path) -> str:
    """One number for all Python files below a folder: any change of the code makes new entries."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        text = path.read_bytes()
        digest.update(f"{path.relative_to(folder)} {len(text)}\n".encode())
        digest.update(text)
    return digest.hexdigest()


def package_folder() -> Path:
    """The folder of Weft's own sources."""
    return Path(__file__).parents[2]


def load_graph(key: str) -> Graph | None:
    """The kept graph. A file that cannot be read, or was damaged, counts as absent."""
    try:
        data = _path(key).read_bytes()
        digest, text = data[:DIGEST], data[DIGEST:]
        return decode(text) if hashlib.sha256(text).digest() == digest else None
    except (OSError, msgspec.MsgspecError):
        return None


def store_graph(key: str, graph: Graph) -> None:
    """Keeps a graph. If the folder cannot be written, nothing is kept and the next command captures again."""
    text = encode(graph)
    keep(_path(key), hashlib.sha256(text).digest() + text)


def keep(path: Path, data: bytes) -> None:
    """Writes a file of the cache whole or not at all. Drops the oldest ones beside it if they are many."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _replacing(path) as temporary:
            temporary.write_bytes(data)
        _drop_oldest(path.parent)


def cache_folder(what: str = "graphs") -> Path:
    """Where captured graphs, or something else, are kept: `$XDG_CACHE_HOME/weft/graphs`."""
    base = os.environ.get("XDG_CACHE_HOME")
    home = Path(base) if base else Path(os.path.expanduser("~")) / ".cache"
    return home / "weft" / what


def _path(key: str) -> Path:
    return cache_folder() / f"{key}.graph"


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A new file, which replaces the old one when it is complete."""
    number, name = tempfile.mkstemp(dir=path.parent, prefix=".")
    os.close(number)
    try:
        yield Path(name)
        os.replace(name, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


def _drop_oldest(folder: Path) -> None:
    entries = sorted(
        ((path.stat(), path) for path in folder.iterdir()), key=lambda e: e[0].st_mtime
    )
    too_many = sum(stat.st_size for stat, _ in entries) - MOST_BYTES
    for stat, path in entries:
        if too_many <= 0:
            return
        path.unlink(missing_ok=True)
        too_many -= stat.st_size
