"""Runs a segment of a captured network, as fast as the module it came from.

    run = Runner(graph.segment(0, 2), state)
    outputs = run.forward({"x": images}, training=True, seed=7)

Every node becomes a (function, argument template, slots to fill) triple once. So a call costs a list copy and
a few index operations besides the mathematics. Random operators draw from a generator that is seeded by the
caller's seed and the node's name. So the numbers they draw do not depend on how the network is split over
devices.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import torch
from torch import Tensor

from weft.dtypes import torch_dtype
from weft.errors import InputError
from weft.graph.network import (
    Arg,
    Atom,
    Batch,
    CutLoss,
    DType,
    Infinite,
    Loss,
    Node,
    Ref,
    Segment,
    refs,
)
from weft.graph.operators.calls import RENEWED
from weft.graph.operators.record import Function, Operator
from weft.graph.operators.table import operator_named
from weft.graph.steps import Draw, Step, as_one, run

Tensors = Tensor | Sequence[Tensor]


# Operators that give their operand's numbers in other sizes: `reshape` only where no copy is needed.
_VIEWS = frozenset(
    f"aten.{name}"
    for name in (
        *("transpose.int", "permute.default", "unflatten.int", "unsqueeze.default", "squeeze.dim"),
        *("select.int", "view.default", "reshape.default", "flatten.using_ints", "expand.default"),
    )
)


class Runner:
    """One segment with its weights. The state's tensors are used in place: optimizers update them."""

    def __init__(self, segment: Segment, state: Mapping[str, Tensor]) -> None:
        self.segment = segment
        self.state = {name: state[name] for name in segment.state}
        for name, info in segment.state.items():
            self.state[name].requires_grad_(info.trainable)
        self.draw: Draw = torch.default_generator.manual_seed
        self._slots: dict[str, int] = {}
        for name in segment.inputs:
            self._slot(name)
        self._steps = {mode: self._compile(segment.nodes, mode) for mode in (True, False)}
        self._loss = _compile_loss(segment.loss, state) if segment.loss else None
        cut = segment.loss.cut if segment.loss else None
        self._cut = _compile_cut(segment.loss, cut, state) if segment.loss and cut else None
        self._batch_from = next(
            ((self._slots[n], v.batch_dim) for n, v in segment.inputs.items()
             if v.batch_dim is not None), None
        )  # fmt: skip

    def like(self, state: Mapping[str, Tensor]) -> Runner:
        """The same segment with other weights, in the same place."""
        return Runner(self.segment, {**self.state, **state})

    @property
    def parameters(self) -> list[Tensor]:
        """The weights that training changes."""
        return [self.state[n] for n in self.trained_names]

    @property
    def trained_names(self) -> list[str]:
        """The names of `parameters`."""
        return [n for n, info in self.segment.state.items() if info.trainable]

    def forward(
        self, inputs: Mapping[str, Tensor], *, training: bool = False, seed: int = 0
    ) -> dict[str, Tensor]:
        """The values that leave the segment, computed from the values that enter it."""
        env: list[Any] = [None] * len(self._slots)
        for name in self.segment.inputs:
            env[self._slots[name]] = inputs[name]
        batch = 1
        if self._batch_from is not None:
            slot, dim = self._batch_from
            batch = env[slot].shape[dim]
        run(self._steps[training], env, batch, seed, self.draw)
        return {name: env[self._slots[name]] for name in self.segment.outputs}

    def loss(self, output: Tensors, target: Tensors, samples: int) -> Tensor:
        """The captured loss of one micro-batch. Several outputs or targets come in the order of
        `Loss.inputs`."""
        if self._loss is None:
            raise InputError("this segment was given no loss; capture one with capture_loss")
        return _evaluate(self._loss, [*_listed(output), *_listed(target)], samples)

    def piece_loss(
        self, output: Tensors, target: Tensors, totals: Sequence[Tensor], samples: int
    ) -> Tensor:
        """A piece's part of the loss of its minibatch, whose totals are in the order of `CutLoss.totals`."""
        if self._cut is None:
            raise InputError("this segment's loss has no form for pieces of a minibatch")
        return _evaluate(self._cut, [*_listed(output), *_listed(target), *totals], samples)

    def _slot(self, name: str) -> int:
        return self._slots.setdefault(name, len(self._slots))

    def _compile(self, nodes: list[Node], training: bool) -> list[Step]:
        return _compile(nodes, training, self._slots, self.state, keep=set(self.segment.outputs))


