"""Nodes that move to the layer that reads their result, so that a cut carries less.

A view moves because it has the numbers of what it views. A normalisation moves if its input crosses the cut
anyway: in a transformer the next block reads `h` and `norm(h)`, and a cut before the norm carries `h` alone.

    layer 4   h = add(...)          │ cut: h            layer 5   n = norm(h); q = linear(n); ... h + q
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping

from weft.graph.network import Node, State, Value, refs
from weft.graph.operators.table import operator_named


def sink_views(
    nodes: list[Node],
    depth: dict[str, int],
    outputs: Collection[str],
    values: Mapping[str, Value],
) -> None:
    """A view goes to the layer that first reads it, so that a cut never carries a tensor twice."""
    users = _users(nodes)
    for node in reversed(nodes):
        read = refs(node)
        if not operator_named(node.op).view or node.name not in depth or node.name in outputs:
            continue
        if node.name not in values or len(read) != 1 or read[0] not in values:
            continue
        readers = [depth[u] for u in users.get(node.name, []) if u in depth]
        if readers and values[node.name].bytes == values[read[0]].bytes:
            depth[node.name] = max(depth[node.name], min(readers))


def sink_norms(
    nodes: list[Node],
    depth: dict[str, int],
    outputs: Collection[str],
    values: Mapping[str, Value],
    state: Mapping[str, State],
) -> None:
    """Normalisations and what is elementwise around them go to the layer that reads their result, if their
    one input is read in that layer or later too. They are computed once, as before, only later."""
    users, by_name = _users(nodes), {node.name: node for node in nodes}
    place = {node.name: n for n, node in enumerate(nodes)}

    def layer(name: str) -> int:
        return max(depth.get(name, 0), 1)

    for root in list(dict.fromkeys(name for node in nodes for name in refs(node))):
        if root not in depth or root not in values:
            continue
        home = layer(root)
        if all(layer(user) == home for user in users[root]):
            continue
        cone = _cone(root, home, users, by_name, place, depth, state)
        last = max((layer(u) for u in users[root] if u not in cone), default=0)
        if last <= home:
            continue
        for name in _leaving(cone, home, users, by_name, layer, outputs, values[root], values):
            depth[name] = min(last, *(layer(u) for u in users[name]))


def _cone(
    root: str,
    home: int,
    users: Mapping[str, list[str]],
    by_name: Mapping[str, Node],
    place: Mapping[str, int],
    depth: Mapping[str, int],
    state: Mapping[str, State],
) -> list[str]:
    """Nodes of the root's layer that follow from the root and weights alone, in order."""
    cone: list[str] = []
    known = {root}
    waiting = sorted(users[root], key=place.__getitem__)
    while waiting:
        name = waiting.pop(0)
        node = by_name[name]
        if name in known or max(depth.get(name, 0), 1) != home or not _moves(node, state):
            continue
        if any(read in depth and read not in known for read in refs(node)):
            continue
        cone.append(name)
        known.add(name)
        waiting = sorted({*waiting, *users.get(name, [])}, key=place.__getitem__)
    return cone


def _moves(node: Node, state: Mapping[str, State]) -> bool:
    """Whether a node may be computed in a later layer: it is small work on each sample by itself."""
    record = operator_named(node.op)
    if record.random or record.training_flag is not None or record.changes_state:
        return False
    if record.weighted and any(name in state for name in refs(node)):
        return False
    return record.elementwise or record.view or record.normalises_sample


def _leaving(
    cone: list[str],
    home: int,
    users: Mapping[str, list[str]],
    by_name: Mapping[str, Node],
    layer: Callable[[str], int],
    outputs: Collection[str],
    root: Value,
    values: Mapping[str, Value],
) -> list[str]:
    """The nodes of a cone that move, the last one first. A node moves with all that it reads in the cone, and
    only where its result is as large as the root: a mean that is sent costs nothing."""
    moving = set(cone) - set(outputs)
    while True:
        kept = {
            name
            for name in moving
            if users.get(name)
            and all(u in moving or layer(u) > home for u in users[name])
            and all(read in moving for read in refs(by_name[name]) if read in cone)
            and (
                all(u in moving for u in users[name])
                or (name in values and values[name].bytes >= root.bytes)
            )
        }
        if kept == moving:
            return [name for name in reversed(cone) if name in moving]
        moving = kept


def _users(nodes: list[Node]) -> dict[str, list[str]]:
    users: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        for name in refs(node):
            users[name].append(node.name)
    return users
