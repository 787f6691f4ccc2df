"""A swarm of nine real node processes whose devices die, and convolutions spread by channels.

    python benchmarks/stitchnet_deaths.py [--steps 120]

1. A network of convolutions, double precision, three minibatches each: the largest difference of any weight
   from the masked form under the same losses, for every strategy.
2. The coordinator is killed in the middle of a run on mnist5k: when that is noticed, how long it takes until
   another has taken over, the accuracy at the end; and in a simulation that changes to the same plan at the
   same minibatch.
3. The four best connected workers are killed together: stitchnet, which clones, and stitchnet+, which spreads
   what is left anew.
"""

from __future__ import annotations

import argparse

import torch
from stitchnet_run import DATA, FLEET, MAPPINGS, Ran, Subject
from torch import nn

from weft.data import batch_indices
from weft.draws import TRAINING
from weft.fleet.faults import Faults
from weft.graph.capture.module import capture, capture_loss, state_of
from weft.graph.split.masked_conv import ConvNet
from weft.plans.delivery import known_links
from weft.plans.plan import Plan
from weft.runtime.emulate.local import LocalFleet
from weft.strategies.stitchnet.importance import failure_order
from weft.strategies.stitchnet.swarm import spread_of

SMALL = 20  # samples of a minibatch of the convolutions


class Convolutions(Subject):
    """`graph.masked_conv`'s network, as the run sees it."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.dtype = torch.float64
        module = nn.Sequential(
            nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(32 * 49, 64), nn.ReLU(), nn.Linear(64, 10),
        )  # fmt: skip
        self.module = module.to(self.dtype)
        self.x = DATA.train_x.to(self.dtype)
        graph = capture(self.module, self.x[:2], name="convolutions")
        self.graph = capture_loss(graph, nn.CrossEntropyLoss(), DATA.train_y[:2])
        self.samples = SMALL

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        rows = batch_indices(len(self.x), SMALL, step, 0)
        return self.x[rows], DATA.train_y[rows]

    def difference(self, ran: Ran, plan: Plan, steps: int) -> float:
        """The largest of any weight or bias from the masked form."""
        net, before = ConvNet((1, 28, 28), 10, dtype=self.dtype), state_of(self.module)
        names = [name[:-7] for name in before if name.endswith(".weight")]
        with torch.no_grad():
            for name, weight, bias in zip(names, net.weights, net.biases, strict=True):
                weight.copy_(before[f"{name}.weight"])
                bias.copy_(before[f"{name}.bias"])
        masks = self.channel(plan).masks(TRAINING, 0, steps)
        for step in range(steps):
            net.step(*self.batch(step), masks.at(step))
        return max(
            float((ran.state[f"{name}.{kind}"] - mine).abs().max().detach())
            for kind, every in (("weight", net.weights), ("bias", net.biases))
            for name, mine in zip(names, every, strict=True)
        )


def convolutions(local: LocalFleet, steps: int = 3) -> None:
    subject = Convolutions()
    print("\nconvolutions      messages  packets  not heard   largest difference of a weight")
    for mapping in (*MAPPINGS, "random-units", "stitchnet+"):
        plan = subject.plan(mapping)
        ran = Ran(local, subject, plan, steps)
        counts = {key: ran.counts[key] / steps for key in ("messages", "packets", "unheard")}
        share = counts["unheard"] / counts["messages"]
        print(f"{mapping:16} {counts['messages']:9.1f} {counts['packets']:8.1f} {share:10.1%}"
              f"   {subject.difference(ran, plan, steps):.1e}", flush=True)  # fmt: skip


def killed(local: LocalFleet, subject: Subject, plan: Plan, dying: list[str], steps: int) -> None:
    """Kills some in the middle; the run and a simulation that changes its plan at the same minibatch."""
    for name, process in local.processes.items():
        if process.poll() is not None:
            local.restart(name)
    local.crew.wait_for(local.names, 120.0)
    kill = Faults()
    for device in dying:
        kill = kill.kill(device, step=steps // 2)
    ran = Ran(local, subject, plan, steps, kill)
    events = ran.run.events
    noticed = max(e["at_s"] for e in events if e["kind"] == "device_lost") - ran.faults[0].at_s
    net, change = subject.net(), events[-1]["step"]
    for used, begin, end in ((plan, 0, change), (ran.plan, change, steps)):
        masks = subject.channel(used).masks(TRAINING, begin, end - begin)
        for step in range(begin, end):
            x, y = subject.batch(step)
            net.step(x.flatten(1), y, masks.at(step - begin))
    real, simulated = (subject.accuracy(n, ran.plan) for n in (subject.net(ran.state), net))
    seconds = [e["seconds"] for e in events if e["kind"] == "recovered"]
    kept = sum(int((owners >= 0).sum()) for owners in spread_of(ran.plan).owners)
    print(f"\n{plan.strategy}: {', '.join(dying)} killed after {steps // 2} of {steps} minibatches: noticed "
          f"after {noticed:.2f} s, recovered in {sum(seconds):.2f} s; {kept} of 256 units, "
          f"{ran.plan.decisions['packets']} packets planned; {real:.2f}% at the end, "
          f"{simulated:.2f}% simulated")  # fmt: skip
    print("  events:", events, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=120)
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    with LocalFleet(FLEET.names) as local:
        local.crew.wait_for(local.names, 120.0)
        convolutions(local)
        subject = Subject(torch.float32)
        mixed = subject.plan("stitchnet", slot_ms=60)
        killed(local, subject, mixed, [mixed.source], steps)
        for strategy in ("stitchnet", "stitchnet+"):
            plan = subject.plan(strategy)
            killed(local, subject, plan, [plan.source], steps)
            best = failure_order(known_links(plan), spread_of(plan), "best")[:4]
            killed(local, subject, plan, [FLEET.names[d] for d in best], steps)


if __name__ == "__main__":
    main()