def draw_by(runner: Runner, drawn: Function) -> None:
    """Lets `drawn` call a runner's random operators: it gets their function and its arguments."""
    for steps in runner._steps.values():
        steps[:] = [
            step._replace(function=partial(drawn, step.function)) if step.seed else step
            for step in steps
        ]


def _compile(
    nodes: list[Node],
    training: bool,
    slots: dict[str, int],
    state: Mapping[str, Tensor],
    keep: set[str],
) -> list[Step]:
    if not training:
        nodes = _without_dropout(nodes, keep)
    last_use = {name: i for i, node in enumerate(nodes) for name in refs(node)}
    steps = []
    for i, node in enumerate(nodes):
        record = operator_named(node.op)
        if record.training_only and not training:
            continue
        args, fills, batches = _template(for_mode(node, record, training), slots, state)
        dead = tuple(
            slots[name]
            for name in dict.fromkeys(refs(node))
            if last_use[name] == i and name in slots and name not in keep
        )
        out = slots.setdefault(node.name, len(slots))
        kwargs = {key: _constant(value, state) for key, value in node.kwargs.items()}
        draws = record.random and (training or record.always_random)
        salt = zlib.crc32(node.name.encode()) | 1 if draws else 0
        view = node.op in _VIEWS and [fill[:2] for fill in fills] == [(0, None)]
        steps.append(Step(record.function, args, fills, batches, kwargs, out, dead, salt, view))
    if training or any(node.op == RENEWED for node in nodes):  # a buffer may lie under a view
        return steps
    return as_one(steps, {slots[name] for name in keep if name in slots})


def _without_dropout(nodes: list[Node], keep: set[str]) -> list[Node]:
    """In inference a dropout is its input, so it is not called: its readers read the input."""
    source: dict[str, str] = {}

    def atom(a: Atom) -> Atom:
        return Ref(source[a.name]) if isinstance(a, Ref) and a.name in source else a

    kept = []
    for node in nodes:
        args: list[Arg] = [
            [atom(a) for a in g] if isinstance(g, list) else atom(g) for g in node.args
        ]
        first = args[0] if args else None
        drops = operator_named(node.op).drops
        if drops and node.name not in keep and isinstance(first, Ref):
            source[node.name] = first.name
        else:
            kept.append(msgspec.structs.replace(node, args=args))
    return kept


def for_mode(node: Node, record: Operator, training: bool) -> list[Arg]:
    """The arguments in eval mode: flags of normalisation and dropout off, drop probabilities 0."""
    args = list(node.args)
    if training:
        return args
    if (
        record.training_flag is not None
        and record.training_flag < len(args)
        and not _own_mean(node, record)
    ):
        args[record.training_flag] = False
    if record.drop_probability is not None and record.drop_probability < len(args):
        args[record.drop_probability] = 0.0
    return args


def nodes_in_eval(nodes: list[Node]) -> list[Node]:
    """The nodes of a part that stays in evaluation mode while others train."""
    known = [(node, operator_named(node.op)) for node in nodes]
    return [
        msgspec.structs.replace(node, args=for_mode(node, record, training=False))
        for node, record in known
        if not record.training_only
    ]


def draws(node: Node) -> bool:
    """Whether a node draws random numbers with its own flags."""
    record = operator_named(node.op)
    if not record.random:
        return False
    flags = [
        node.args[position]
        for position in (record.training_flag, record.drop_probability)
        if position is not None and position < len(node.args)
    ]
    return all(flags)


