"""One rank of a schedule of torch.distributed.pipelining over gloo; started by two_stages.torch_run.

    python benchmarks/torch_rank.py CHANNELS MICRO_BATCHES STEPS [1f1b | gpipe | interleaved | zero-bubble]

1f1b and gpipe have one stage on each rank, the network of `two_stages`. The other two have two stages on
each rank; the small end of the network is then three stages, with one more small layer, so that each
has weights. The large activations cross the link once each way in all of them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)

SAMPLES = 16
SINGLE = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}
SEVERAL = {"interleaved": ScheduleInterleaved1F1B, "zero-bubble": ScheduleInterleavedZeroBubble}
PASSES = ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk")


def main() -> None:
    channels, micro_batches, steps = map(int, sys.argv[1:4])
    kind = sys.argv[4] if len(sys.argv) > 4 else "1f1b"
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    modules = parts(channels, kind in SEVERAL)
    mine = {number: module for number, module in enumerate(modules) if number % 2 == rank}
    x = torch.rand(SAMPLES * micro_batches, 1, 28, 28)
    y = torch.randint(0, 10, (len(x),))
    stages = [
        PipelineStage(module, number, len(modules), torch.device("cpu"))
        for number, module in mine.items()
    ]
    clock = Clock()
    # As with Weft's instructions, what a stage keeps and looks up for a micro-batch is counted with it.
    for stage in stages:
        for name in PASSES:
            setattr(stage, name, clock.timed(getattr(stage, name)))
    loss = clock.timed(nn.CrossEntropyLoss())
    schedule: Any  # each has the same step
    if kind in SEVERAL:
        schedule = SEVERAL[kind]([*stages], micro_batches, loss_fn=loss)
    else:
        schedule = SINGLE[kind](stages[0], micro_batches, loss_fn=loss)
    optimizer = torch.optim.SGD([w for m in mine.values() for w in m.parameters()], lr=0.05)
    update = clock.timed(optimizer.step)

    def step() -> None:
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=y, losses=[])
        update()
        optimizer.zero_grad()

    for _ in range(2):
        step()
    dist.barrier()
    before, cpu, begin = clock.seconds, time.process_time(), time.monotonic()
    for _ in range(steps):
        step()
    seconds, cpu = time.monotonic() - begin, time.process_time() - cpu
    compute = (clock.seconds - before) / (steps * micro_batches)
    print(json.dumps({"step_s": seconds / steps, "own_s": cpu - compute * steps * micro_batches,
                      "compute_s": compute}))  # fmt: skip
    dist.barrier()
    dist.destroy_process_group()


def parts(channels: int, several: bool) -> list[nn.Module]:
    """The stages of the network: two, or four."""
    front = nn.Sequential(nn.Conv2d(1, channels, 3, padding=1), nn.ReLU())
    middle = nn.Sequential(nn.Conv2d(channels, 4, 4, stride=4), nn.ReLU())
    if several:  # no stage may end with a view, such as Flatten's
        return [
            front,
            middle,
            nn.Sequential(nn.Flatten(), nn.Linear(4 * 49, 32)),
            nn.Linear(32, 10),
        ]
    return [front, nn.Sequential(*middle, nn.Flatten(), nn.Linear(4 * 49, 10))]


class Clock:
    """The CPU time of the mathematics, measured where it happens. A part within a part counts once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._inside = False

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def measured(*arguments: Any, **named: Any) -> Any:
            if self._inside:
                return function(*arguments, **named)
            self._inside, begin = True, time.thread_time()
            try:
                return function(*arguments, **named)
            finally:
                self.seconds += time.thread_time() - begin
                self._inside = False

        return measured


if __name__ == "__main__":
    main()
