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

# How the units of a result (neurons, channels) depend on the units of the operator's inputs:
# elementwise: one place of the result from that place of each operand
# per_channel: one channel of a map from that channel of the map before it, as in pools
# dense: each unit from all units before it, by a row of a matrix
# channels: each channel from all channels before it, by a kernel
# reshape: the same numbers in another shape
Units = Literal["elementwise", "per_channel", "dense", "channels", "reshape"]

# What stays in memory until the backward pass: the operator's inputs, its result, both or neither. A maximum
# also keeps its position, dropout its mask, and attention with dropout keeps its matrix three times.
Keeps = Literal["inputs", "result", "both", "neither"]


@dataclass(frozen=True)
class Operator:
    """One operator. What a field does not allow is refused.

    Operator("aten.relu.default", direct="torch.relu", rows=ELEMENTWISE, units="elementwise")
    """

    name: str  # the name in graphs; `aten.NAME.OVERLOAD` is PyTorch's own name
    direct: str = ""  # a faster function than PyTorch's dispatcher: its dotted name
    flops: Flops | None = None  # floating-point operations; None: counted as nothing
    recurrent: bool = False  # multiplies every step of its input with all its matrices
    weighted: bool = False  # a new layer begins where it reads a parameter
    view: bool = False  # its result shares memory with its first argument
    keeps: Keeps = "result"  # what autograd keeps of it for the backward pass
    # How rows of its result depend on rows of its inputs; None: on all rows.
    rows: Rows | None = None
    units: Units | None = None  # None: it cannot be cut by units
    # Its arguments contain the result's size, which is wrong for a part of the units.
    gives_sizes: bool = False
    # Draws random numbers in training, seeded by the caller's seed and the node's name.
    random: bool = False
    training_flag: int | None = None  # position of the argument that says "training"
    drop_probability: int | None = None  # position of the argument that says how much to drop
    drops: bool = False  # a dropout: in inference its result is its first argument
    frequency: int | None = None  # of the one that says "gradients by how often a row is read"
    training_only: bool = False  # left out when the network only infers
    own_statistics: bool = (
        False  # normalises each sample, and may keep running statistics in buffers
    )
    normalises_sample: bool = False  # or is a part of that, such as a mean over the features
    changes_state: bool = False  # writes into the buffer that is its first argument

    @property
    def normalises_batch(self) -> bool:
        """Whether it normalises with the statistics of the current samples in training."""
        return self.training_flag is not None and not self.random

    @property
    def opaque(self) -> bool:
        """Whether torch must not take it apart: it has a mode, changes buffers, or is a whole recurrence."""
        modal = self.training_flag is not None or self.drop_probability is not None
        return modal or self.recurrent or self.own_statistics

    @property
    def product(self) -> bool:
        """Whether it is a sum of products: what `--precision bf16` computes in bfloat16."""
        return self.weighted and self.flops is not None

    @property
    def always_random(self) -> bool:
        """Whether it draws random numbers in inference too."""
        return self.random and self.training_flag is None and self.drop_probability is None

    @property
    def elementwise(self) -> bool:
        """Whether each place of the result depends only on the same place of each operand."""
        return self.units == "elementwise"

    @cached_property
    def function(self) -> Function:
        """The function that a node calls."""
        import torch

        if self.direct:
            return _at(self.direct)
        _, base, overload = self.name.split(".")
        function: Function | None = getattr(getattr(torch.ops.aten, base, None), overload, None)
        if function is None:
            raise InputError(f"operator {self.name} is not in PyTorch {torch.__version__}")
        return function


def _at(path: str) -> Function:
    """The function with this dotted name."""
    import operator

    import torch

    from weft.graph import functions, synced_norm

    first, *rest = path.split(".")
    value: Any = {
        "torch": torch,
        "operator": operator,
        "synced_norm": synced_norm,
        "functions": functions,
    }[first]
    for name in rest:
        value = getattr(value, name)
    function: Function = value
    return function
