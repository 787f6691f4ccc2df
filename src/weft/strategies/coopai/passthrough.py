"""YOLOv2's passthrough as the paper counts it.

    geometry = as_printed(geometry_of(graph))

Layer 21 does not read layer 20. It reads the map of layer 13 from before its pool (a tap), and layer 22
reads 20 and 21 together. The paper's printed numbers come out if

- 20 and 21 are joined before layer 22, not after layer 21;
- a round that ends between 20 and 22 sends all rows of layer 20 up, and the next reader gets everything
  that it needs of them (they are relayed);
- a block fetches the tap only if the block begins with layer 21; inside a block the tap is free.

In the graph itself, rows of any value are fetched when they are missing. So this view is only for the
strategies that follow the paper. Networks without a tap are not changed by it.
"""

from __future__ import annotations

import dataclasses

from weft.strategies.coopai.geometry import Geometry, RowLayer, Step


def as_printed(geometry: Geometry) -> Geometry:
    """The same geometry with its passthroughs as in the paper."""
    for index in range(1, len(geometry.layers)):
        if tap := _tap(geometry, index):
            geometry = _join_later(geometry, index, tap)
    return geometry


def _tap(geometry: Geometry, index: int) -> str | None:
    """The map inside an earlier layer that layer `index` reads and joins with the layer before; or None."""
    layer, before = geometry.rows(index), geometry.rows(index - 1)
    if layer is None or before is None or layer.after or len(layer.steps) < 2:
        return None
    first, last = layer.steps[0], layer.steps[-1]
    if before.output not in last.reads or last.flops or last.rule.reach != 1:
        return None
    for name in first.reads:
        maker = geometry.rows(geometry.made[name]) if geometry.made[name] >= 0 else None
        if maker is not None and name != maker.output:
            return name
    return None


def _join_later(geometry: Geometry, index: int, tap: str) -> Geometry:
    """Layer `index` without its last step, the join. Readers of the joined map read its parts instead."""
    layer, before = geometry.rows(index), geometry.rows(index - 1)
    assert layer is not None
    assert before is not None
    join = layer.steps[-1]

    def parts(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(p for name in names for p in (join.reads if name == join.out else (name,)))

    def renamed(other: RowLayer) -> RowLayer:
        steps = (Step(s.out, parts(s.reads), s.rule, s.flops) for s in other.steps)
        return dataclasses.replace(other, steps=tuple(steps))

    layers = list(geometry.layers)
    layers[index] = dataclasses.replace(layer, steps=layer.steps[:-1])
    for later in range(index + 1, len(layers)):
        other = layers[later]
        if isinstance(other, RowLayer):
            layers[later] = renamed(other)
    readers = geometry.read[join.out]
    read = {**geometry.read, **dict.fromkeys(join.reads, readers)}
    return dataclasses.replace(
        geometry,
        layers=tuple(layers),
        cuts=tuple(map(parts, geometry.cuts)),
        read=read,
        relayed=geometry.relayed | {before.output},
        taps=geometry.taps | {tap},
    )
