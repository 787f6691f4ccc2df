"""Reads the options that a user sets with `--set key=value`. Errors list the allowed values.

options.integer(task, "micro_batches", 1)      # the user's number, or 1
options.route(task), options.codec(task)       # every strategy honours these two
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast, get_args

from weft.codecs.registry import CODECS, CodecName
from weft.errors import InputError
from weft.fleet.fleet import Route
from weft.plans.task import Task

_CODECS = " | ".join(CODECS)

# Every strategy has these options. A strategy registers its own options besides.
COMMON = {
    "route": "min | store_and_forward: the cost of a message over several links",
    "codec": f"{_CODECS}: how activations and gradients are coded on links",
    "input_codec": f"{_CODECS}: how samples are coded on links; images lose nothing with int8",
}
MICRO_BATCHES = {
    "micro_batches": "number of pieces of a minibatch, 1 up to the batch size",
    "in_flight": "how many pieces may be under way at once",
    "ahead": "minibatches that a source without layers may feed ahead; 1 is serial",
}


def choice(task: Task, key: str, allowed: Iterable[str], default: str) -> str:
    """The value of an option that has a few allowed values; InputError for another value."""
    value = task.options.get(key, default)
    if value not in allowed:
        raise _refused(key, value, f"one of {', '.join(allowed)}")
    return value


def integer(task: Task, key: str, default: int, *, high: int | None = None) -> int:
    """A whole number from 1 up to `high`."""
    text = task.options.get(key)
    return default if text is None else _whole(key, text, text, high)


def integers(task: Task, key: str, default: list[int], *, high: int | None = None) -> list[int]:
    """As many whole numbers as `default` has, separated by commas. A single number is used for all places."""
    text = task.options.get(key)
    if text is None:
        return default
    parts = text.split(",")
    if len(parts) not in (1, len(default)):
        raise _refused(key, text, f"one whole number, or {len(default)} with commas")
    numbers = [_whole(key, text, part, high) for part in parts]
    return numbers * len(default) if len(numbers) == 1 else numbers


def _whole(key: str, text: str, part: str, high: int | None) -> int:
    rule = "a whole number from 1 up" + ("" if high is None else f" to {high}")
    # int() would also accept "1_0" and " 7 ", which are probably mistakes.
    if not (part.isascii() and part.isdigit() and len(part) < 10):
        raise _refused(key, text, rule)
    value = int(part)
    if value < 1 or (high is not None and value > high):
        raise _refused(key, text, rule)
    return value


def micro_batches(task: Task) -> int:
    """The number of pieces of a minibatch: the user's number, else 1."""
    return integer(task, "micro_batches", 1, high=task.batch)


def in_flight(task: Task, default: int) -> int:
    """How many pieces may be under way at once."""
    return integer(task, "in_flight", default)


def ahead(task: Task, pieces: int) -> int:
    """1 (serial) if the minibatch is whole; else 2, so that the next minibatch's samples are sent
    meanwhile."""
    return integer(task, "ahead", 1 if pieces == 1 else 2)


def route(task: Task) -> Route:
    """How a message travels over several links."""
    return cast(Route, choice(task, "route", get_args(Route), "min"))


def codec(task: Task) -> CodecName:
    """The codec of activations and their gradients."""
    return choice(task, "codec", CODECS, "none")


def input_codec(task: Task) -> CodecName:
    """The codec of the samples."""
    return choice(task, "input_codec", CODECS, "none")


def device_list(task: Task, key: str) -> tuple[str, ...]:
    """Comma-separated names of different devices that the source can reach; empty if not set."""
    text = task.options.get(key)
    if text is None:
        return ()
    names = tuple(name.strip() for name in text.split(","))
    if len(set(names)) != len(names):
        raise _refused(key, text, "different devices, separated by commas")
    for name in names:
        task.fleet.route(task.source, name)  # refuses an unknown device and one out of reach
    return names


def _refused(key: str, value: str, rule: str) -> InputError:
    return InputError(f"--set {key}={value} is not allowed; it must be {rule}")
