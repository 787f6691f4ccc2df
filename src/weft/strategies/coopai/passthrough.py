"""YOLOv2's passthrough as the paper's numbers count it.

Layer 21 does not go on from layer 20: it reads the map of layer 13 from before its pool (a tap), and layer
22 reads 20 and 21 together. What the paper prints comes out when

- the two are joined in front of layer 22, not behind layer 21;
- the end of a round between 20 and 22 sends layer 20's rows up whole, and the next reader gets all that it
  needs of them (they are relayed);
- a block fetches the tap only where it begins with layer 21; inside a block it is free.

The graph itself says otherwise: rows of any value are fetched where they are missing. So this view is for
the faithful strategies alone, and networks without a tap are not changed by it.
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
    """The map inside an earlier layer that layer `index` reads, to be joined with the layer before."""
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
    """Layer `index` without its last step, the join; who reads the joined map reads its parts."""
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
