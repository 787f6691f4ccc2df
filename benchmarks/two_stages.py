"""A two-stage pipeline, run by Weft and by torch.distributed.pipelining: what the benchmarks share.

The front is a convolution whose activations have a chosen size per micro-batch; the back is small.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from weft.fleet.parse import parse_fleet
from weft.graph.capture.module import capture, capture_loss, state_of
from weft.plans.plan import Plan, Shard
from weft.runtime.run.jobs import Settings
from weft.runtime.run.launch import Place, open_crew
from weft.runtime.run.pace import emulation
from weft.runtime.run.run import Run
from weft.simulate.price import priced

SAMPLES = 16  # of a micro-batch


class TwoStages(nn.Module):
    """1x28x28 -> channels x 28 x 28 -> 10 classes: 1 MB of activations per 16 samples, 20 channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.front = nn.Conv2d(1, channels, 3, padding=1)
        self.middle = nn.Conv2d(channels, 4, 4, stride=4)  # a weight, so that the cut is before it
        self.back = nn.Linear(4 * 49, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.back(torch.relu(self.middle(torch.relu(self.front(x)))).flatten(1))


@dataclass(frozen=True)
class Measured:
    step_s: float
    own_ms: float  # CPU time beside the mathematics, per micro-batch (both processes together)
    compute_s: float  # the slower stage, per micro-batch


def activation_bytes(channels: int) -> int:
    """Per micro-batch, one way."""
    return SAMPLES * channels * 28 * 28 * 4


def weft_run(
    channels: int,
    micro_batches: int,
    in_flight: int,
    steps: int,
    mbps: float | None,
    netns: bool = False,
) -> tuple[Measured, Plan]:
    """Weft on two node processes; `mbps` None leaves the loopback unshaped."""
    rate = mbps or 100_000
    fleet = parse_fleet(
        f"""
        [[device]]
        name = "front"
        data = true
        [[device]]
        name = "back"
        tier = "edge"
        [[link]]
        between = ["front", "back"]
        mbps = {rate}
        """
    )
    torch.manual_seed(0)
    model, loss = TwoStages(channels), nn.CrossEntropyLoss()
    batch = SAMPLES * micro_batches
    x, y = torch.rand(2, 1, 28, 28), torch.randint(0, 10, (2,))
    graph = capture_loss(capture(model, x, name="two-stages"), loss, y)
    state = state_of(model)
    measured = emulation(graph, state, fleet, batch=SAMPLES, training=True)
    plan = priced(
        Plan(
            strategy="chain", model="two-stages", batch=batch, mode="train",
            shards=(Shard("front", (0, 0)), Shard("back", (1, 2))), source="front", fleet=fleet,
            profile=measured.profile, micro_batches=micro_batches, in_flight=in_flight,
        )
    )  # fmt: skip
    settings = Settings(deadline_s=60.0, data="mnist5k")  # the front has its samples itself
    with open_crew(plan, Place(local=not netns, netns=netns), settings) as (crew, fitted):
        if mbps is None:
            fitted = replace(fitted, shaping="none")
        with Run(crew, plan, graph, state, fitted) as run:
            run.prepare()
            run.steps(0, 2)  # the first steps load kernels and fill caches
            begun = run.timeline()[1]
            run.steps(2, 2 + steps)
            timeline, nodes = run.timeline()
    count = steps * micro_batches
    own = sum(n.total_cpu_s - (n.compute_cpu_s - begun[d].compute_cpu_s) for d, n in nodes.items())
    ends = timeline.step_ends
    busiest = max(
        sum(s.end - s.start for s in timeline.spans
            if s.where == d and s.what in ("forward", "loss", "backward") and s.step >= 2)
        for d in ("front", "back")
    )  # fmt: skip
    step = (ends[-1] - ends[1]) / steps
    return Measured(step, own / count * 1e3, busiest / count), plan


def torch_run(
    channels: int, micro_batches: int, steps: int, mbps: float | None, schedule: str = "1f1b"
) -> Measured | None:
    """A schedule of torch.distributed.pipelining over gloo; None where no link can be shaped (no root)."""
    with _two_hosts(mbps) as hosts:
        if hosts is None:
            return None
        address, interfaces, prefixes = hosts
        port = str(20_000 + os.getpid() % 20_000)
        processes = []
        for rank in range(2):
            environment = {
                **os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": address, "MASTER_PORT": port,
                "RANK": str(rank), "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": interfaces,
                "PYTHONWARNINGS": "ignore",
            }  # fmt: skip
            command = [*prefixes[rank], sys.executable, os.path.join(os.path.dirname(__file__),
                       "torch_rank.py"), str(channels), str(micro_batches), str(steps), schedule]  # fmt: skip
            processes.append(subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE))  # fmt: skip
        answers = []
        try:
            for process in processes:
                out, error = process.communicate(timeout=300)
                if process.returncode:
                    raise RuntimeError(error.decode()[-2000:])
                answers.append(json.loads(out.decode().strip().splitlines()[-1]))
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
    own = sum(a["own_s"] for a in answers) / (steps * micro_batches) * 1e3
    compute = max(a["compute_s"] for a in answers)
    return Measured(answers[0]["step_s"], own, compute)


@contextlib.contextmanager
def _two_hosts(mbps: float | None) -> Iterator[tuple[str, str, list[list[str]]] | None]:
    """Loopback, or two network namespaces with a shaped veth pair between them."""
    if mbps is None:
        yield "127.0.0.1", "lo", [[], []]
        return
    if os.geteuid() != 0:
        yield None
        return
    tag = f"wb{os.getpid() % 10_000}"
    names = [f"{tag}a", f"{tag}b"]
    try:
        for name in names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", names[0], "link", "add", "l0", "type", "veth", "peer", "name", "l0", "netns",
            names[1])  # fmt: skip
        for i, name in enumerate(names):
            _ip("-n", name, "addr", "add", f"10.215.0.{i + 1}/24", "dev", "l0")
            _ip("-n", name, "link", "set", "l0", "up")
            subprocess.run(
                ["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "l0", "root", "tbf",
                 "rate", f"{mbps:g}mbit", "burst", "32kb", "latency", "400ms"], check=True,
            )  # fmt: skip
        yield "10.215.0.1", "l0", [["ip", "netns", "exec", name] for name in names]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
