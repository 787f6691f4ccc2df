"""The blocks of a network: repeated parts of its module, such as the encoders of a transformer.

    blocks_of(["patches", "encoders.0.qkv", "encoders.0.out", "encoders.1.qkv", "encoders.1.out", "head"])
    ["", "encoders.0", "encoders.0", "encoders.1", "encoders.1", ""]

torch.export notes for every operator from which module it comes. A block is the innermost module with a
number at the end of its name (`encoders.3`, `layer1.0`) that holds at least two layers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

_NUMBERED = re.compile(r"\d+$")


def blocks_of(paths: Sequence[str]) -> list[str]:
    """The block of each layer, from the module paths of the layers' first weighted operators; empty where a
    layer is in no block."""
    within = [_numbered(path) for path in paths]
    layers = Counter(part for parts in within for part in parts)
    return [next((part for part in parts if layers[part] > 1), "") for parts in within]


def _numbered(path: str) -> list[str]:
    """All numbered modules around a path, the innermost first."""
    words = path.split(".")
    around = [".".join(words[:end]) for end in range(len(words), 0, -1)]
    return [module for module in around if _NUMBERED.search(module)]
