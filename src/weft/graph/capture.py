"""From an nn.Module to a Graph: plain data that any node can rebuild and run.

    graph = capture(model, torch.zeros(2, 1, 28, 28))
    graph = capture_loss(graph, nn.CrossEntropyLoss(), torch.zeros(2, dtype=torch.long))

`torch.export` traces the module (training mode, dynamic batch size). `rewrite.py` turns the result into
Weft's nodes.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from weft.errors import InputError
from weft.graph.execute import Runner
from weft.graph.layers import split_layers
from weft.graph.loss_probe import adds_up
from weft.graph.modes import check_modes, in_training_mode
from weft.graph.network import (
    Arg,
    Atom,
    Graph,
    Loss,
    Node,
    Ref,
    Segment,
    State,
)
from weft.graph.rewrite import Rewriter


def capture(module: nn.Module, example: Tensor | Sequence[Tensor], *, name: str = "") -> Graph:
    """The network as a Graph. `example`: one input (or several), samples along dimension 0."""
    label = name or type(module).__name__.lower()
    inputs = (example,) if isinstance(example, Tensor) else tuple(example)
    traced = _traced(module, inputs, label)
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
    """The same graph with a loss: any function of (output, target) that returns a scalar.

    `target` are targets from the data. The more targets are given, the more certainly Weft detects which of
    them the loss masks.
    """
    module = loss if isinstance(loss, nn.Module) else _Function(loss)
    shape = graph.values[graph.output].shape
    output = torch.rand(4, *shape[1:])  # between 0 and 1 every loss of PyTorch is defined
    targets = target.detach().cpu()
    target = targets[:4].repeat(4, *[1] * (target.dim() - 1))[:4]
    name = getattr(loss, "__name__", type(loss).__name__)
    label = f"loss {name}"
    traced = _traced(module, (output, target), label)
    names = {n: f"loss_{n}" for n in [*(node.name for node in traced.nodes), *traced.state]}
    names |= dict(zip(traced.inputs, (graph.output, "target"), strict=True))
    record = Loss(
        nodes=[_renamed(node, names) for node in traced.nodes],
        inputs=(graph.output, "target"),
        output=names[traced.outputs[0]],
        target=traced.values[traced.inputs[1]],
        reduction="mean",
        state=[names[n] for n in traced.state],
        name=name,
    )
    state = {names[n]: msgspec.structs.replace(s, trainable=False) for n, s in traced.state.items()}
    run = _loss_runner(record, state, state_of(nn.Module(), module))
    with torch.random.fork_rng(devices=[]):
        once = run(output, target)
        if once.dim() != 0:
            raise InputError(
                f"the loss returns shape {tuple(once.shape)}; it must return one number"
            )
        reduction, over = adds_up(run, shape, targets, _ignored(module))
    record = msgspec.structs.replace(record, reduction=reduction, over=over)
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
    """A plain function as a module, because torch.export takes only modules."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return self.function(output, target)


def _loss_runner(
    record: Loss, state: dict[str, State], tensors: dict[str, Tensor]
) -> Callable[[Tensor, Tensor], Tensor]:
    """The captured loss as a function, with its own copies of its weights."""
    copies = {name: tensors[name].clone() for name in state}
    runner = Runner(Segment(0, 0, [], {}, {}, state, loss=record), copies)
    return lambda output, target: runner.loss(output, target, len(output))


def _ignored(module: nn.Module) -> set[int]:
    """Class numbers that a loss ignores. Every cross entropy names -100, whether the data has it or not."""
    numbers = {getattr(part, "ignore_index", -100) for part in module.modules()}
    return {n for n in numbers if isinstance(n, int) and n != -100}


def _traced(module: nn.Module, inputs: tuple[Tensor, ...], label: str) -> Rewriter:
    """The module as nodes. All its tensors must be parameters or buffers, because tensors are sent by
    name."""
    traced = Rewriter(label, *_export(module, inputs, label)).rewrite()
    foreign = sorted(traced.state.keys() - state_of(module).keys())
    if foreign:
        shapes = ", ".join(str(tuple(traced.state[name].shape)) for name in foreign[:3])
        raise InputError(
            f"{label} uses tensors (of shape {shapes}) that are neither parameters nor buffers, so that "
            "other devices would not get them; make it an nn.Module that keeps them with register_buffer"
        )
    return traced


def _export(
    module: nn.Module, inputs: tuple[Tensor, ...], label: str
) -> tuple[ExportedProgram, dict[str, str]]:
    for i, x in enumerate(inputs):
        if x.dim() == 0:
            raise InputError(f"example input {i} of {label} has no batch dimension")
    # Batch sizes 0 and 1 are special to torch.export: trace with 3.
    grown = tuple(torch.cat([x] * (-(-3 // x.shape[0])))[:3] if len(x) else x for x in inputs)
    check_modes(module, label)
    try:
        with in_training_mode(module), _quiet():
            shapes = tuple({0: Dim.DYNAMIC} for _ in grown)
            program = torch.export.export(
                module, grown, dynamic_shapes=_nest(module, shapes), strict=False
            )
    except Exception as error:
        raise InputError(f"{label} cannot be captured{_where(error)}: {_brief(error)}") from error
    aliases: dict[int, str] = {}  # a tied parameter has several names: use the first one
    names = {}
    for name, tensor in module.named_parameters(remove_duplicate=False):
        names[name] = aliases.setdefault(id(tensor), name)
    return program, names


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppresses torch's warnings, log and dumps: Weft's error message says what went wrong."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def _nest(module: nn.Module, shapes: tuple[dict[int, Any], ...]) -> Any:
    """torch.export matches dynamic shapes to forward's parameters; *args takes them as one tuple."""
    import inspect

    parameters = list(inspect.signature(module.forward).parameters.values())
    if parameters and parameters[0].kind is inspect.Parameter.VAR_POSITIONAL:
        return (shapes,)
    return shapes


def _where(error: BaseException) -> str:
    """The last line of the user's code in an error's traceback."""
    skip = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
    place = ""
    trace = error.__traceback__
    while trace is not None:
        filename = trace.tb_frame.f_code.co_filename
        if not filename.startswith((*skip, "<")) and "/contextlib" not in filename:
            place = f" ({Path(filename).name}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return place


def _brief(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:3])[:400] or type(error).__name__


def _renamed(node: Node, names: dict[str, str]) -> Node:
    def atom(a: Atom) -> Atom:
        return Ref(names.get(a.name, a.name)) if isinstance(a, Ref) else a

    args: list[Arg] = [[atom(a) for a in g] if isinstance(g, list) else atom(g) for g in node.args]
    return Node(names.get(node.name, node.name), node.op, args, node.kwargs)
