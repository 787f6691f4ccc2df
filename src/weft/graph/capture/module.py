"""From an nn.Module to a Graph: plain data that any node can rebuild and run.

    graph = capture(model, torch.zeros(2, 1, 28, 28))
    graph = capture_loss(graph, nn.CrossEntropyLoss(), torch.zeros(2, dtype=torch.long))

`trace.py` gives the module's nodes: `torch.export` with a dynamic batch size, rewritten into Weft's nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeGuard

import msgspec
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_structure, tree_unflatten

from weft.dtypes import torch_dtype
from weft.errors import InputError
from weft.graph.capture.rewrite import Rewriter
from weft.graph.capture.signature import (
    Sample,
    Signature,
    grown,
    leaves_of,
    plain_signature,
)
from weft.graph.capture.trace import traced_in
from weft.graph.execute import Runner, TargetTotals, draws, nodes_in_eval
from weft.graph.layers import split_layers
from weft.graph.loss.probe import LossRun, adds_up, cuts_up, packed
from weft.graph.loss.totals import counts_targets, nonlinear, take_apart
from weft.graph.mixing import mixing_of
from weft.graph.network import (
    Arg,
    Atom,
    Graph,
    Loss,
    Mode,
    Node,
    Ref,
    Segment,
    State,
    Value,
    refs,
)
from weft.graph.operators.table import operator_named

LossFunction = (
    nn.Module | Callable[[Any, Any], Tensor]
)  # of (what the network returns, the targets)


class Captured(NamedTuple):
    """A network as data, and what its module takes and returns."""

    graph: Graph
    signature: Signature


def capture(
    module: nn.Module, example: Sample, *, name: str = "", mode: Mode | None = None
) -> Graph:
    """The network as a Graph. `example` is a tensor, a tuple of tensors, or a dict of inputs by keyword, with
    its samples along dimension 0. With a `mode` the graph is for training or for inference. Without one it is
    for both; a network that computes something else in evaluation mode is refused."""
    return capture_signed(module, example, name=name, mode=mode).graph


def capture_signed(
    module: nn.Module, example: Sample, *, name: str = "", mode: Mode | None = None
) -> Captured:
    """The network as a Graph, with the form of its inputs and outputs."""
    label = name or type(module).__name__.lower()
    traced = _traced(module, example, label, mode)
    outputs = _tensors_returned(traced)
    read = {name for node in traced.nodes for name in refs(node)} | set(outputs)
    inputs = [name for name in traced.inputs if name in read]
    if not inputs:
        raise InputError(f"{label} does not read its input: there is nothing to compute")
    layers = split_layers(
        traced.nodes, inputs, outputs, traced.values, traced.state, traced.modules
    )
    graph = Graph(
        label, inputs, outputs[0], layers, traced.values, traced.state,
        further_outputs=tuple(outputs[1:]),
    )  # fmt: skip
    spec = traced.program.call_spec
    assert spec.in_spec is not None
    assert spec.out_spec is not None
    signature = Signature(
        label, spec.in_spec, tuple(traced.inputs), spec.out_spec, tuple(traced.outputs)
    )
    some, _ = tree_flatten(grown(example, 2))
    samples = {n: t.detach() for n, t in zip(traced.inputs, some, strict=True) if n in inputs}
    mixes = mixing_of(graph, state_of(module), samples)
    return Captured(msgspec.structs.replace(graph, mixes=mixes), signature)


def _tensors_returned(traced: Rewriter) -> list[str]:
    """The names of the tensors that a network returns, each once."""
    outputs = list(dict.fromkeys(name for name in traced.outputs if isinstance(name, str)))
    if not outputs:
        raise InputError(f"{traced.label} returns no tensor")
    for name in outputs:
        if name in traced.state:
            raise InputError(
                f"{traced.label} returns {name}, which is a parameter or a buffer and no result; read it "
                "from the module instead"
            )
    return outputs


def capture_loss(
    graph: Graph,
    loss: LossFunction,
    target: Sample,
    signature: Signature | None = None,
    complete: bool = True,
) -> Graph:
    """The same graph with a loss: any function of (output, target) that returns a scalar.

    `target` are targets from the data. The more targets are given, the more certainly Weft detects which of
    them the loss masks. If they are not `complete`, later ones may hold -100, which a cross entropy ignores
    by default. The loss gets what the module returns, rebuilt by its `signature`. The new graph ends
    in the tensors that the loss reads.
    """
    targets = [t.detach().cpu() for t in leaves_of(target, "the target")]
    outputs = [_drawn(graph.values[name]) for name in graph.outputs]
    some = [_first(t) for t in targets]
    name = getattr(loss, "__name__", type(loss).__name__)
    module = _as_module(loss, graph, signature or plain_signature(graph), target)
    _show_lines_of(loss)
    frozen = _has_state(loss) and not loss.training  # the user called loss.eval()
    traced = _traced(module, (*outputs, *some), f"loss {name}", "infer" if frozen else "train")
    if frozen:
        traced.nodes = nodes_in_eval(traced.nodes)
    record, state = _loss_record(traced, graph, len(targets), name)
    tensors = state_of(nn.Module(), loss if _has_state(loss) else None)
    tensors = {name: tensors[name].clone() for name in state}
    run = _loss_runner(record, state, tensors)
    with torch.random.fork_rng(devices=[]):
        once = run([_drawn(graph.values[name]) for name in record.reads], some)
        if once.dim() != 0:
            raise InputError(
                f"the loss returns shape {tuple(once.shape)}; it must return one number"
            )
        one = packed(run, [graph.values[name] for name in record.reads], targets)
        masks = _ignored(module) | (set() if complete else {-100})
        reduction, over = adds_up(one.loss, one.shape, one.target, masks)
        record = msgspec.structs.replace(record, reduction=reduction, over=over)
        names = _loss_names(traced, graph, len(targets))
        values = {names[n]: value for n, value in traced.values.items() if n in names}
        if over == "batch":
            record = _taken_apart(record, values, state, tensors, targets, masks)
        elif reason := nonlinear(record, values):
            record = msgspec.structs.replace(record, over="batch", why=reason)
        elif counts_targets(record, values, _absent(targets, complete)):
            record = _taken_apart(record, values, state, tensors, targets, masks)
    return msgspec.structs.replace(
        graph,
        loss=record,
        state={**graph.state, **state},
        output=record.reads[0],
        further_outputs=record.reads[1:],
    )


def _loss_record(
    traced: Rewriter, graph: Graph, targets: int, name: str
) -> tuple[Loss, dict[str, State]]:
    """The traced loss under names of its own, and its state. It reads only some of the network's outputs."""
    names = _loss_names(traced, graph, targets)
    labels = [names[n] for n in traced.inputs[len(graph.outputs) :]]
    nodes = [_renamed(node, names) for node in traced.nodes]
    _check_loss_state(traced, name)
    result, *others = _tensors_returned(traced)
    if others:
        raise InputError(
            f"the loss {name} returns {1 + len(others)} tensors; it must return one number"
        )
    read = {n for node in nodes for n in refs(node)} | {names[result]}
    reads = [output for output in graph.outputs if output in read]
    if not any(graph.values[output].differentiable for output in reads):
        raise InputError(f"the loss {name} reads no output of the network that has a gradient")
    for output in reads:
        _check_output(graph, output, name)
    values = [traced.values[n] for n in traced.inputs[len(graph.outputs) :]]
    record = Loss(
        nodes=nodes,
        inputs=(*reads, *labels),
        output=names[result],
        target=values[0],
        reduction="mean",
        state=[names[n] for n in traced.state],
        name=name,
        further_targets=tuple(values[1:]),
    )
    state = {names[n]: msgspec.structs.replace(s, trainable=False) for n, s in traced.state.items()}
    return record, state


