"""A network that one device has for itself, where devices do not share one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from weft.graph.network import Graph
from weft.runtime.node.groups import Slice
from weft.runtime.wire import messages as msg


@dataclass(frozen=True)
class Own:
    """What a peer trains, on which samples, and which of its weights it exchanges."""

    graph: Graph
    state: Mapping[str, Tensor]
    data: msg.Data
    groups: Mapping[int, tuple[Slice, ...]] = field(default_factory=dict)
