"""Where a network may be cut: from a list of nodes to a list of layers.

The weighted depth of a node is the largest number of weighted operators on a path to it. Nodes of
equal depth form a layer; this gives the papers' counts (AlexNet 8, VGG-16 16, GoogLeNet 22,
ResNet-34 34). Two neighbouring layers are joined where a cut between them would be wrong: the cut would
separate two uses of a buffer that changes, or carry a tensor that has samples but cannot be split by them.

A parameter that two distant layers use (GPT-2's embedding is also its head) belongs to the first of them. It
crosses the cuts between them as a value, and its gradient comes back as a value's does. So it is in one
place, and its gradient is the sum of all its uses (docs/decisions/tied-weights.md).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping

from msgspec.structs import replace

from weft.graph.blocks import blocks_of
from weft.graph.costs import forward_flops, kept_values, saved_bytes
from weft.graph.network import Arg, Atom, Layer, Node, Ref, State, Value, refs
from weft.graph.operators.table import operator_named
from weft.graph.sinking import sink_norms, sink_views
from weft.graph.ties import tie_weights, untied


def split_layers(
    nodes: list[Node],
    inputs: list[str],
    outputs: Collection[str],
    values: dict[str, Value],
    state: Mapping[str, State],
    modules: Mapping[str, str],
) -> list[Layer]:
    """Groups nodes into layers. Constants are computed again in every layer that reads them, and so are
    values of the inputs alone that are larger than these inputs, such as attention masks."""
    constants, depth = _depths(nodes, inputs, state)
    constants |= _rebuilt(nodes, inputs, depth, constants, values)
    deepest = max(depth.values())
    depth |= {name: deepest for name in outputs if name in constants}
    kept = [node for node in nodes if node.name not in constants or node.name in outputs]
    return group_layers(kept, depth, inputs, outputs, values, state, modules, constants)


def group_layers(
    nodes: list[Node],
    depth: dict[str, int],
    inputs: list[str],
    outputs: Collection[str],
    values: dict[str, Value],
    state: Mapping[str, State],
    modules: Mapping[str, str],
    constants: Mapping[str, Node] | None = None,
) -> list[Layer]:
    """Layers from the depth of every node. Layers that must not be separated are joined."""
    nodes = untied(nodes)  # where a graph's layers are grouped anew
    sink_views(nodes, depth, outputs, values)
    sink_norms(nodes, depth, outputs, values, state)
    groups: dict[int, list[Node]] = defaultdict(list)
    for node in nodes:
        groups[max(depth[node.name], 1)].append(node)
    ordered = [groups[d] for d in sorted(groups)]
    tie_weights(ordered, values, state)
    ordered = _join(ordered, inputs, outputs, values, state)
    layers = []
    kept = kept_values(nodes) | set(outputs)
    for index, group in enumerate(ordered):
        body = _with_constants(group, constants or {}, index, values)
        owned = _owned(ordered, index, state)
        layers.append(_layer(body, index, values, state, modules, owned, kept))
    blocks = blocks_of([layer.name for layer in layers])
    return [replace(layer, block=block) for layer, block in zip(layers, blocks, strict=True)]


def _depths(
    nodes: list[Node], inputs: list[str], state: Mapping[str, State]
) -> tuple[dict[str, Node], dict[str, int]]:
    """(constants: nodes that depend on neither input nor weights, depth of every other node)."""
    constants: dict[str, Node] = {}
    # Read weights but no input (an expanded class token): placed where they are read. So are random numbers:
    # a copy in another layer would be drawn anew.
    floating: list[Node] = []
    of_weights: set[str] = set()  # what follows from weights alone, such as a turned matrix
    depth: dict[str, int] = dict.fromkeys(inputs, 0)
    changing = {name for name, s in state.items() if s.trainable}
    changing |= {refs(n)[0] for n in nodes if operator_named(n.op).changes_state}
    trained = {name for name, s in state.items() if s.trainable}
    for node in nodes:
        read = refs(node)
        record = operator_named(node.op)
        if record.training_only or (record.random and not any(name in depth for name in read)):
            floating.append(node)
        elif any(name in depth for name in read):
            weighted = record.weighted and any(name in state or name in of_weights for name in read)
            depth[node.name] = max(depth.get(name, 0) for name in read) + weighted
        elif any(name in changing for name in read) or any(
            name == f.name for f in floating for name in read
        ):
            floating.append(node)
            if any(name in trained or name in of_weights for name in read):
                of_weights.add(node.name)
        else:
            constants[node.name] = node
    by_use = _first_use(nodes, depth)
    for node in reversed(floating):
        counted = next((r for r in refs(node) if r in state), "")
        near = [depth[n.name] for n in nodes if n.name in depth and _beside(counted, refs(n))]
        users = [depth[u] for u in by_use.get(node.name, []) if u in depth]
        depth[node.name] = min(users or near or [1])
    return constants, depth


def _rebuilt(
    nodes: list[Node],
    inputs: list[str],
    depth: Mapping[str, int],
    constants: Mapping[str, Node],
    values: Mapping[str, Value],
) -> dict[str, Node]:
    """Nodes that are cheaper to compute again than to send: they read inputs and constants alone, later
    layers read them, and their result is larger than these inputs. Or it has samples that no cut can keep
    apart (a row for each sample and head), so that it could not be sent at all."""
    roots: dict[str, set[str]] = {name: {name} for name in inputs}
    made: dict[str, Node] = {}
    for node in nodes:
        read = [name for name in refs(node) if name not in constants]
        record = operator_named(node.op)
        if depth.get(node.name) == 0 and not record.random and all(name in roots for name in read):
            roots[node.name] = set().union(*(roots[name] for name in read))
            made[node.name] = node
    late = {
        name for n in nodes if depth.get(n.name, 0) > 1 and n.name not in made for name in refs(n)
    }
    wanted = [
        name
        for name in made
        if name in late and name in values
        and (
            values[name].bytes > sum(values[root].bytes for root in roots[name])
            or (values[name].batch_dim is None and values[name].scales)
        )
    ]  # fmt: skip
    rebuilt: dict[str, Node] = {}
    while wanted:
        name = wanted.pop()
        if name in made and name not in rebuilt:
            rebuilt[name] = made[name]
            wanted += refs(made[name])
    return rebuilt


def _beside(counter: str, read: list[str]) -> bool:
    """Whether a node reads state of the same module as a batch counter (b1.num_batches_tracked)."""
    prefix = counter.rpartition(".")[0]
    return bool(counter) and any(name.rpartition(".")[0] == prefix for name in read if "." in name)


def _first_use(nodes: list[Node], depth: Mapping[str, int]) -> dict[str, list[str]]:
    users: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        for name in refs(node):
            users[name].append(node.name)
    return users


def _join(
    groups: list[list[Node]],
    inputs: list[str],
    outputs: Collection[str],
    values: Mapping[str, Value],
    state: Mapping[str, State],
) -> list[list[Node]]:
    made_in = dict.fromkeys(inputs, -1)
    last: dict[str, int] = dict.fromkeys(outputs, len(groups))
    first_read: dict[str, int] = {}
    for i, group in enumerate(groups):
        for node in group:
            made_in[node.name] = i
            for name in refs(node):
                last[name] = max(last.get(name, i), i)
                first_read.setdefault(name, i)
    forbidden = set()  # a cut after group i
    for name, birth in made_in.items():
        value = values.get(name)
        if value is None or (value.batch_dim is None and value.scales):
            forbidden |= set(range(max(birth, 0), last.get(name, birth)))
    fixed = _fixed(groups, state)
    for name in state:
        if name in first_read and name not in fixed:
            forbidden |= set(range(first_read[name], last[name]))
    joined: list[list[Node]] = []
    for i, group in enumerate(groups):
        if i and i - 1 in forbidden:
            joined[-1].extend(group)
        else:
            joined.append(list(group))
    return joined


def _fixed(groups: list[list[Node]], state: Mapping[str, State]) -> set[str]:
    """Buffers that nothing changes: every layer that reads one may have a copy."""
    changing = {name for name, s in state.items() if s.trainable}
    for group in groups:
        for node in group:
            record = operator_named(node.op)
            if record.changes_state or record.training_flag is not None or "norm" in node.op:
                changing.update(refs(node))
    return state.keys() - changing


def _owned(groups: list[list[Node]], index: int, state: Mapping[str, State]) -> list[str]:
    read = (name for node in groups[index] for name in refs(node))
    return list(dict.fromkeys(name for name in read if name in state))


def _with_constants(
    group: list[Node], constants: Mapping[str, Node], index: int, values: dict[str, Value]
) -> list[Node]:
    """The group with copies of the constants that it reads, under new names."""
    added: dict[str, Node] = {}

    def renamed(node: Node) -> Node:
        def atom(a: Atom) -> Atom:
            if not (isinstance(a, Ref) and a.name in constants):
                return a
            name = f"{a.name}@{index}"
            if name not in added:
                copy = renamed(constants[a.name])
                added[name] = Node(name, copy.op, copy.args, copy.kwargs)
                if a.name in values:
                    values[name] = values[a.name]
            return Ref(name)

        args: list[Arg] = [
            [atom(a) for a in g] if isinstance(g, list) else atom(g) for g in node.args
        ]
        return Node(node.name, node.op, args, node.kwargs)

    body = [renamed(node) for node in group]
    return [*added.values(), *body]


def _layer(
    nodes: list[Node],
    index: int,
    values: Mapping[str, Value],
    state: Mapping[str, State],
    modules: Mapping[str, str],
    owned: list[str],
    kept: Collection[str],
) -> Layer:
    named = (n for n in nodes if operator_named(n.op).weighted and modules.get(n.name))
    weighted = next(named, None)
    constants_state = [n for node in nodes for n in refs(node) if n in state]
    return Layer(
        name=modules[weighted.name] if weighted else f"layer{index}",
        nodes=nodes,
        state=list(dict.fromkeys([*owned, *constants_state])),
        forward_flops=sum(forward_flops(node, values, state) for node in nodes),
        saved_bytes=sum(saved_bytes(node, values, kept) for node in nodes),
    )
