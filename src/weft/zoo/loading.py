"""The user's network: by its name in the zoo, or from a file of the user's own.

    module, example = load("lenet5")
    module, example = load("my_net.py:build", input_shape=(3, 32, 32))

A file is run on this machine, where the user named it; other machines get a graph, never code.
"""

from __future__ import annotations

import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from weft import zoo
from weft.errors import InputError

Example = Tensor | tuple[Tensor, ...]
SAMPLES = 2  # of an example: with one, capture could not tell the batch from a dimension of size 1


def load(
    text: str,
    input_shape: Sequence[int] | None = None,
    classes: int | None = None,
    *,
    weights: bool = True,
) -> tuple[nn.Module, Example]:
    """The network and an example of its input. Shapes are of one sample."""
    if input_shape is not None and (not input_shape or min(input_shape) < 1):
        raise InputError(f"input shape {tuple(input_shape)}: every dimension must be at least 1")
    file, colon, factory = text.rpartition(":")
    if not colon and text.endswith(".py"):
        raise InputError(f"model {text!r} names no factory; write {text}:FUNCTION")
    if colon and file.endswith(".py"):
        if classes is not None:
            raise InputError(
                f"classes {classes} is only for networks of the zoo; {text} decides its own"
            )
        return from_file(Path(file), factory, input_shape)
    return from_zoo(text, input_shape, classes, weights)


def short_name(text: str) -> str:
    """What to call a network in tables and files: its zoo name, or its file's."""
    file, colon, _ = text.rpartition(":")
    return Path(file).stem if colon and file.endswith(".py") else text


def from_zoo(
    name: str, input_shape: Sequence[int] | None, classes: int | None, weights: bool
) -> tuple[nn.Module, Example]:
    try:
        model = zoo.get(name)
    except InputError as error:
        raise InputError(f"{error}, or your own network as file.py:factory") from None
    shape = model.input_shape if input_shape is None else tuple(input_shape)
    # On the "meta" device tensors have shapes but no numbers: planning needs no more.
    with torch.device("cpu" if weights else "meta"), as_input_error(f"model {name!r} on {shape}"):
        module = zoo.build(name, shape, classes)
        return module, zeros(module, shape)


def from_file(
    path: Path, factory: str, input_shape: Sequence[int] | None
) -> tuple[nn.Module, Example]:
    label = f"{path}:{factory}"
    made = call_factory(path, factory)
    example: Any = None
    if isinstance(made, tuple) and len(made) == 2:
        made, example = made
    if not isinstance(made, nn.Module):
        raise InputError(
            f"{label} gave a {type(made).__name__}; it must return an nn.Module, "
            "or a pair (nn.Module, example input)"
        )
    if input_shape is not None:
        return made, zeros(made, input_shape)
    if example is None:
        example = getattr(made, "example_input", None)
    if example is None:
        raise InputError(
            f"{label} gives no example of its input; return (module, example), set "
            "module.example_input, or say --input-shape, such as --input-shape 1x28x28"
        )
    return made, checked_example(label, example)


def call_factory(path: Path, name: str) -> Any:
    if not path.is_file():
        raise InputError(f"model file {path}: there is no such file")
    # The file may import its neighbours, as it could if it were run itself.
    sys.path.insert(0, str(path.resolve().parent))
    try:
        with as_input_error(f"model file {path}"):
            found = runpy.run_path(str(path))
        if name not in found:
            raise InputError(f"model file {path} has no {name!r}; it has: {callables(found)}")
        with as_input_error(f"{path}:{name}"):
            factory: Callable[[], Any] = found[name]
            return factory if isinstance(factory, nn.Module) else factory()
    finally:
        sys.path.remove(str(path.resolve().parent))


def callables(found: dict[str, Any]) -> str:
    """What in a file could be a factory: its own functions and networks."""
    names = [
        name
        for name, value in found.items()
        if not name.startswith("_")
        and (isinstance(value, nn.Module) or getattr(value, "__module__", "") == found["__name__"])
    ]
    return ", ".join(names) or "no function of its own"


@contextmanager
def as_input_error(label: str) -> Iterator[None]:
    """Whatever the user's code raises becomes one line that says where."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        line = next((f.lineno for f in reversed(frames) if f.filename in label), None)
        where = f"{label} line {line}" if line is not None else label
        said = " ".join(str(error).split()) or "no message"
        raise InputError(f"{where} raised {type(error).__name__}: {said}") from None


def zeros(module: nn.Module, shape: Sequence[int]) -> Tensor:
    """An example input; token numbers for a network that begins by looking tokens up."""
    leaves = (m for m in module.modules() if any(True for _ in m.parameters(recurse=False)))
    first = next((m for m in leaves if not any(True for _ in m.children())), None)
    dtype = torch.long if isinstance(first, nn.Embedding) else torch.float32
    return torch.zeros(SAMPLES, *shape, dtype=dtype)


def checked_example(label: str, example: Any) -> Example:
    """Tensors with at least two samples, made from what the user gave."""
    tensors = (example,) if isinstance(example, Tensor) else example
    if not isinstance(tensors, (tuple, list)) or not all(isinstance(t, Tensor) for t in tensors):
        raise InputError(
            f"{label}: its example input is a {type(example).__name__}; "
            "it must be a tensor or a tuple of tensors, samples along dimension 0"
        )
    if not tensors or any(t.dim() == 0 for t in tensors):
        raise InputError(f"{label}: its example input has no dimension for samples")
    whole = tuple(
        t if t.shape[0] >= SAMPLES else t.repeat(SAMPLES, *[1] * (t.dim() - 1)) for t in tensors
    )
    return whole[0] if isinstance(example, Tensor) else whole
