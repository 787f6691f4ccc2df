"""Parameters that distant layers share: each crosses the cuts between its layers as a value.

The parameter stays in the first layer that reads it. A node there gives it a second name (`wte.weight@tied`),
which the later layers read. So there is one copy, one optimizer state and one gradient: autograd adds up the
gradients of all uses, on whatever devices they are.
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.graph.network import Arg, Atom, Node, Ref, State, Value, refs
from weft.graph.operators.calls import alias


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
        tied = f"{name}@tied"
        values[tied] = Value(state[name].shape, state[name].dtype, None, scales=False)
        groups[first].insert(0, alias(tied, Ref(name)))
        for index in where[1:]:
            groups[index][:] = [_reading(node, name, tied) for node in groups[index]]


def _reading(node: Node, name: str, tied: str) -> Node:
    def atom(a: Atom) -> Atom:
        return Ref(tied) if a == Ref(name) else a

    args: list[Arg] = [[atom(a) for a in g] if isinstance(g, list) else atom(g) for g in node.args]
    return Node(node.name, node.op, args, node.kwargs)
