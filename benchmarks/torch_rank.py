"""One rank of torch.distributed.pipelining's 1F1B over gloo; started by two_stages.torch_run."""

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
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

SAMPLES = 16


def main() -> None:
    channels, micro_batches, steps = map(int, sys.argv[1:4])
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    stages = [
        nn.Sequential(nn.Conv2d(1, channels, 3, padding=1), nn.ReLU()),
        nn.Sequential(
            nn.Conv2d(channels, 4, 4, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 49, 10)
        ),
    ]
    module = stages[rank]
    x = torch.rand(SAMPLES * micro_batches, 1, 28, 28)
    y = torch.randint(0, 10, (len(x),))
    stage = PipelineStage(module, rank, 2, torch.device("cpu"))
    clock = Clock()
    # As with Weft's instructions, what a stage keeps and looks up for a micro-batch is counted with it.
    stage.forward_one_chunk = clock.timed(stage.forward_one_chunk)  # type: ignore[method-assign]
    stage.backward_one_chunk = clock.timed(stage.backward_one_chunk)  # type: ignore[method-assign]
    schedule = Schedule1F1B(stage, micro_batches, loss_fn=clock.timed(nn.CrossEntropyLoss()))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
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