def _check_loss_state(traced: Rewriter, name: str) -> None:
    """Raises InputError if a loss has tensors that training would change: only the network is trained."""
    learned = [n.removeprefix(_Call.PREFIX) for n, s in traced.state.items() if s.trainable]
    if learned:
        raise InputError(
            f"the loss {name} has parameters of its own ({', '.join(learned)}), which would not be trained. "
            "Keep them in the network and return them beside its output, with a row for each sample "
            "(p.expand(len(x), -1)); or switch them off with loss.requires_grad_(False)"
        )
    drawing = [n.op for n in traced.nodes if draws(n)]
    if drawing:
        raise InputError(
            f"the loss {name} draws random numbers ({drawing[0]}), and each piece of a minibatch would draw "
            "the same ones. Draw them in the network or in the data; loss.eval() switches dropout off"
        )
    changed = [refs(n)[0] for n in traced.nodes if operator_named(n.op).changes_state]
    if changed:
        raise InputError(
            f"the loss {name} changes its buffer {changed[0].removeprefix(_Call.PREFIX)}, and each piece of "
            "a minibatch would change it again. Keep the buffer in the network, and change it in forward"
        )


def _absent(targets: list[Tensor], complete: bool) -> Callable[[int], bool]:
    """Whether no target ever has a class number. It is known only if all targets are at hand."""
    return lambda number: complete and not any(bool((t == number).any()) for t in targets)


