"""Older versions of weights, for a stage whose backward pass comes several minibatches after its forward
pass.

    stash = Stash(runner, count=4)
    stash.at(7).forward(...)      # with the weights of this moment
    ...                           # three updates of the live weights
    stash.settle(7)               # after the backward: its gradients become the live weights'

PipeDream's weight stashing. The first forward of a minibatch copies the live weights into the oldest of
`count` versions, because an update writes in place and must not change the weights that a later backward pass
reads. Further pieces of the same minibatch use the same version. All versions share the buffers: running
statistics are updated in the order of the forward passes.
"""

from __future__ import annotations

import torch

from weft.graph.execute import Runner
from weft.program import instructions as ins


class Stash:
    """`count` versions of one segment's weights, used in turn."""

    def __init__(self, live: Runner, count: int) -> None:
        self._trained = [n for n, info in live.segment.state.items() if info.trainable]
        self._live = live
        self._versions = [
            Runner(
                live.segment,
                {**live.state, **{n: live.state[n].detach().clone() for n in self._trained}},
            )
            for _ in range(count)
        ]
        self._minibatches: list[int | None] = [None] * count  # the minibatch of each version

    def at(self, step: int) -> Runner:
        """The version for a minibatch: a copy of the weights at its first forward pass."""
        index = step % len(self._versions)
        version = self._versions[index]
        if self._minibatches[index] == step:
            return version
        self._minibatches[index] = step
        with torch.no_grad():
            for name in self._trained:
                version.state[name].copy_(self._live.state[name])
        return version

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


def stashes(runners: dict[tuple[int, int], Runner], code: tuple[ins.Instruction, ...]) -> dict[
    tuple[int, int], Stash
]:  # fmt: skip
    """A stash for every segment that is updated between a minibatch's forward and backward pass."""
    found = {}
    for layers, runner in runners.items():
        forward = max((i.lag for i in code if isinstance(i, ins.Forward) and i.layers == layers),
                      default=0)  # fmt: skip
        update = max((i.lag for i in code if isinstance(i, ins.Update) and i.layers == layers),
                     default=0)  # fmt: skip
        if update > forward and runner.parameters:
            found[layers] = Stash(runner, update - forward + 1)
    return found