def _own_mean(node: Node, record: Operator) -> bool:
    """Whether it is a batch norm without running statistics: it always takes those of its samples."""
    return record.normalises_batch and len(node.args) > 3 and node.args[3] is None


def _template(
    args: list[Arg], slots: dict[str, int], state: Mapping[str, Tensor]
) -> tuple[
    list[Any], tuple[tuple[int, int | None, int], ...], tuple[tuple[int, int | None, Batch], ...]
]:
    built: list[Any] = []
    fills: list[tuple[int, int | None, int]] = []
    batches: list[tuple[int, int | None, Batch]] = []
    for position, arg in enumerate(args):
        for item, atom in enumerate(arg) if isinstance(arg, list) else [(None, arg)]:
            if isinstance(atom, Ref) and atom.name not in state:
                if atom.name not in slots:
                    raise InputError(f"the graph reads {atom.name!r} before anything makes it")
                fills.append((position, item, slots[atom.name]))
            elif isinstance(atom, Batch):
                batches.append((position, item, atom))
        built.append(_constant(arg, state))
    return built, tuple(fills), tuple(batches)


def _constant(arg: Arg, state: Mapping[str, Tensor]) -> Any:
    if isinstance(arg, list):
        return [_atom(a, state) for a in arg]
    return _atom(arg, state)


def _atom(atom: Atom, state: Mapping[str, Tensor]) -> Any:
    if isinstance(atom, Ref):
        return state.get(atom.name)
    if isinstance(atom, Batch):
        return None
    if isinstance(atom, DType):
        return torch_dtype(atom.name)
    if isinstance(atom, Infinite):
        if atom.name not in ("inf", "-inf", "nan"):
            raise InputError(f"number {atom.name!r} is not one of inf, -inf, nan")
        return float(atom.name)
    return atom


def _listed(tensors: Tensors) -> Sequence[Tensor]:
    return (tensors,) if isinstance(tensors, Tensor) else tensors


_CompiledLoss = tuple[list[Step], int, tuple[int, ...], int]


def _compile_loss(loss: Loss, state: Mapping[str, Tensor]) -> _CompiledLoss:
    slots = {name: slot for slot, name in enumerate(loss.inputs)}
    inputs = tuple(slots.values())
    loss_state = {name: state[name] for name in loss.state}
    steps = _compile(loss.nodes, True, slots, loss_state, keep={loss.output})
    return steps, len(slots), inputs, slots[loss.output]


def _compile_cut(loss: Loss, cut: CutLoss, state: Mapping[str, Tensor]) -> _CompiledLoss:
    """The form for pieces: the totals are further inputs."""
    whole = msgspec.structs.replace(loss, nodes=cut.nodes, inputs=(*loss.inputs, *cut.totals))
    return _compile_loss(whole, state)


def _evaluate(loss: _CompiledLoss, values: Sequence[Tensor], samples: int) -> Tensor:
    steps, size, inputs, out = loss
    env: list[Any] = [None] * size
    for slot, value in zip(inputs, values, strict=True):
        env[slot] = value
    run(steps, env, samples, 0)
    result: Tensor = env[out]
    return result


class TargetTotals:
    """The sums over a whole minibatch's targets that the losses of its pieces need."""

    def __init__(self, loss: Loss, state: Mapping[str, Tensor]) -> None:
        cut = loss.cut
        assert cut is not None
        self._targets, self._names = tuple(loss.targets), cut.totals
        slots = {name: slot for slot, name in enumerate(self._targets)}
        own = {name: state[name] for name in loss.state}
        self._steps = _compile(cut.sums, True, slots, own, keep=set(cut.totals))
        self._slots = slots

    @torch.no_grad()
    def __call__(self, targets: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The totals by name."""
        env: list[Any] = [None] * len(self._slots)
        for name in self._targets:
            env[self._slots[name]] = targets[name]
        run(self._steps, env, len(targets[self._targets[0]]), 0)
        return {name: env[self._slots[name]] for name in self._names}
