"""From an nn.Module to a Graph: plain data that any node can rebuild and run.

    graph = capture(model, torch.zeros(2, 1, 28, 28))
    graph = capture_loss(graph, nn.CrossEntropyLoss(), torch.zeros(2, dtype=torch.long))

`torch.export` does the tracing (training mode, dynamic batch size); what it gives is rewritten into
our own nodes: in-place operators become ordinary ones, sizes that depend on the batch become
`Batch`, and every operator must be one of `operators.OPERATORS`.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind

from weft.errors import InputError
from weft.graph.layers import split_layers
from weft.graph.network import (
    DTYPE_BYTES,
    Arg,
    Atom,
    Batch,
    DType,
    Graph,
    Infinite,
    Loss,
    Node,
    Ref,
    State,
    Value,
)
from weft.graph.operators import OPERATORS, VIEWS

_DROPPED_KWARGS = {"layout", "device", "pin_memory", "memory_format", "non_blocking"}


def capture(module: nn.Module, example: Tensor | Sequence[Tensor], *, name: str = "") -> Graph:
    """The network as a Graph. `example`: one input (or several), samples along dimension 0."""
    label = name or type(module).__name__.lower()
    inputs = (example,) if isinstance(example, Tensor) else tuple(example)
    traced = _Rewriter(label, *_export(module, inputs, label)).rewrite()
    if len(traced.outputs) != 1:
        raise InputError(
            f"{label} returns {len(traced.outputs)} tensors; Weft runs networks that return one "
            "(wrap the module so that forward returns the tensor the loss reads)"
        )
    values, inputs_named = traced.values, traced.inputs
    layers = split_layers(
        traced.nodes, inputs_named, traced.outputs[0], values, traced.state, traced.modules
    )
    return Graph(label, inputs_named, traced.outputs[0], layers, values, traced.state)


def capture_loss(
    graph: Graph, loss: nn.Module | Callable[[Tensor, Tensor], Tensor], target: Tensor
) -> Graph:
    """The same graph with a loss: any function of (output, target) that returns a scalar."""
    module = loss if isinstance(loss, nn.Module) else _Function(loss)
    shape = graph.values[graph.output].shape
    output = torch.rand(4, *shape[1:])  # between 0 and 1 every loss of PyTorch is defined
    target = target.detach().cpu().repeat(4, *[1] * (target.dim() - 1))[:4]
    label = f"loss {type(module).__name__}"
    traced = _Rewriter(label, *_export(module, (output, target), label)).rewrite()
    names = {n: f"loss_{n}" for n in [*(node.name for node in traced.nodes), *traced.state]}
    names |= dict(zip(traced.inputs, (graph.output, "target"), strict=True))
    record = Loss(
        nodes=[_renamed(node, names) for node in traced.nodes],
        inputs=(graph.output, "target"),
        output=names[traced.outputs[0]],
        target=traced.values[traced.inputs[1]],
        reduction=_reduction(module, output, target),
        state=[names[n] for n in traced.state],
    )
    state = {names[n]: msgspec.structs.replace(s, trainable=False) for n, s in traced.state.items()}
    return msgspec.structs.replace(graph, loss=record, state={**graph.state, **state})


def state_of(module: nn.Module, loss: nn.Module | None = None) -> dict[str, Tensor]:
    """The tensors a Graph's state names, detached but not copied."""
    state = {n: t.detach() for n, t in module.named_parameters(remove_duplicate=False)}
    state |= {n: t.detach() for n, t in module.named_buffers(remove_duplicate=False)}
    if loss is not None:
        state |= {f"loss_{n}": t.detach() for n, t in loss.named_buffers()}
        state |= {f"loss_{n}": t.detach() for n, t in loss.named_parameters()}
    return state


