"""Batch norms that several devices share: sums of a device's own pieces, and the use of those of all."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from weft.graph.execute import Runner
from weft.graph.synced_norm import correct_gradient, follow, sums_of
from weft.program.instructions import Pool
from weft.runtime.node.tensors import HeldTensors, Values

Sums = dict[str, Tensor]  # by the name that the segment gives them


class Pools:
    """The sums of one device, by minibatch and layer."""

    def __init__(self, runners: Mapping[tuple[int, int], Runner], held: HeldTensors) -> None:
        self._runners = {layers[0]: runner for layers, runner in runners.items()}
        self._held = held
        self._totals: dict[int, tuple[int, Sums]] = {}  # by layer: of the newest minibatch
        self._inputs: dict[tuple[int, int], Values] = {}  # by layer and piece: for the way back
        self._gradients: dict[tuple[int, int], Sums] = {}

    def totals(self, step: int, at: int) -> Sums:
        """The sums of the whole minibatch, which a segment reads beside what crosses its cut."""
        known, sums = self._totals[at]
        assert known == step, f"sums of minibatch {known} at minibatch {step}"
        return sums

    def after_backward(
        self, step: int, at: int, micro: int, inputs: Values, gradients: Sums
    ) -> Sums:
        """Keeps a piece's gradients of the sums; returns those of what crosses the cut."""
        names = {norm.sums for norm in self._runners[at].segment.norms}
        self._inputs[at, micro] = inputs
        self._gradients[at, micro] = {n: gradients[n] for n in names}
        return {n: gradient for n, gradient in gradients.items() if n not in names}

    def pool(self, i: Pool, step: int) -> None:
        """One instruction: own sums, or the sum of the parts and its use."""
        read: dict[tuple[str, int], Values] = {
            (t.kind, t.micro): self._held.use(step, t.kind, t.at, t.micro, t.part)
            for t in i.reads
            if t not in i.parts
        }
        parts = [self._held.use(step, t.kind, t.at, t.micro, t.part) for t in i.parts]
        back = i.into.kind == "dnorm"
        if not parts:
            sums = self._own(i, read, back)
        else:
            sums = {n: torch.stack([part[n] for part in parts]).sum(0) for n in parts[0]}
            if back:
                self._correct(i, read, sums)
            else:
                self._take(i.into.at, step, sums)
        self._held.hold(step, i.into.kind, i.into.at, i.into.micro, sums, i.into.part)

    def _own(self, i: Pool, read: Mapping[tuple[str, int], Values], back: bool) -> Sums:
        at, found = i.into.at, {}
        for norm in self._runners[at].segment.norms:
            found[norm.sums] = torch.stack([
                self._gradients[at, micro][norm.sums] if back
                else sums_of(read["act", micro][norm.value])
                for micro in i.micros
            ]).sum(0)  # fmt: skip
        return found

    def _take(self, at: int, step: int, sums: Sums) -> None:
        self._totals[at] = step, sums
        runner = self._runners[at]
        with torch.no_grad():
            for norm in runner.segment.norms:
                if norm.mean and norm.variance:
                    mean, variance = runner.state[norm.mean], runner.state[norm.variance]
                    follow(mean, variance, sums[norm.sums], norm.momentum)
                if norm.counter:
                    runner.state[norm.counter].add_(1)

    def _correct(self, i: Pool, read: Mapping[tuple[str, int], Values], sums: Sums) -> None:
        at = i.into.at
        for micro in i.micros:
            inputs, gradients = self._inputs.pop((at, micro)), read["grad", micro]
            del self._gradients[at, micro]
            for norm in self._runners[at].segment.norms:
                correct_gradient(gradients[norm.value], inputs[norm.value], sums[norm.sums])
