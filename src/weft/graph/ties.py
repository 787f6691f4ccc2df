"""Parameters that distant layers share: each crosses the cuts between its layers as a value.

The parameter stays in the first layer that reads it. A node there gives it a second name (`wte.weight@tied`),
which the later layers read. So there is one copy, one optimizer state and one gradient: autograd adds up the
gradients of all uses, on whatever devices they are.
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.graph.network import Arg, Atom, Node, Ref, State, Value, refs
from weft.graph.operators.calls import alias

TIED = "@tied"  # the end of a parameter's second name; no node of an exported graph has such a name


def tie_weights(
    groups: list[list[Node]], values: dict[str, Value], state: Mapping[str, State]
) -> None:
    """Lets every parameter that several layers use cross as a value. A parameter that all of three or more
    neighbouring layers use (a recurrent cell) is left as it is: these layers are joined."""
    uses: dict[str, list[int]] = {}
    for index, group in enumerate(groups):
        for name in {name for node in group for name in refs(node)}:
            if name in state and state[name].trainable:
                uses.setdefault(name, []).append(index)
    for name, where in uses.items():
        first, last = where[0], where[-1]
        if len(where) == 1 or 2 < len(where) == last - first + 1:
            continue
        tied = name + TIED
        values[tied] = Value(state[name].shape, state[name].dtype, None, scales=False)
        groups[first].insert(0, alias(tied, Ref(name)))
        for index in where[1:]:
            groups[index][:] = [_reading(node, name, tied) for node in groups[index]]


def untied(nodes: list[Node]) -> list[Node]:
    """The nodes with parameters in place of their second names, as before `tie_weights`."""
    second = {n.name: n.name.removesuffix(TIED) for n in nodes if n.name.endswith(TIED)}
    kept = [node for node in nodes if node.name not in second]
    for tied, name in second.items():
        kept = [_reading(node, tied, name) for node in kept]
    return kept


def _reading(node: Node, old: str, new: str) -> Node:
    """The node with another name for one that it reads."""

    def atom(a: Atom) -> Atom:
        return Ref(new) if a == Ref(old) else a

    args: list[Arg] = [[atom(a) for a in g] if isinstance(g, list) else atom(g) for g in node.args]
    return Node(node.name, node.op, args, node.kwargs)
