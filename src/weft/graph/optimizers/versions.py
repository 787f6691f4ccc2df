"""Older versions of weights, which minibatches in flight have met, beside an optimizer's memory.

    memory["fc.weight/version@12"]       # the weight that minibatch 12 has met in its forward pass
    versions, rest = split_versions(memory)
    versions[12]["fc.weight"]

They travel with the optimizer's memory: in copies, in saves, and to another holder of the weight. So a run
that goes back does the minibatches in flight with the same weights as before.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

VERSION = "version@"
Versions = dict[int, dict[str, Tensor]]  # by minibatch and name


def named(minibatch: int, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights that a minibatch has met, as an optimizer's memory names them."""
    return {f"{name}/{VERSION}{minibatch}": tensor for name, tensor in weights.items()}


def split_versions(memory: Mapping[str, Tensor]) -> tuple[Versions, dict[str, Tensor]]:
    """The versions, and the rest of the memory."""
    versions: Versions = {}
    rest: dict[str, Tensor] = {}
    for full, tensor in memory.items():
        name, _, what = full.rpartition("/")
        minibatch = what.removeprefix(VERSION)
        if what.startswith(VERSION) and minibatch.isdecimal():
            versions.setdefault(int(minibatch), {})[name] = tensor
        else:
            rest[full] = tensor
    return versions, rest


def limited(memory: Mapping[str, Tensor], most: int) -> dict[str, Tensor]:
    """The memory with the versions of the first `most` minibatches: a device that is fewer minibatches ahead
    needs no more."""
    versions, limited = split_versions(memory)
    for minibatch in sorted(versions)[:most]:
        limited |= named(minibatch, versions[minibatch])
    return limited
