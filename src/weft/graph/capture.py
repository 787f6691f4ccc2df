"""From an nn.Module to a Graph: plain data that any node can rebuild and run.

    graph = capture(model, torch.zeros(2, 1, 28, 28))
    graph = capture_loss(graph, nn.CrossEntropyLoss(), torch.zeros(2, dtype=torch.long))

`torch.export` does the tracing (training mode, dynamic batch size); what it gives is rewritten into
our own nodes (`rewrite.py`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from weft.errors import InputError
from weft.graph.layers import split_layers
from weft.graph.network import (
    Arg,
    Atom,
    Graph,
    Loss,
    Node,
    Ref,
)
from weft.graph.rewrite import Rewriter


def capture(module: nn.Module, example: Tensor | Sequence[Tensor], *, name: str = "") -> Graph:
    """The network as a Graph. `example`: one input (or several), samples along dimension 0."""
    label = name or type(module).__name__.lower()
    inputs = (example,) if isinstance(example, Tensor) else tuple(example)
    traced = Rewriter(label, *_export(module, inputs, label)).rewrite()
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
    traced = Rewriter(label, *_export(module, (output, target), label)).rewrite()
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


def _renamed(node: Node, names: dict[str, str]) -> Node:
    def atom(a: Atom) -> Atom:
        return Ref(names.get(a.name, a.name)) if isinstance(a, Ref) else a

    args: list[Arg] = [[atom(a) for a in g] if isinstance(g, list) else atom(g) for g in node.args]
    return Node(names.get(node.name, node.name), node.op, args, node.kwargs)
