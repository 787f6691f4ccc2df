"""One rank of torch.distributed.pipelining's 1F1B over gloo; started by two_stages.torch_run."""

from __future__ import annotations

import json
import os
import sys
import time

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
    schedule = Schedule1F1B(stage, micro_batches, loss_fn=nn.CrossEntropyLoss())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)

    def step() -> None:
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=y, losses=[])
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(2):
        step()
    dist.barrier()
    cpu, begin = time.process_time(), time.monotonic()
    for _ in range(steps):
        step()
    seconds, cpu = time.monotonic() - begin, time.process_time() - cpu
    compute = _compute(module, rank, x, y, channels, micro_batches)
    print(json.dumps({"step_s": seconds / steps, "own_s": cpu - compute * steps * micro_batches,
                      "compute_s": compute}))  # fmt: skip
    dist.barrier()
    dist.destroy_process_group()


def _compute(
    module: nn.Module, rank: int, x: torch.Tensor, y: torch.Tensor, channels: int, count: int
) -> float:
    """CPU seconds of one micro-batch's mathematics alone."""
    given = x[:SAMPLES] if rank == 0 else torch.rand(SAMPLES, channels, 28, 28)
    loss = nn.CrossEntropyLoss()
    times = []
    for _ in range(count):
        leaf = given.clone().requires_grad_(rank == 1)
        start = time.process_time()
        out = module(leaf)
        if rank == 1:
            loss(out, y[:SAMPLES]).backward()
        else:
            out.backward(torch.ones_like(out))
        times.append(time.process_time() - start)
    return sorted(times)[len(times) // 2]


if __name__ == "__main__":
    main()
