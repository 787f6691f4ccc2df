"""Loads the user's network: by its name in the zoo, or from the user's file.

    module, example = load("lenet5")
    module, example = load("my_net.py:build", input_shape=(3, 32, 32))

A file is run only on this machine. Other machines get a graph, never code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from weft import zoo
from weft.errors import InputError
from weft.user_files import as_input_error, attribute, beside, file_and_name

Example = Tensor | tuple[Tensor, ...] | dict[str, Tensor]
# In an example: with one sample, capture could not tell the batch from a dimension of size 1.
SAMPLES = 2


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
    if text.endswith(".py"):
        raise InputError(f"model {text!r} names no factory; write {text}:FUNCTION")
    place = file_and_name(text)
    if place is not None:
        if classes is not None:
            raise InputError(
                f"classes {classes} is only for networks of the zoo; {text} decides its own"
            )
        return from_file(*place, input_shape)
    return from_zoo(text, input_shape, classes, weights)


def short_name(text: str) -> str:
    """A network's name in tables and files: its zoo name, or the name of its file."""
    place = file_and_name(text)
    return text if place is None else place[0].stem


def from_zoo(
    name: str, input_shape: Sequence[int] | None, classes: int | None, weights: bool
) -> tuple[nn.Module, Example]:
    """A network of the zoo, and zeros as its example."""
    try:
        model = zoo.get(name)
    except InputError as error:
        raise InputError(f"{error}, or your own network as file.py:factory") from None
    shape = model.input_shape if input_shape is None else tuple(input_shape)
    # On the "meta" device tensors have shapes but no numbers, which is enough for planning.
    with torch.device("cpu" if weights else "meta"), as_input_error(f"model {name!r} on {shape}"):
        module = zoo.build(name, shape, classes)
        return module, zeros(module, shape)


def from_file(
    path: Path, factory: str, input_shape: Sequence[int] | None
) -> tuple[nn.Module, Example]:
    """The network from a user's file, and an example of its input."""
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
    """The result of the factory in a user's file. If the name is a network, it is the network itself."""
    factory: Callable[[], Any] = attribute(path, name, "model file")
    if isinstance(factory, nn.Module):
        return factory
    with beside(path), as_input_error(f"{path}:{name}"):
        return factory()


def zeros(module: nn.Module, shape: Sequence[int]) -> Tensor:
    """An example input; token numbers if the network begins with an embedding."""
    leaves = (m for m in module.modules() if any(True for _ in m.parameters(recurse=False)))
    first = next((m for m in leaves if not any(True for _ in m.children())), None)
    dtype = torch.long if isinstance(first, nn.Embedding) else torch.float32
    return torch.zeros(SAMPLES, *shape, dtype=dtype)


def checked_example(label: str, example: Any) -> Example:
    """The user's example as tensors with at least two samples."""
    if isinstance(example, Mapping):
        return {str(name): _checked_tensor(label, tensor) for name, tensor in example.items()}
    if isinstance(example, (tuple, list)) and example:
        return tuple(_checked_tensor(label, tensor) for tensor in example)
    return _checked_tensor(label, example)


def _checked_tensor(label: str, tensor: Any) -> Tensor:
    if not isinstance(tensor, Tensor):
        raise InputError(
            f"{label}: its example input is a {type(tensor).__name__}; it must be a tensor, a tuple of "
            "tensors, or a dict of tensors for inputs by keyword, samples along dimension 0"
        )
    if tensor.dim() == 0:
        raise InputError(f"{label}: its example input has no dimension for samples")
    return tensor if len(tensor) >= SAMPLES else tensor.repeat(SAMPLES, *[1] * (tensor.dim() - 1))
