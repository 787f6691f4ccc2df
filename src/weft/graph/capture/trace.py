"""The nodes of a module, in the mode that is asked for.

A module is exported as it is trained, and its program rewritten into Weft's nodes. If the plain program does
not suffice (an operator outside of the table, a change in place), torch takes it apart first.

The same nodes serve inference: a node flips the flags of batch norm and dropout. This holds if no code
outside of torch reads the mode (`self.training`). If some code does, the module is exported in evaluation
mode too, and the two lists of nodes are compared.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from torch import nn

from weft.errors import InputError
from weft.graph.capture.export import Exported, export, quiet
from weft.graph.capture.functional import functional
from weft.graph.capture.rewrite import Rewriter, Unsuited
from weft.graph.capture.signature import Sample
from weft.graph.execute import for_mode
from weft.graph.network import Arg, Atom, Mode, Node, Ref, refs
from weft.graph.operators.table import operator_named


def traced_in(module: nn.Module, example: Sample, label: str, mode: Mode | None) -> Rewriter:
    """The nodes for training, for inference, or (without a mode) for both. Raises InputError if one list of
    nodes cannot serve both."""
    traced, training = _traced(module, example, label, "train")
    if mode != "infer":
        _check(training.learns)
    if mode == "train" or not training.readers:
        _check(training.differs)
        return traced
    inference, answering = _traced(module, example, label, "infer")
    _check(answering.differs)
    if mode == "infer" and training.differs:
        return inference
    _check(training.differs)
    if _form(traced) == _form(inference):
        return traced
    if mode == "infer":
        return inference
    raise InputError(
        f"{label} computes something else in evaluation mode ({training.readers[0]} reads self.training), "
        "but here one graph must serve training and inference"
    )


def _check(refusal: str) -> None:
    if refusal:
        raise InputError(refusal)


def _traced(
    module: nn.Module, example: Sample, label: str, mode: Mode
) -> tuple[Rewriter, Exported]:
    """(the nodes in one mode, what was noted on the way)."""
    exported = export(module, example, label, mode)
    program = exported.program
    try:
        return Rewriter(label, program, exported.names).rewrite(), exported
    except Unsuited as plain:
        try:
            with quiet():
                program = functional(program)
        except Exception:
            raise plain from None
    return Rewriter(label, program, exported.names).rewrite(), exported


def _form(traced: Rewriter) -> bytes:
    """What the nodes compute in evaluation mode, without their names."""
    needed = {name for name in traced.outputs if isinstance(name, str)}
    kept: list[Node] = []
    for node in reversed(traced.nodes):
        if node.name in needed or operator_named(node.op).changes_state:
            kept.append(node)
            needed |= set(refs(node))
    kept = [n for n in reversed(kept) if not operator_named(n.op).training_only]
    numbers = {name: f"input {i}" for i, name in enumerate(traced.inputs)}
    numbers |= {node.name: str(i) for i, node in enumerate(kept)}
    nodes = [
        (node.op, [_renamed(a, numbers) for a in _arguments(node)], node.kwargs) for node in kept
    ]
    outputs = [numbers.get(n, n) if isinstance(n, str) else repr(n.value) for n in traced.outputs]
    return msgspec.json.encode([nodes, outputs])


def _arguments(node: Node) -> list[Arg]:
    return for_mode(node, operator_named(node.op), training=False)


def _renamed(arg: Arg, numbers: Mapping[str, str]) -> Arg:
    def atom(a: Atom) -> Atom:
        return Ref(numbers.get(a.name, a.name)) if isinstance(a, Ref) else a

    return [atom(a) for a in arg] if isinstance(arg, list) else atom(arg)
