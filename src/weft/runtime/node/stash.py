"""Older versions of weights, for a stage whose backward pass comes several minibatches after its forward
pass.

    stash = Stash(runner, count=4)
    stash.at(7).forward(...)      # with the weights of this moment
    ...                           # three updates of the live weights
    stash.settle(7)               # after the backward: its gradients become the live weights'
    stash.pending(6)              # for a copy: the versions of minibatches after 6

PipeDream's weight stashing. The first forward of a minibatch copies the live weights into the oldest of
`count` versions, because an update writes in place and must not change the weights that a later backward pass
reads. Further pieces of the same minibatch use the same version. All versions share the buffers: running
statistics are updated in the order of the forward passes. A copy of the state after minibatch 6 needs the
buffers that minibatch 7 has met, so these are kept for each minibatch in flight.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from weft.graph.execute import Runner
from weft.graph.optimizers.versions import Versions, named
from weft.program import instructions as ins


class Stash:
    """`count` versions of one segment's weights, used in turn."""

    def __init__(self, live: Runner, count: int) -> None:
        self._trained = [n for n, info in live.segment.state.items() if info.trainable]
        self._untrained = [n for n, info in live.segment.state.items() if not info.trainable]
        self._live = live
        self._versions = [
            live.like({n: live.state[n].detach().clone() for n in self._trained})
            for _ in range(count)
        ]
        self._minibatches: list[int | None] = [None] * count  # the minibatch of each version
        # The buffers before the forward pass of each minibatch in flight.
        self._met: dict[int, dict[str, Tensor]] = {}

    def at(self, step: int) -> Runner:
        """The version for a minibatch: a copy of the weights at its first forward pass, or the one that was
        restored for it."""
        index = step % len(self._versions)
        version = self._versions[index]
        if step not in self._met:
            self._met[step] = {n: self._live.state[n].detach().clone() for n in self._untrained}
        if self._minibatches[index] != step:
            self._take(step, self._live.state)
        return version

    def _take(self, step: int, weights: Mapping[str, Tensor]) -> None:
        index = step % len(self._versions)
        self._minibatches[index] = step
        with torch.no_grad():
            for name in self._trained:
                self._versions[index].state[name].copy_(weights[name])

    def settle(self, step: int) -> None:
        """Adds the gradients of a minibatch's version to those of the live weights."""
        version = self._versions[step % len(self._versions)]
        for name in self._trained:
            live, mine = self._live.state[name], version.state[name]
            if live.grad is None:
                live.grad = mine.grad
            elif mine.grad is not None:
                live.grad += mine.grad
            mine.grad = None

    def end(self, step: int) -> None:
        """Frees the minibatch's version after the update, also for the same minibatch again."""
        self._minibatches[step % len(self._minibatches)] = None
        self._met.pop(step, None)

    def pending(self, done: int) -> dict[str, Tensor]:
        """The versions of minibatches in flight after minibatch `done`, as an optimizer's memory names
        them."""
        found: dict[str, Tensor] = {}
        for step, version in zip(self._minibatches, self._versions, strict=True):
            if step is not None and step > done:
                found |= named(step, {n: version.state[n].detach() for n in self._trained})
        return found

    def met(self, step: int) -> dict[str, Tensor]:
        """The buffers before a minibatch's forward pass; none if it has not begun."""
        return self._met.get(step, {})

    def restore(self, versions: Versions) -> None:
        """Takes up versions that `pending` returned. One without all of the segment's weights is of another
        plan and does not count."""
        self._minibatches = [None] * len(self._versions)
        self._met = {}
        whole = [n for n, weights in versions.items() if weights.keys() >= set(self._trained)]
        for step in sorted(whole)[: len(self._versions) - 1]:
            self._take(step, versions[step])


def stashes(
    runners: Mapping[tuple[int, int], Runner], code: tuple[ins.Instruction, ...]
) -> dict[tuple[int, int], Stash]:
    """A stash for every segment that is updated between a minibatch's forward and backward pass."""
    ahead = ins.stashed(code)
    return {
        layers: Stash(runner, ahead[layers] + 1)
        for layers, runner in runners.items()
        if layers in ahead and runner.parameters
    }
