"""Parts of forward under `torch.no_grad()` or `torch.autocast`. torch.export makes graphs of their own.

    inline_regions(program)     # the same program as one list of operators

What leaves a part without gradients is detached, so no gradient flows back into it. A part under an autocast
that is switched off computes as without it. Another autocast is refused: `--precision bf16` does the same for
the whole network, and every device knows it.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from weft.errors import InputError

_DETACH: Any = torch.ops.aten.detach.default


def inline_regions(program: ExportedProgram, label: str) -> None:
    """Puts the operators of each such part in its place. Raises InputError for an autocast that is on."""
    if _inlined(program.graph_module, label):
        program.graph_module.graph.eliminate_dead_code()
        program.graph_module.recompile()


def _inlined(module: fx.GraphModule, label: str) -> bool:
    changed = False
    for node in list(module.graph.nodes):
        kind = str(node.target)
        if node.op != "call_function" or kind not in (
            "wrap_with_set_grad_enabled",
            "wrap_with_autocast",
        ):
            continue
        if kind == "wrap_with_autocast" and node.args[2]:
            raise InputError(
                f"{label} cannot be captured: a part of forward runs under torch.autocast; leave it out and "
                "train with precision='bf16' (--precision bf16)"
            )
        place = 1 if kind == "wrap_with_set_grad_enabled" else 4
        _inline(
            module,
            node,
            place,
            detached=kind != "wrap_with_autocast" and not node.args[0],
            label=label,
        )
        changed = True
    return changed


def _inline(module: fx.GraphModule, node: fx.Node, place: int, detached: bool, label: str) -> None:
    """Puts one part's operators before its call, and their results in place of the call's."""
    inner = getattr(module, str(node.args[place].target))  # type: ignore[union-attr]
    _inlined(inner, label)
    parameters = [n for n in inner.graph.nodes if n.op == "placeholder"]
    arguments = dict(zip(parameters, node.args[place + 1 :], strict=True))
    with module.graph.inserting_before(node):
        results = module.graph.graph_copy(inner.graph, arguments)
        results = results if isinstance(results, tuple | list) else (results,)
        if detached:
            results = [_without_gradient(module.graph, result) for result in results]
    for user in list(node.users):
        if user.target is operator.getitem:
            user.replace_all_uses_with(results[user.args[1]])  # type: ignore[arg-type,index]
            module.graph.erase_node(user)
    if node.users:
        node.replace_all_uses_with(results[0])  # type: ignore[arg-type]
    module.graph.erase_node(node)


def _without_gradient(graph: fx.Graph, result: Any) -> Any:
    value = result.meta.get("val") if isinstance(result, fx.Node) else None
    if not isinstance(value, torch.Tensor):
        return result
    detached = graph.call_function(_DETACH, (result,))
    detached.meta = dict(result.meta)
    return detached
