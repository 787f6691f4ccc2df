"""Turns the result of `torch.export` into Weft's nodes, values and state.

In-place operators become ordinary ones, sizes that depend on the batch become `Batch`, and every
operator must be in the table (`operators`).
"""

from __future__ import annotations

import math
import operator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from weft.dtypes import DTYPE_BYTES
from weft.errors import InputError
from weft.graph.network import (
    Arg,
    Atom,
    Batch,
    DType,
    Infinite,
    Node,
    Ref,
    State,
    Value,
)
from weft.graph.operators.calls import COUNTER, GETITEM
from weft.graph.operators.table import OPERATORS
from weft.graph.signature import Constant

_DROPPED_KWARGS = {"layout", "device", "pin_memory", "memory_format", "non_blocking"}


class Rewriter:
    """Turns an exported program into nodes, values and state."""

    def __init__(self, label: str, program: ExportedProgram, canonical: dict[str, str]) -> None:
        self.label = label
        self.program = program
        self.canonical = canonical
        self.nodes: list[Node] = []
        self.inputs: list[str] = []
        self.outputs: list[str | Constant] = []  # every leaf of what the module returns
        self.values: dict[str, Value] = {}
        self.state: dict[str, State] = {}
        self.modules: dict[str, str] = {}  # node -> the module path it came from
        self._names: dict[str, str] = {}  # fx name -> ours (state by its path; in-place rebinding)
        self._viewed: dict[str, str] = {}  # a view -> the value that it is a view of

    def rewrite(self) -> Rewriter:
        """Reads the whole program and puts the results into this object's fields."""
        specs = {spec.arg.name: spec for spec in self.program.graph_signature.input_specs}
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                self._placeholder(node, specs[node.name])
            elif node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                self._output(node)
            else:
                raise InputError(f"{self._at(node)}: {node.op} cannot be captured")
        return self

    def _placeholder(self, node: fx.Node, spec: Any) -> None:
        if spec.kind == InputKind.USER_INPUT:
            if not isinstance(node.meta.get("val"), Tensor):
                raise InputError(f"{self.label}: input {node.name} is not a tensor")
            self.inputs.append(node.name)
            self.values[node.name] = self._value(node)
            return
        path = self.canonical.get(spec.target, spec.target)
        self._names[node.name] = path
        tensor = node.meta["val"]
        trainable = spec.kind == InputKind.PARAMETER and bool(tensor.requires_grad)
        self.state[path] = State(tuple(tensor.shape), _dtype(tensor.dtype), trainable)

    def _call(self, node: fx.Node) -> None:
        value = node.meta.get("val")
        if isinstance(value, int | torch.SymInt | float | bool):
            return  # a size: its readers get it as a number or a Batch
        if str(node.target).startswith("aten._assert"):
            return  # a check of what was captured: it computes nothing (`.float()` leaves one)
        op = GETITEM if node.target is operator.getitem else str(node.target)
        args, kwargs = self._arguments(node)
        if op.startswith("aten.") and op.split(".")[1].endswith("_") and op not in OPERATORS:
            op = self._out_of_place(node, op)
        if op not in OPERATORS:
            raise InputError(f"{self._at(node)}: operator {op} is not one that Weft knows")
        record = Node(node.name, op, args, kwargs)
        self.nodes.append(record)
        if OPERATORS[op].view and isinstance(args[0], Ref):
            self._viewed[node.name] = self._viewed.get(args[0].name, args[0].name)
        if isinstance(value, Tensor):
            self.values[node.name] = self._value(node)
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        self.modules[node.name] = stack[-1][0] if stack else ""

    def _out_of_place(self, node: fx.Node, op: str) -> str:
        """relu_(x) becomes y = relu(x), and later readers of x read y."""
        _, base, overload = op.split(".")
        target = node.args[0]
        assert isinstance(target, fx.Node)
        name = self._resolved(target.name)
        if name in self.state:
            if base == "add_":
                return COUNTER
            raise InputError(f"{self._at(node)}: {op} changes {name} in place")
        root = self._viewed.get(name, name)
        if root != name or root in self._viewed.values():
            raise InputError(f"{self._at(node)}: {op} changes a tensor that other views share")
        self._names[name] = node.name
        return f"aten.{base[:-1]}.{overload}"

    def _arguments(self, node: fx.Node) -> tuple[list[Arg], dict[str, Arg]]:
        args, kwargs = list(node.args), dict(node.kwargs)
        schema = getattr(node.target, "_schema", None)
        if schema is not None:
            for argument in schema.arguments[len(args) :]:
                if argument.kwarg_only or not kwargs:
                    break
                if argument.name not in kwargs and not any(
                    later.name in kwargs and not later.kwarg_only for later in schema.arguments
                ):
                    break
                args.append(kwargs.pop(argument.name, argument.default_value))
        kept = {k: self._arg(node, v) for k, v in kwargs.items() if k not in _DROPPED_KWARGS}
        for key, value in kept.items():
            if isinstance(value, Ref | Batch):
                raise InputError(f"{self._at(node)}: keyword {key} of {node.target} is computed")
        return [self._arg(node, a) for a in args], kept

    def _arg(self, node: fx.Node, arg: Any) -> Arg:
        if isinstance(arg, list | tuple):
            return [self._atom(node, a) for a in arg]
        return self._atom(node, arg)

    def _atom(self, node: fx.Node, arg: Any) -> Atom:
        if isinstance(arg, fx.Node):
            value = arg.meta.get("val")
            if isinstance(value, torch.SymInt):
                return self._symbolic(node, value)
            if isinstance(value, bool | int | float):
                return value
            return Ref(self._resolved(arg.name))
        if isinstance(arg, torch.SymInt):
            return self._symbolic(node, arg)
        if isinstance(arg, float) and not math.isfinite(arg):
            return Infinite(str(arg))
        if arg is None or isinstance(arg, bool | int | float | str):
            return arg
        if isinstance(arg, torch.dtype):
            return DType(_dtype(arg))
        if isinstance(arg, torch.device | torch.layout | torch.memory_format):
            return None
        raise InputError(f"{self._at(node)}: argument {arg!r} of {node.target} is not plain data")

    def _resolved(self, name: str) -> str:
        while name in self._names and self._names[name] != name:
            name = self._names[name]
        return name

    def _symbolic(self, node: fx.Node, size: torch.SymInt) -> Atom:
        """A size as times * B + plus: every symbol is the batch size, since nothing else is dynamic."""
        b2, b3, b7 = (_at_batch(size, b) for b in (2, 3, 7))
        times = b3 - b2
        if b7 != b2 + 5 * times:
            raise InputError(f"{self._at(node)}: the size {size} is not linear in the batch size")
        return Batch(times, b2 - 2 * times) if times else b2

    def _value(self, node: fx.Node) -> Value:
        tensor = node.meta["val"]
        one = tuple(_at_batch(n, 1) for n in tensor.shape)
        two = tuple(_at_batch(n, 2) for n in tensor.shape)
        growing = [i for i, (a, b) in enumerate(zip(one, two, strict=True)) if a != b]
        exact = growing[0] if len(growing) == 1 and one[growing[0]] == 1 else None
        return Value(one, _dtype(tensor.dtype), exact, bool(growing))

    def _output(self, node: fx.Node) -> None:
        specs = self.program.graph_signature.output_specs
        for item, spec in zip(node.args[0], specs, strict=True):  # type: ignore[arg-type]
            if spec.kind != OutputKind.USER_OUTPUT:
                continue
            if isinstance(item, fx.Node) and isinstance(item.meta.get("val"), Tensor):
                self.outputs.append(self._resolved(item.name))
            elif item is None or isinstance(item, bool | int | float | str):
                self.outputs.append(Constant(item))
            else:
                raise InputError(
                    f"{self.label} returns {item!r}, which is neither a tensor nor a constant"
                )

    def _at(self, node: fx.Node) -> str:
        """Where in the user's code a node comes from."""
        lines = [
            line.strip() for line in (node.meta.get("stack_trace") or "").splitlines()
            if line.strip().startswith("File") and "/torch/" not in line
        ]  # fmt: skip
        if not lines:
            return f"{self.label}, {node.name}"
        file, line, *_ = lines[-1].removeprefix("File ").split(", ")
        return f"{self.label} ({Path(file.strip(chr(34))).name}, {line})"


def _at_batch(size: int | torch.SymInt, batch: int) -> int:
    if isinstance(size, int):
        return size
    expression = size.node.expr
    return int(expression.subs(dict.fromkeys(expression.free_symbols, batch)))


def _dtype(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPE_BYTES:
        raise InputError(f"tensors of type {name} are not supported ({', '.join(DTYPE_BYTES)} are)")
    return name
