"""Turns the result of `torch.export` into Weft's nodes, values and state.

In-place operators become ordinary ones, sizes that depend on the batch become `Batch`, and every
operator must be in the table (`operators`). What cannot be written so is `Unsuited`: capture then lets torch
take the program apart (functional.py) and tries again.
"""

from __future__ import annotations

import math
import operator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import HigherOrderOperator
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from weft.dtypes import DTYPE_BYTES
from weft.errors import InputError
from weft.graph.capture.advice import for_operator
from weft.graph.capture.signature import Constant
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
from weft.graph.operators.calls import (
    ADD,
    ALIAS,
    COUNTER,
    GETITEM,
    LITERAL,
    TO_DTYPE,
    renewed,
    snapshot,
)
from weft.graph.operators.table import OPERATORS

_DROPPED_KWARGS = {"layout", "device", "pin_memory", "memory_format", "non_blocking", "generator"}
_DEVICE_MOVES = ("aten.to.device", "aten.to.prim_Device")
_COUNTED = "num_batches_tracked"  # a batch norm's buffer, which only counts
LITERAL_NUMBERS = 4096  # a tensor that is no state may have so many: they travel with the graph


class Unsuited(InputError):
    """The program has an operator outside of the table, or changes something in place."""


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
        # torch's names -> ours: state has its path, and a node whose name is also a path has another one
        self._ours: dict[str, str] = {}
        self._names: dict[str, str] = {}  # a value that was changed in place -> its new value
        self._viewed: dict[str, str] = {}  # a view -> the value that it is a view of
        self._samples: set[Any] = set()  # torch's symbols for the number of samples

    def rewrite(self) -> Rewriter:
        """Reads the whole program and puts the results into this object's fields."""
        specs = {spec.arg.name: spec for spec in self.program.graph_signature.input_specs}
        placeholders = [n for n in self.program.graph.nodes if n.op == "placeholder"]
        inputs = [n for n in placeholders if specs[n.name].kind == InputKind.USER_INPUT]
        self._samples = set().union(
            *(_symbols(n.meta["val"].shape[0]) for n in inputs if _is_batch(n))
        )
        paths = {self._path(s.target) for s in specs.values() if s.kind != InputKind.USER_INPUT}
        taken = [n.name for n in self.program.graph.nodes if n.name in paths]
        self._ours = {name: f"{name}@node" for name in taken}
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                self._placeholder(node, specs[node.name])
            elif node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                self._output(node)
            elif (
                node.op != "get_attr"
            ):  # a graph of its own, which the operator that reads it refuses
                raise InputError(f"{self._at(node)}: {node.op} cannot be captured")
        return self

    def _path(self, target: str | None) -> str:
        return self.canonical.get(target or "", target or "")

    def _own(self, node: fx.Node) -> str:
        """Our name of a node."""
        return self._ours.get(node.name, node.name)

    def _placeholder(self, node: fx.Node, spec: Any) -> None:
        if spec.kind == InputKind.USER_INPUT:
            if not isinstance(node.meta.get("val"), Tensor):
                raise InputError(f"{self.label}: input {node.name} is not a tensor")
            self.inputs.append(self._own(node))
            self._note_value(node)
            return
        if spec.kind == InputKind.CUSTOM_OBJ:
            reader = next(iter(node.users), node)
            raise InputError(
                f"{self._at(reader)}: forward uses an object of its own there (a torch.Generator?), which "
                "devices would not have. Draw random numbers without generator=, or draw them once in "
                "__init__ and keep them in a buffer (register_buffer)"
            )
        if spec.kind == InputKind.CONSTANT_TENSOR and self._literal(node, spec.target):
            return
        path = self._path(spec.target)
        self._ours[node.name] = path
        tensor = node.meta["val"]
        if tensor.is_complex():
            raise InputError(
                f"{self.label}: {path} has complex numbers, which are not sent; keep them as real ones with "
                "a last dimension of 2, and use torch.view_as_complex in forward"
            )
        trainable = spec.kind == InputKind.PARAMETER and bool(tensor.requires_grad)
        self.state[path] = State(tuple(tensor.shape), _dtype(tensor.dtype), trainable)

    def _call(self, node: fx.Node) -> None:
        value = node.meta.get("val")
        if isinstance(value, int | torch.SymInt | float | bool):
            return  # a size: its readers get it as a number or a Batch
        if str(node.target).startswith("aten._assert"):
            return  # a check of what was captured: it computes nothing (`.float()` leaves one)
        op = GETITEM if node.target is operator.getitem else str(node.target)
        if isinstance(node.target, HigherOrderOperator):
            op = f"torch.ops.higher_order.{op}"
            raise Unsuited(f"{self._at(node)}: {op} cannot be captured{for_operator(op)}")
        args, kwargs = self._arguments(node)
        if (
            op in _DEVICE_MOVES
        ):  # there is one device: `to` only changes the type of numbers, or nothing
            dtype = kwargs.pop("dtype", args[2] if len(args) > 2 else None)
            op = TO_DTYPE if dtype is not None else ALIAS
            args, kwargs = [args[0], *([dtype] if dtype is not None else [])], {}
        if op.startswith("aten.") and op.split(".")[1].endswith("_") and op not in OPERATORS:
            op = self._out_of_place(node, op)
        if op not in OPERATORS:
            raise Unsuited(
                f"{self._at(node)}: operator {op} is not one that Weft knows{for_operator(op)}"
            )
        name = self._own(node)
        self.nodes.append(Node(name, op, args, kwargs))
        if OPERATORS[op].view and isinstance(args[0], Ref):
            self._viewed[name] = self._viewed.get(args[0].name, args[0].name)
        if isinstance(value, Tensor):
            self._note_value(node)
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        self.modules[name] = stack[-1][0] if stack else ""

    def _out_of_place(self, node: fx.Node, op: str) -> str:
        """relu_(x) becomes y = relu(x), and later readers of x read y."""
        _, base, overload = op.split(".")
        target = node.args[0]
        assert isinstance(target, fx.Node)
        name = self._resolved(target.name)
        if name in self.state:
            if base == "add_" and name.endswith(_COUNTED):
                self._names[self._own(node)] = name  # a second call counts in the same buffer
                return COUNTER
            raise Unsuited(f"{self._at(node)}: {op} changes {name} in place")
        root = self._viewed.get(name, name)
        if root != name or root in self._viewed.values():
            raise Unsuited(f"{self._at(node)}: {op} changes a tensor that other views share")
        self._names[name] = self._own(node)
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
                raise Unsuited(f"{self._at(node)}: keyword {key} of {node.target} is computed")
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
        """Our name of the newest value of torch's node."""
        name = self._ours.get(name, name)
        while name in self._names:
            name = self._names[name]
        return name

    def _symbolic(self, node: fx.Node, size: torch.SymInt) -> Atom:
        """A size as times * B + plus, where B is the number of samples."""
        b2, b3, b7 = (self._at_batch(node, size, b) for b in (2, 3, 7))
        times = b3 - b2
        if b7 != b2 + 5 * times:
            raise InputError(f"{self._at(node)}: the size {size} is not linear in the batch size")
        return Batch(times, b2 - 2 * times) if times else b2

    def _at_batch(self, node: fx.Node, size: int | torch.SymInt, batch: int) -> int:
        """A size for so many samples. Raises InputError if it depends on anything else."""
        if isinstance(size, int):
            return size
        expression = size.node.expr
        if expression.free_symbols - self._samples:
            raise InputError(
                f"{self._at(node)}: the size {size} depends on the numbers in a tensor; only the number of "
                "samples may change the shapes in a network. In place of x[mask], multiply by the mask"
            )
        return int(expression.subs(dict.fromkeys(expression.free_symbols, batch)))

    def _literal(self, node: fx.Node, target: str) -> bool:
        """Writes a small tensor that is neither parameter nor buffer as numbers into the graph."""
        tensor = self.program.constants[target]
        if (
            not isinstance(tensor, Tensor)
            or tensor.numel() > LITERAL_NUMBERS
            or tensor.is_complex()
        ):
            return False
        numbers = tensor.detach().flatten().tolist()
        if any(isinstance(x, torch.SymFloat | torch.SymInt) for x in numbers):
            raise InputError(
                f"{self.label} cannot be captured: forward computes a gradient of its own (torch.func.grad, "
                "jvp); write the derivative down, or leave it out"
            )
        flat: list[Atom] = [self._atom(node, x) for x in numbers]
        shape: list[Atom] = list(tensor.shape)
        self.nodes.append(
            Node(self._own(node), LITERAL, [flat, shape, DType(_dtype(tensor.dtype))])
        )
        self._note_value(node)
        return True

    def _note_value(self, node: fx.Node) -> None:
        """Notes the shape of a tensor. Complex numbers have none: a cut never carries them."""
        if not node.meta["val"].is_complex():
            self.values[self._own(node)] = self._value(node)

    def _value(self, node: fx.Node) -> Value:
        tensor = node.meta["val"]
        one = tuple(self._at_batch(node, n, 1) for n in tensor.shape)
        two = tuple(self._at_batch(node, n, 2) for n in tensor.shape)
        growing = [i for i, (a, b) in enumerate(zip(one, two, strict=True)) if a != b]
        exact = growing[0] if len(growing) == 1 and one[growing[0]] == 1 else None
        return Value(one, _dtype(tensor.dtype), exact, bool(growing))

    def _output(self, node: fx.Node) -> None:
        specs = self.program.graph_signature.output_specs
        for item, spec in zip(node.args[0], specs, strict=True):  # type: ignore[arg-type]
            if spec.kind == OutputKind.BUFFER_MUTATION:
                self._buffer_changed(item, spec.target)
            if spec.kind == OutputKind.PARAMETER_MUTATION:
                raise InputError(
                    f"{self.label} changes its parameter {spec.target} in forward, and each device would do "
                    "so at another time; compute with a changed copy (self.weight.clamp(-1, 1))"
                )
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

    def _buffer_changed(self, item: fx.Node, buffer: str) -> None:
        """A buffer takes a new value at the end. Its readers read a copy of the old one."""
        calls = self._counted(self._resolved(item.name), buffer)
        if calls:
            name = self._resolved(item.name)
            made = next(n for n in self.nodes if n.name == name)
            self.nodes[self.nodes.index(made)] = Node(name, COUNTER, [Ref(buffer), calls])
            return
        if all(n.name != f"{buffer}@before" for n in self.nodes):
            self.nodes = [
                snapshot(f"{buffer}@before", buffer),
                *(_reading(n, buffer) for n in self.nodes),
            ]
        self.nodes.append(renewed(f"{buffer}@after", buffer, self._resolved(item.name)))

    def _counted(self, name: str, buffer: str) -> int:
        """How often a batch norm's counter was raised by 1 until it had this value; 0 if it is none."""
        made, calls = {node.name: node for node in self.nodes}, 0
        while buffer.endswith(_COUNTED) and name in made and made[name].op == ADD:
            source, calls = made[name].args[0], calls + 1
            if source == Ref(buffer):
                return calls
            name = source.name if isinstance(source, Ref) else ""
        return 0

    def _at(self, node: fx.Node) -> str:
        return place_of(node, self.label)