def _taken_apart(
    record: Loss,
    values: dict[str, Value],
    state: dict[str, State],
    tensors: dict[str, Tensor],
    targets: list[Tensor],
    masks: set[int],
) -> Loss:
    """A loss that is no mean or sum over samples, with its form for pieces or the reason why it has none."""
    cut = take_apart(record, values)
    if isinstance(cut, str):
        return msgspec.structs.replace(record, why=cut)
    apart = msgspec.structs.replace(record, over="totals", cut=cut)
    runner = Runner(Segment(0, 0, [], {}, {}, state, loss=apart), tensors)
    sums = TargetTotals(apart, tensors)
    totals: list[Tensor] = []

    def whole(outputs: Sequence[Tensor], labels: Sequence[Tensor]) -> Tensor:
        named = dict(zip(apart.targets, labels, strict=True))
        totals[:] = sums(named).values()
        return runner.loss(outputs, labels, len(outputs[0]))

    def piece(outputs: Sequence[Tensor], labels: Sequence[Tensor]) -> Tensor:
        return runner.piece_loss(outputs, labels, totals, len(outputs[0]))

    read = [values[name] for name in record.reads]
    one, part = packed(whole, read, targets), packed(piece, read, targets)
    if cuts_up(one.loss, part.loss, one.shape, one.target, masks):
        sized = msgspec.structs.replace(cut, bytes=sum(total.nbytes for total in totals))
        return msgspec.structs.replace(apart, cut=sized)
    return msgspec.structs.replace(record, why="the loss of a sample depends on other samples")


def _loss_names(traced: Rewriter, graph: Graph, targets: int) -> dict[str, str]:
    """What the values of a traced loss are called in a graph."""
    labels = [f"target{i or ''}" for i in range(targets)]
    names = {n: f"loss_{n.removeprefix(_Call.PREFIX)}" for n in traced.state}
    taken = set(names.values())
    for node in traced.nodes:
        name = f"loss_{node.name}"
        names[node.name] = f"{name}@node" if name in taken else name
    return names | dict(zip(traced.inputs, (*graph.outputs, *labels), strict=True))


def _check_output(graph: Graph, output: str, loss: str) -> None:
    """Raises InputError if a minibatch's output cannot be put together from its samples."""
    value = graph.values[output]
    if value.batch_dim == 0:
        return
    if not value.shape:
        raise InputError(
            f"the loss {loss} reads one number that {graph.name} computes itself. Weft needs the network "
            "and its loss apart, so that a minibatch can be cut: leave the labels out of the inputs, give "
            "them as targets, and give a loss that reads an output with a row for each sample, such as "
            "lambda output, labels: cross_entropy(output.logits, labels)"
        )
    raise InputError(
        f"the loss {loss} reads an output of {graph.name} of shape {value.shape} that does not have its "
        "samples along dimension 0; transpose it in forward"
    )


