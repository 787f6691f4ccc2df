"""What Python keeps or draws in forward. torch.export runs forward once, so the graph would hold one number.

    with left_as_it_was(module), watched_python(module) as python:
        torch.export.export(...)
    refusal_of_python(module, example, "net", "train", python)      # "" if every call computes the same

Two things are watched: random numbers of Python and NumPy, and attributes of modules that forward reads and
then changes (`self.calls += 1`, a list that grows). Many attributes of this kind are harmless, such as a
table that is made once and kept. So the module is called again then, with the same inputs: it is refused if
its answers differ.
"""

from __future__ import annotations

import os
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from weft.graph.capture.modes import in_mode
from weft.graph.capture.signature import Sample, grown
from weft.graph.network import Mode

_TORCH = f"{Path(torch.__file__).parent}{os.sep}"  # torchvision is no part of torch
_OWN = str(Path(__file__).parent)
_OF_TORCH = frozenset(nn.Module().__dict__)  # attributes that torch itself keeps in every module
_CONTAINERS = (list, dict, set, deque)
_PLAIN = (int, float, bool, str, bytes, type(None), torch.dtype)


class Python:
    """What was met while a module was exported."""

    def __init__(self) -> None:
        self.drawn = ""  # whose random numbers forward draws
        self.changed = ""  # the first attribute that forward reads and then changes, with its line


@contextmanager
def watched_python(module: nn.Module) -> Iterator[Python]:
    """Notes random numbers of Python and NumPy, and attributes that are read and then changed."""
    python, before = Python(), _drawn_so_far()
    with _watched_attributes(module) as attributes:
        yield python
    python.drawn = next((k for k, v in _drawn_so_far().items() if before.get(k, v) != v), "")
    python.changed = attributes.changed()


def refusal_of_python(
    module: nn.Module, example: Sample, label: str, mode: Mode, python: Python
) -> str:
    """Why one graph does not hold for every call; "" if it does."""
    if without_numbers(module):
        return ""
    if python.drawn:
        place = _drawing_line(module, example, mode)
        if place:
            return (
                f"{label} cannot be captured ({place}): forward draws random numbers with {python.drawn} "
                "there, and each call computes something else. Draw with torch.rand, choose with torch.where"
            )
    if python.changed and not _same_twice(module, example, mode):
        return (
            f"{label} cannot be captured ({python.changed} is read and then changed): each call computes "
            "something else, which devices would not see. Keep what changes in a buffer (register_buffer), "
            "and change that in forward"
        )
    return ""


@contextmanager
def left_as_it_was(module: nn.Module) -> Iterator[None]:
    """Whatever forward changes in the attributes of a module is as before at the end."""
    parts = [(part, dict(part.__dict__)) for part in module.modules()]
    contents = [
        (value, type(value)(value))
        for _, own in parts
        for name, value in own.items()
        if _is_hooks(name) or (name not in _OF_TORCH and type(value) in _CONTAINERS)
    ]
    try:
        yield
    finally:
        for part, own in parts:
            for name in part.__dict__.keys() - own.keys():
                del part.__dict__[name]
            part.__dict__.update((k, v) for k, v in own.items() if k not in _OF_TORCH)
        for container, content in contents:
            container.clear()
            if isinstance(container, dict | set):  # hooks too
                container.update(content)
            else:
                container.extend(content)


def _is_hooks(name: str) -> bool:
    """Whether an attribute holds a module's forward hooks. A network that sets some in its first forward pass
    notes that in an attribute (transformers); without that note it would set them again."""
    return name.startswith(("_forward_hooks", "_forward_pre_hooks"))


def without_numbers(module: nn.Module) -> bool:
    """Whether a module has only shapes, because it is only planned: nothing can be tried with it."""
    return any(tensor.is_meta for tensor in module.parameters())


class Numbers:
    """A copy of a module's buffers and parameters, for eager runs that may change them."""

    def __init__(self, module: nn.Module) -> None:
        self._buffers = [(part, dict(part._buffers)) for part in module.modules()]
        tensors = [*module.buffers(), *module.parameters()]
        self._copies = [(tensor, tensor.detach().clone()) for tensor in tensors]

    @torch.no_grad()
    def restore(self) -> None:
        """Writes the old numbers back; a buffer that forward replaced is the old tensor again."""
        for part, own in self._buffers:
            part._buffers.update(own)
        for tensor, old in self._copies:
            tensor.copy_(old)


def _drawn_so_far() -> dict[str, Any]:
    """The states of the generators that `random.random()` and `numpy.random.rand()` use."""
    numpy = sys.modules.get("numpy")
    states: dict[str, Any] = {"Python's random": random.getstate()}
    if numpy is not None:
        _, key, *rest = numpy.random.get_state()
        states["numpy.random"] = (key.tobytes(), *rest)
    return states


