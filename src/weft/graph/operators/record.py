"""What Weft knows of one operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from weft.errors import InputError
from weft.graph.operators.flops import Flops
from weft.graph.operators.rows import Rows

Function = Callable[..., Any]

# How the units of a result (neurons, channels) come from those of what it reads:
# elementwise: one place of the result from that place of each operand
# per_channel: one channel of a map from that channel of the map before it, as in pools
# dense: each unit from all units before it, by a row of a matrix
# channels: each channel from all channels before it, by a kernel
# reshape: the same numbers in another shape
Units = Literal["elementwise", "per_channel", "dense", "channels", "reshape"]

# What stays in memory until the backward pass: the values that it reads, its result, both or neither; of a
# maximum also where it was, of dropout what was dropped, of attention with dropout its matrix three times.
Keeps = Literal["inputs", "result", "both", "neither"]


@dataclass(frozen=True)
class Operator:
    """One operator. Whatever a field leaves open cannot be done with the operator, and is refused.

    Operator("aten.relu.default", direct="torch.relu", rows=ELEMENTWISE, units="elementwise")
    """

    name: str  # what graphs say; `aten.NAME.OVERLOAD` is PyTorch's own name
    direct: str = (
        ""  # a shorter way to the same function than PyTorch's dispatcher, as a dotted name
    )
    flops: Flops | None = None  # floating-point operations; None: counted as nothing
    weighted: bool = False  # a new layer begins where it reads a parameter
    view: bool = False  # its result shares memory with its first argument, and costs none
    keeps: Keeps = "result"  # what autograd keeps of it for the backward pass
    rows: Rows | None = None  # how rows of its result come from rows of maps; None: from all rows
    units: Units | None = None  # None: units of its result do not stand alone
    gives_sizes: bool = (
        False  # its arguments say the result's size, also where only some units are here
    )
    random: bool = (
        False  # draws numbers in training; the caller's seed and the node's name decide which
    )
    training_flag: int | None = None  # position of the argument that says "training"
    drop_probability: int | None = None  # position of the argument that says how much to drop
    training_only: bool = False  # left out when the network only infers

    @property
    def normalises_batch(self) -> bool:
        """Whether it normalises by the statistics of the samples at hand, in training."""
        return self.training_flag is not None and not self.random

    @property
    def elementwise(self) -> bool:
        """Whether one place of the result comes from that place of each operand alone."""
        return self.units == "elementwise"

    @cached_property
    def function(self) -> Function:
        """What a node calls."""
        import torch

        if self.direct:
            return _at(self.direct)
        _, base, overload = self.name.split(".")
        function: Function | None = getattr(getattr(torch.ops.aten, base, None), overload, None)
        if function is None:
            raise InputError(f"operator {self.name} is not in PyTorch {torch.__version__}")
        return function


def _at(path: str) -> Function:
    """The function at a dotted name of the table."""
    import operator

    import torch

    from weft.graph import synced_norm

    first, *rest = path.split(".")
    value: Any = {"torch": torch, "operator": operator, "synced_norm": synced_norm}[first]
    for name in rest:
        value = getattr(value, name)
    function: Function = value
    return function