def state_of(module: nn.Module, loss: nn.Module | None = None) -> dict[str, Tensor]:
    """The tensors a Graph's state names, detached but not copied."""
    state = {n: t.detach() for n, t in module.named_parameters(remove_duplicate=False)}
    state |= {n: t.detach() for n, t in module.named_buffers(remove_duplicate=False)}
    if loss is not None:
        state |= {f"loss_{n}": t.detach() for n, t in loss.named_buffers(remove_duplicate=False)}
        parameters = loss.named_parameters(remove_duplicate=False)
        state |= {f"loss_{n}": t.detach() for n, t in parameters}
    return state


class _Call(nn.Module):
    """A loss as a module of tensors only: rebuilds what the network returns and what the targets are."""

    PREFIX = "loss."

    def __init__(
        self, loss: LossFunction, graph: Graph, signature: Signature, target: Sample
    ) -> None:
        super().__init__()
        self.loss = loss
        self.training = getattr(loss, "training", True)
        self._outputs, self._signature = graph.outputs, signature
        self._tree = tree_structure(target)

    def forward(self, *tensors: Tensor) -> Tensor:
        count = len(self._outputs)
        output = self._signature.rebuilt(dict(zip(self._outputs, tensors[:count], strict=True)))
        result: Tensor = self.loss(output, tree_unflatten(tensors[count:], self._tree))
        return result


def _as_module(loss: LossFunction, graph: Graph, signature: Signature, target: Sample) -> nn.Module:
    """The loss as a module that takes the outputs and the targets one after the other."""
    if isinstance(loss, nn.Module) and isinstance(target, Tensor) and signature.one_tensor:
        return loss
    return _Call(loss, graph, signature, target)


def _show_lines_of(loss: LossFunction) -> None:
    """Lets torch note the lines of a loss that is a function. It notes only those of functions named
    `forward`."""
    register = getattr(torch.fx.proxy, "_register_stack_trace_anchor", None)
    if register is not None:
        register(loss)


def _has_state(loss: LossFunction) -> TypeGuard[nn.Module]:
    return isinstance(loss, nn.Module)


def _drawn(value: Value) -> Tensor:
    """Four samples of an output. Between 0 and 1 every loss of PyTorch is defined.

    An output without a row for each sample gets rows here: `_check_output` refuses it if the loss reads it.
    """
    numbers = torch.rand(4, *(value.shape[1:] if value.batch_dim == 0 else value.shape))
    return numbers.to(torch_dtype(value.dtype))


def _first(targets: Tensor) -> Tensor:
    return targets[:4].repeat(4, *[1] * (targets.dim() - 1))[:4]


def _loss_runner(record: Loss, state: dict[str, State], tensors: dict[str, Tensor]) -> LossRun:
    """The captured loss as a function."""
    runner = Runner(Segment(0, 0, [], {}, {}, state, loss=record), tensors)
    return lambda outputs, targets: runner.loss(outputs, targets, len(outputs[0]))


def _ignored(module: nn.Module) -> set[int]:
    """Class numbers that a loss ignores. Every cross entropy names -100, whether the data has it or not."""
    numbers = {getattr(part, "ignore_index", -100) for part in module.modules()}
    return {n for n in numbers if isinstance(n, int) and n != -100}


def _traced(module: nn.Module, example: Sample, label: str, mode: Mode | None) -> Rewriter:
    """The module as nodes. All its large tensors must be parameters or buffers, because tensors are sent by
    name."""
    traced = traced_in(module, example, label, mode)
    foreign = sorted(traced.state.keys() - state_of(module).keys())
    if foreign:
        shapes = ", ".join(str(tuple(traced.state[name].shape)) for name in foreign[:3])
        raise InputError(
            f"{label} uses tensors (of shape {shapes}) that are neither parameters nor buffers, so that "
            "other devices would not get them; make it an nn.Module that keeps them with register_buffer"
        )
    return traced


def _renamed(node: Node, names: dict[str, str]) -> Node:
    def atom(a: Atom) -> Atom:
        return Ref(names.get(a.name, a.name)) if isinstance(a, Ref) else a

    args: list[Arg] = [[atom(a) for a in g] if isinstance(g, list) else atom(g) for g in node.args]
    return Node(names.get(node.name, node.name), node.op, args, node.kwargs)
