"""What hiertrain+ codes: what `codecs` allows, and what the user names."""

from __future__ import annotations

from typing import NamedTuple

from weft.codecs.registry import CodecName, coded_bytes
from weft.errors import InputError
from weft.plans import options
from weft.plans.task import Task

WHAT_IS_CODED = ("none", "activations", "weights", "all")  # each includes those before it
IN_8_BITS: CodecName = "int8"


class Codecs(NamedTuple):
    """How each kind of message is coded."""

    activations: CodecName
    weight_gradients: CodecName
    samples: CodecName


def chosen_codecs(task: Task) -> Codecs:
    """What `codecs` allows; a codec that the user names is taken. InputError where the two contradict."""
    level = WHAT_IS_CODED.index(options.choice(task, "codecs", WHAT_IS_CODED, "all"))
    chosen: dict[str, CodecName] = {}
    for key, named, needed in (
        ("codec", options.codec(task), 1),
        ("input_codec", options.input_codec(task), 3),
    ):
        chosen[key] = named if key in task.options else IN_8_BITS if level >= needed else "none"
        both = "codecs" in task.options and key in task.options
        if both and in_8_bits(named) != (level >= needed):
            what = "samples" if needed == 3 else "activations"
            raise InputError(
                f"--set codecs={task.options['codecs']} "
                f"{'sends' if level >= needed else 'does not send'} {what} in 8 bits, "
                f"--set {key}={named} says otherwise: leave one of them out"
            )
    weight_gradients: CodecName = IN_8_BITS if level >= 2 else "none"
    return Codecs(chosen["codec"], weight_gradients, chosen["input_codec"])


def without_own(task: Task, codecs: Codecs) -> Codecs:
    """The same, but only with codecs that the user names."""
    return Codecs(
        codecs.activations if "codec" in task.options else "none",
        "none",
        codecs.samples if "input_codec" in task.options else "none",
    )


def in_8_bits(codec: CodecName) -> bool:
    """Whether a codec sends a number of four bytes as about one."""
    return coded_bytes(4000, codec) < 1500