class _Attributes:
    """The attributes of modules in the order in which forward reads and changes them."""

    def __init__(self) -> None:
        self.read: dict[tuple[int, str], Any] = {}
        self.written: dict[tuple[int, str], str] = {}  # those that were read before: their lines
        self.first: set[tuple[int, str]] = set()  # those that were written first
        self.held: list[
            tuple[str, Any, Any]
        ] = []  # containers: where they were read, their contents

    def note_read(self, module: nn.Module, name: str, value: Any) -> None:
        key = id(module), name
        if key in self.read or key in self.first:
            return
        self.read[key] = value
        if type(value) in _CONTAINERS:
            self.held.append((f"{name}, {_line()}", value, _shape(value)))

    def note_write(self, module: nn.Module, name: str, value: Any) -> None:
        key = id(module), name
        if key not in self.read:
            self.first.add(key)
        elif key not in self.written and not _same(self.read[key], value):
            self.written[key] = f"{name}, {_line()}"

    def changed(self) -> str:
        grown = (where for where, held, shape in self.held if _shape(held) != shape)
        return next(iter(self.written.values()), "") or next(grown, "")


@contextmanager
def _watched_attributes(module: nn.Module) -> Iterator[_Attributes]:
    """Notes who reads and writes attributes of a module's parts that are neither torch's own nor modules or
    parameters."""
    attributes, parts = _Attributes(), {id(part) for part in module.modules()}
    kind: Any = nn.Module
    write, look = kind.__setattr__, object.__getattribute__

    def reading(part: nn.Module, name: str) -> Any:
        value = look(part, name)
        if name not in _OF_TORCH and id(part) in parts and name in look(part, "__dict__"):
            attributes.note_read(part, name, value)
        return value

    def writing(part: nn.Module, name: str, value: Any) -> None:
        own = look(part, "__dict__")
        if name not in _OF_TORCH and id(part) in parts and name not in own.get("_buffers", ()):
            attributes.note_write(part, name, value)
        write(part, name, value)

    kind.__getattribute__, kind.__setattr__ = reading, writing
    try:
        yield attributes
    finally:
        kind.__setattr__ = write
        del kind.__getattribute__


def _same(old: Any, new: Any) -> bool:
    return old is new or (isinstance(old, _PLAIN) and type(old) is type(new) and old == new)


def _shape(container: Any) -> tuple[int, list[Any]]:
    """What can be compared of a container: how much it holds, its plain values, and which objects."""
    values = container.values() if isinstance(container, dict) else container
    return len(container), [v if isinstance(v, _PLAIN) else id(v) for v in values]


def _line() -> str:
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if _of_user(file):
            return f"{Path(file).name}, line {frame.f_lineno}"
        frame = frame.f_back
    return ""


def _of_user(file: str) -> bool:
    return not file.startswith((_TORCH, _OWN, random.__file__, "<")) and "/contextlib" not in file


def _same_twice(module: nn.Module, example: Sample, mode: Mode) -> bool:
    """Whether two calls with the same inputs, buffers and random numbers of torch have the same answers."""
    answers: list[list[Tensor]] = []

    def call(args: Any, kwargs: Any) -> None:
        result = module(*args, **kwargs)
        answers.append([t for t in tree_leaves(result) if isinstance(t, Tensor)])

    _called(module, example, mode, call, times=3)
    first, *others = answers
    return all(
        len(first) == len(other)
        and all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
        for other in others
    )


def _drawing_line(module: nn.Module, example: Sample, mode: Mode) -> str:
    """The line outside of torch at which a generator of Python or NumPy is used; "" if there is none."""
    places: list[str] = []
    state = [_drawn_so_far()]

    def look(frame: FrameType, event: str, _: Any) -> None:
        if places or event not in ("c_return", "return", "c_exception"):
            return
        now = _drawn_so_far()
        if now != state[0]:
            state[0] = now
            place: FrameType | None = frame
            while place is not None and not _of_user(place.f_code.co_filename):
                place = place.f_back
            if place is not None:
                places.append(f"{Path(place.f_code.co_filename).name}, line {place.f_lineno}")

    def call(args: Any, kwargs: Any) -> None:
        sys.setprofile(look)
        try:
            module(*args, **kwargs)
        finally:
            sys.setprofile(None)

    kept = random.getstate()
    try:
        _called(module, example, mode, call, times=1)
    finally:
        random.setstate(kept)
    return places[0] if places else ""


def _called(
    module: nn.Module,
    example: Sample,
    mode: Mode,
    call: Callable[[Any, Any], None],
    times: int,
) -> None:
    """Calls a module some times with the same inputs, buffers and random numbers of torch."""
    args, kwargs = grown(example, 3)
    numbers = Numbers(module)
    with (
        torch.random.fork_rng(devices=[]), torch.no_grad(), in_mode(module, mode),
        left_as_it_was(module),
    ):  # fmt: skip
        for _ in range(times):
            torch.manual_seed(0)
            try:
                call(args, kwargs)
            finally:
                numbers.restore()
