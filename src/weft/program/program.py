"""A program: a plan and, for each device, its short list of instructions."""

from __future__ import annotations

import math

from msgspec import Struct

from weft.plans.plan import Plan
from weft.program.instructions import Instruction, every


class Program(Struct, frozen=True):
    """A plan, and the instructions of each device for one minibatch."""

    plan: Plan
    code: dict[str, tuple[Instruction, ...]]  # by device

    @property
    def max_lag(self) -> int:
        return max((i.lag for code in self.code.values() for i in code), default=0)

    @property
    def beat(self) -> int:
        """Minibatches after which the pattern repeats: those of a round, or those in flight."""
        plan, in_flight, rounds = self.plan, self.plan.stale + 1, 1
        if plan.peers is not None:  # only they have rounds
            rounds = max((every(i) for code in self.code.values() for i in code), default=1)
        if plan.stale and len(plan.shards) > 1 and plan.shards[-1].device == plan.source:
            in_flight = math.lcm(2, in_flight)  # there and back twice: the ends come in pairs too
        return max(rounds, in_flight)

    def __len__(self) -> int:
        return sum(len(code) for code in self.code.values())
