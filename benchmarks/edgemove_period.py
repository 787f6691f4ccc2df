"""The period of a pipeline with k minibatches in flight: measured against P, on real node processes.

    python benchmarks/edgemove_period.py [steps]

    P = max(C, W, U, D, (C + W + U + D + RTT) / k)

C, W, U, D: seconds of client, worker, uplink, downlink per minibatch. The devices are emulated: their
computing is paced by their profile, their links are shaped; schedule, messages, weight stashing and the
runtime's own time are real.
"""

from __future__ import annotations

import sys

import torch
from torch import nn

from weft import zoo
from weft.adapt.train import train
from weft.fleet.fleet import Device, Fleet, Link
from weft.graph.optimizers.optimizer import Optimizer
from weft.plans.plan import Plan, Shard
from weft.program.cost import compute_seconds
from weft.program.instructions import Send, Update
from weft.program.lower.lower import lower
from weft.runtime.run.feeds import source_of
from weft.runtime.run.workload.one_network import prepare

BATCH, CUT = 32, 1
LATENCIES_MS = (5.0, 60.0, 200.0)
COUNTS = (1, 2, 4, 8)


def fleet(latency_ms: float) -> Fleet:
    return Fleet(
        (Device("phone", gflops=0.25, data=True), Device("edge", "edge", gflops=0.4)),
        (Link(("phone", "edge"), 12.0, 24.0, latency_ms),),
    )


def terms(plan: Plan) -> tuple[float, float, float, float, float]:
    """C, W, U, D and the worker's update, which is no part of a minibatch's way."""
    program = lower(plan)
    seconds = {
        device: sum(compute_seconds(plan.profile, device, i) for i in code)
        for device, code in program.code.items()
    }
    update = sum(compute_seconds(plan.profile, "edge", i)
                 for i in program.code["edge"] if isinstance(i, Update))  # fmt: skip
    sent = {
        device: sum(i.bytes for i in code if isinstance(i, Send))
        for device, code in program.code.items()
    }
    up = sent["phone"] / plan.fleet.path_rate("phone", "edge")
    down = sent["edge"] / plan.fleet.path_rate("edge", "phone")
    return seconds["phone"], seconds["edge"], up, down, update


def main(steps: int = 40) -> None:
    torch.set_num_threads(1)
    print(
        f"{'RTT':>6} {'k':>2} {'C':>7} {'W':>7} {'U':>7} {'D':>7} {'P':>8} {'measured':>9} {'ratio':>6}"
    )
    worst = 0.0
    source = source_of("mnist5k", BATCH, 0)
    for latency in LATENCIES_MS:
        there = fleet(latency)
        torch.manual_seed(0)
        trainee = prepare(
            zoo.build("lenet5"), source, nn.CrossEntropyLoss(), there, batch=BATCH,
            rule=Optimizer(), emulated=True, name="lenet5",
        )  # fmt: skip
        assert trainee.emulation is not None
        last = len(trainee.graph.layers) - 1
        for k in COUNTS:
            plan = Plan(
                strategy="by hand", model="lenet5", batch=BATCH, mode="train", source="phone",
                shards=(Shard("phone", (0, CUT - 1)), Shard("edge", (CUT, last))), fleet=there,
                profile=trainee.emulation.profile, stale=k - 1,
            )  # fmt: skip
            result = train(
                zoo.build("lenet5"), "mnist5k", nn.CrossEntropyLoss(), plan=plan,
                profile=trainee.emulation.profile, steps=steps, batch=BATCH, local=True,
                name="lenet5",
            )  # fmt: skip
            client, worker, up, down, update = terms(result.plan)
            way = client + worker - update + up + down + 2 * latency / 1e3
            period = max(client, worker, up, down, way / k)
            ratio = result.step_s / period
            worst = max(worst, abs(ratio - 1))
            print(f"{2 * latency:>3.0f} ms {k:>2} "
                  + " ".join(f"{x * 1e3:>4.1f} ms" for x in (client, worker, up, down))
                  + f" {period * 1e3:>5.1f} ms {result.step_s * 1e3:>6.1f} ms {ratio:>6.3f}",
                  flush=True)  # fmt: skip
    print(f"largest deviation {worst:.1%}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40)