class _Function(nn.Module):
    """A plain function as a module, which is what torch.export takes."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return self.function(output, target)


def _reduction(module: nn.Module, output: Tensor, target: Tensor) -> Any:
    """Whether a loss averages or sums over samples: it must do one of them, to be split by samples."""
    with torch.no_grad():
        once = module(output, target)
        twice = module(torch.cat([output, output]), torch.cat([target, target]))
    if once.dim() != 0:
        raise InputError(f"the loss returns shape {tuple(once.shape)}; it must return one number")
    if torch.allclose(twice, once, rtol=1e-3, atol=1e-6):
        return "mean"
    if torch.allclose(twice, 2 * once, rtol=1e-3, atol=1e-6):
        return "sum"
    raise InputError(
        "the loss is neither a mean nor a sum over samples "
        f"(4 samples: {once.item():.6g}, the same 4 twice: {twice.item():.6g})"
    )


def _export(
    module: nn.Module, inputs: tuple[Tensor, ...], label: str
) -> tuple[ExportedProgram, dict[str, str]]:
    for i, x in enumerate(inputs):
        if x.dim() == 0:
            raise InputError(f"example input {i} of {label} has no batch dimension")
    # Batch sizes 0 and 1 are special to torch.export: trace with 3.
    grown = tuple(torch.cat([x] * (-(-3 // x.shape[0])))[:3] if len(x) else x for x in inputs)
    was_training = module.training
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            shapes = tuple({0: Dim.DYNAMIC} for _ in grown)
            program = torch.export.export(
                module.train(), grown, dynamic_shapes=_nest(module, shapes), strict=False
            )
    except Exception as error:
        raise InputError(f"{label} cannot be captured{_where(error)}: {_brief(error)}") from error
    finally:
        module.train(was_training)
    aliases: dict[int, str] = {}  # a tied parameter has several names: use the first one
    names = {}
    for name, tensor in module.named_parameters(remove_duplicate=False):
        names[name] = aliases.setdefault(id(tensor), name)
    return program, names


def _nest(module: nn.Module, shapes: tuple[dict[int, Any], ...]) -> Any:
    """torch.export matches dynamic shapes to forward's parameters; *args takes them as one tuple."""
    import inspect

    parameters = list(inspect.signature(module.forward).parameters.values())
    if parameters and parameters[0].kind is inspect.Parameter.VAR_POSITIONAL:
        return (shapes,)
    return shapes


def _where(error: BaseException) -> str:
    """The last line of the user's own code on the way to an error."""
    skip = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
    found = ""
    trace = error.__traceback__
    while trace is not None:
        filename = trace.tb_frame.f_code.co_filename
        if not filename.startswith((*skip, "<")) and "/contextlib" not in filename:
            found = f" ({Path(filename).name}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return found


def _brief(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:3])[:400] or type(error).__name__


class _Rewriter:
    """Turns an exported program into nodes, values and state."""

    def __init__(self, label: str, program: ExportedProgram, canonical: dict[str, str]) -> None:
        self.label = label
        self.program = program
        self.canonical = canonical
        self.nodes: list[Node] = []
        self.inputs: list[str] = []
        self.outputs: list[str] = []
        self.values: dict[str, Value] = {}
        self.state: dict[str, State] = {}
        self.modules: dict[str, str] = {}  # node -> the module path it came from
        self._names: dict[str, str] = {}  # fx name -> ours (state by its path; in-place rebinding)
        self._viewed: dict[str, str] = {}  # a view -> what it is a view of

    def rewrite(self) -> _Rewriter:
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
        op = "getitem" if node.target is operator.getitem else str(node.target)
        args, kwargs = self._arguments(node)
        if op.startswith("aten.") and op.split(".")[1].endswith("_") and op not in OPERATORS:
            op = self._out_of_place(node, op)
        if op not in OPERATORS:
            raise InputError(f"{self._at(node)}: operator {op} is not one that Weft knows")
        record = Node(node.name, op, args, kwargs)
        self.nodes.append(record)
        if op in VIEWS and isinstance(args[0], Ref):
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
                return "buffer.add_"
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
        for item in node.args[0]:  # type: ignore[union-attr]
            if not isinstance(item, fx.Node):
                raise InputError(f"{self.label} returns {item!r}, which is not a tensor")
            self.outputs.append(self._resolved(item.name))

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


def _renamed(node: Node, names: dict[str, str]) -> Node:
    def atom(a: Atom) -> Atom:
        return Ref(names.get(a.name, a.name)) if isinstance(a, Ref) else a

    args: list[Arg] = [[atom(a) for a in g] if isinstance(g, list) else atom(g) for g in node.args]
    return Node(names.get(node.name, node.name), node.op, args, node.kwargs)