def place_of(node: fx.Node, label: str) -> str:
    """Where in the user's code a node comes from, behind the network's name."""
    lines = [
        line.strip() for line in (node.meta.get("stack_trace") or "").splitlines()
        if line.strip().startswith("File") and "/torch/" not in line and '"<' not in line
    ]  # fmt: skip
    if not lines:
        return f"{label}, {node.name}"
    file, line, *_ = lines[-1].removeprefix("File ").split(", ")
    return f"{label} ({Path(file.strip(chr(34))).name}, {line})"


def _reading(node: Node, buffer: str) -> Node:
    """The node with the copy of a buffer in place of the buffer."""

    def atom(a: Atom) -> Atom:
        return Ref(f"{buffer}@before") if a == Ref(buffer) else a

    args: list[Arg] = [[atom(a) for a in g] if isinstance(g, list) else atom(g) for g in node.args]
    return Node(node.name, node.op, args, node.kwargs)


def _is_batch(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.dim() > 0


def _symbols(size: int | torch.SymInt) -> set[Any]:
    """torch's symbols in a size."""
    return set(size.node.expr.free_symbols) if isinstance(size, torch.SymInt) else set()


def _dtype(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPE_BYTES:
        raise InputError(f"tensors of type {name} are not supported ({', '.join(DTYPE_BYTES)} are)")
    return name
