"""An exported program without in-place operators and with fewer kinds of operators.

torch's own decompositions rewrite every operator that is outside of Weft's table, and every in-place operator
and view that is written to, into plain ones. Operators of the table stay as they are. Some of these would be
taken apart all the same (batch norm, because it changes its buffers; dropout, because it draws numbers). They
stand behind *opaque* operators of the same schema meanwhile, and are put back at the end.

This takes seconds, so capture does it only where the plain graph does not suffice.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.library import Library

from weft.graph.operators.table import OPERATORS

_OPAQUE = tuple(name for name, record in OPERATORS.items() if record.opaque)
_LIBRARIES: list[Any] = []


def functional(program: ExportedProgram) -> ExportedProgram:
    """The same program in operators that change nothing in place. Buffers that change are extra outputs."""
    there, back = _opaque_operators()
    for node in list(program.graph.nodes):
        if str(node.target).startswith("aten._assert"):
            program.graph.erase_node(node)
        elif node.op == "call_function" and str(node.target) in there:
            node.target = there[str(node.target)]
    table: Any = torch.export.default_decompositions()
    for operator in list(table.keys()):
        if str(operator) in OPERATORS:
            table.pop(operator, None)
    rewritten: ExportedProgram = program.run_decompositions(table)
    for node in rewritten.graph.nodes:
        if node.op == "call_function" and node.target in back:
            node.target = back[node.target]
    return rewritten


@cache
def _opaque_operators() -> tuple[dict[str, Any], dict[Any, Any]]:
    """(opaque operators by the name of the original, originals by the opaque operator)."""
    library: Any = Library("weft", "DEF")  # type: ignore[no-untyped-call]
    _LIBRARIES.append(library)  # its operators end with its last reference
    there = {name: _opaque(library, name) for name in _OPAQUE}
    return there, {there[name]: _original(name) for name in _OPAQUE}


def _original(name: str) -> Any:
    _, base, overload = name.split(".")
    return getattr(getattr(torch.ops.aten, base), overload)


def _opaque(library: Any, name: str) -> Any:
    """An operator that computes the same, of which torch knows nothing but the schema."""
    original = _original(name)
    _, base, overload = name.split(".")
    own = f"{base}_{overload}"
    schema = str(original._schema).partition("(")[2]
    library.define(f"{own}({schema}")
    library.impl(own, original, "CompositeExplicitAutograd")
    library._register_fake(own, lambda *args, **kwargs: original(*args, **kwargs))
    return getattr(torch.ops.weft, own).default
