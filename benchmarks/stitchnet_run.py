"""A swarm of nine real node processes beside its simulation: losses, messages, accuracy, deaths.

    python benchmarks/stitchnet_run.py [--steps 200]

1. Four mappings, double precision, five minibatches each: the largest difference of any weight from the
   masked form under the same losses, and messages a minibatch.
2. Mix-Mapped on mnist5k: loss and accuracy (tested under loss) of the real run and of the simulation.
3. Slots that follow the clock: how long a minibatch takes, and what came too late.
4. The coordinator's process is stopped for two seconds: the others go on.
5. Two processes are killed: when that is noticed, how long recovery takes, the accuracy at the end.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from typing import Any

import torch
from torch import nn

from weft import zoo
from weft.data import batch_indices, load
from weft.draws import TRAINING
from weft.fleet.faults import Faults
from weft.fleet.radio import fleet_delivery, radio_fleet
from weft.graph.capture.module import capture, capture_loss, state_of
from weft.graph.optimizers.optimizer import Optimizer
from weft.graph.split.masked import Perceptron
from weft.planning.decide import decide
from weft.planning.task import make_task
from weft.plans.delivery import routes_of
from weft.plans.derive import derive_profile
from weft.plans.plan import Plan
from weft.reference.lossy import BATCH, LossyRadio, evaluate
from weft.runtime.emulate.local import LocalFleet
from weft.runtime.run.injector import Injector
from weft.runtime.run.jobs import Settings
from weft.runtime.run.measured import total_counts
from weft.runtime.run.recovery.clone import Clone
from weft.runtime.run.run import Run
from weft.strategies.stitchnet.swarm import spread_of
from weft.strategies.stitchnet.topology import EXPONENT, find_topology

DATA = load("mnist5k")
FLEET = radio_fleet(find_topology(), EXPONENT, mbps=100.0)
SIZES = (784, 64, 64, 64, 64, 10)
MAPPINGS = ("vertical", "stitchnet", "average-layers", "horizontal")


class Subject:
    """The perceptron in single or double precision, as the run and as the simulation see it."""

    def __init__(self, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        self.dtype, self.samples = dtype, BATCH
        self.module = zoo.build("mlp").to(dtype)
        self.x = DATA.train_x.to(dtype)
        graph = capture(self.module, self.x[:2], name="mlp")
        self.graph = capture_loss(graph, nn.CrossEntropyLoss(), DATA.train_y[:2])

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        rows = batch_indices(len(self.x), BATCH, step, 0)
        return self.x[rows], DATA.train_y[rows]

    def feed(self, step: int) -> tuple[dict[str, torch.Tensor], torch.Tensor | None]:
        x, y = self.batch(step)
        return {self.graph.inputs[0]: x}, y

    def plan(self, strategy: str, **options: Any) -> Plan:
        task = make_task(
            derive_profile(self.graph, FLEET), FLEET, batch=self.samples, graph=self.graph,
            options={"probes": 50, **options}, optimizer="adam",
        )  # fmt: skip
        return decide(strategy, task)

    def net(self, state: dict[str, torch.Tensor] | None = None) -> Perceptron:
        found = Perceptron(SIZES, dtype=self.dtype)
        state = state_of(self.module) if state is None else state
        with torch.no_grad():
            for k, (weight, bias) in enumerate(zip(found.weights, found.biases, strict=True), 1):
                weight.copy_(state[f"fc{k}.weight"])
                bias.copy_(state[f"fc{k}.bias"])
        return found

    def channel(self, plan: Plan) -> LossyRadio:
        assert plan.swarm is not None
        return LossyRadio(
            spread_of(plan), routes_of(plan), fleet_delivery(FLEET), seed=plan.swarm.seed,
            dtype=self.dtype,
        )  # fmt: skip

    def simulated(self, plan: Plan, steps: int) -> tuple[Perceptron, list[float]]:
        net, masks = self.net(), self.channel(plan).masks(TRAINING, 0, steps)
        losses = []
        for step in range(steps):
            x, y = self.batch(step)
            loss = net.step(x.flatten(1), y, masks.at(step))
            assert loss is not None
            losses.append(float(loss))
        return net, losses

    def accuracy(self, net: Perceptron, plan: Plan) -> float:
        """The mean of five tests, each with other losses."""
        tests = [evaluate(net, DATA, self.channel(plan), test) for test in range(1, 6)]
        return 100 * sum(tests) / len(tests)


class Ran:
    """A run's weights, losses and counts."""

    def __init__(
        self,
        local: LocalFleet,
        subject: Subject,
        plan: Plan,
        steps: int,
        script: Faults | None = None,
    ) -> None:
        settings = Settings(optimizer=Optimizer("adam", lr=1e-3), same_clock=True)
        run = Run(
            local.crew, plan, subject.graph, state_of(subject.module), settings, subject.feed,
            recovery=Clone(),
        )  # fmt: skip
        injector = Injector(script or Faults(), local)
        with run, injector:
            run.prepare()
            injector.watch(run)
            begin = time.monotonic()
            outcome = run.steps(0, steps)
            self.seconds = time.monotonic() - begin
            self.state, _ = run.collect()
            self.timeline, nodes = run.timeline()
        self.run, self.plan, self.losses = run, run.plan, outcome.losses
        self.nodes, self.faults = nodes, injector.injected
        self.counts: Counter[str] = total_counts(nodes)


def exact(local: LocalFleet) -> None:
    subject, steps = Subject(torch.float64), 5
    print("\nmapping           messages  packets  not heard   largest difference of a weight")
    for mapping in MAPPINGS:
        plan = subject.plan(mapping)
        ran = Ran(local, subject, plan, steps)
        net, _ = subject.simulated(plan, steps)
        apart = max(
            float((ran.state[f"fc{k}.{kind}"] - mine).abs().max())
            for kind, every in (("weight", net.weights), ("bias", net.biases))
            for k, mine in enumerate(every, 1)
        )
        counts = {key: ran.counts[key] / steps for key in ("messages", "packets", "unheard")}
        share = counts["unheard"] / counts["messages"]
        print(f"{mapping:16} {counts['messages']:9.1f} {counts['packets']:8.1f} {share:10.1%}"
              f"   {apart:.1e}", flush=True)  # fmt: skip


def learning(local: LocalFleet, subject: Subject, steps: int) -> None:
    plan = subject.plan("stitchnet")
    ran = Ran(local, subject, plan, steps)
    net, losses = subject.simulated(plan, steps)
    last = range(steps - 20, steps)
    real, simulated = (sum(found[s] for s in last) / 20 for found in (ran.losses, losses))
    accuracy = subject.accuracy(subject.net(ran.state), plan), subject.accuracy(net, plan)
    print(f"\nMix-Mapped, {steps} minibatches of mnist5k: real {accuracy[0]:.2f}% (loss {real:.4f}), "
          f"simulated {accuracy[1]:.2f}% (loss {simulated:.4f})")  # fmt: skip
    cpu = sum(spans.total_cpu_s for spans in ran.nodes.values()) / steps
    print(f"  {1e3 * ran.timeline.step_s:.0f} ms a minibatch on this machine, {1e3 * cpu:.0f} ms of CPU "
          "time on all nine", flush=True)  # fmt: skip


def clocked(local: LocalFleet, subject: Subject, slot_ms: int, steps: int) -> None:
    plan = subject.plan("stitchnet", slot_ms=slot_ms)
    assert plan.predicted is not None
    ran = Ran(local, subject, plan, steps)
    routes = routes_of(plan)
    sent = routes.direct + routes.relayed > 0
    drawn = 1 - subject.channel(plan).heard(TRAINING, 0, steps)[:, sent].mean()
    heard = ran.counts["unheard"] / (ran.counts["heard"] + ran.counts["unheard"])
    print(f"\nslots of {slot_ms} ms: {1e3 * ran.timeline.step_s:.1f} ms a minibatch, "
          f"{1e3 * plan.predicted.seconds:.1f} ms predicted; {heard:.2%} not heard ({drawn:.2%} lost "
          f"by the radio); {ran.counts['late']} messages late, {ran.counts['left_out']} minibatches left out "
          f"by a device, of {steps * 9}", flush=True)  # fmt: skip


def cut_off(local: LocalFleet, subject: Subject, steps: int) -> None:
    plan = subject.plan("stitchnet", slot_ms=60)
    stop = Faults().silence(plan.source, step=5, for_s=2.0)
    ran = Ran(local, subject, plan, steps, stop)
    mine = ran.nodes[plan.source].counts.get("left_out", 0)
    others = ran.counts["left_out"] - mine
    print(f"\ncoordinator stopped for 2 s: it left out {mine} of {steps} minibatches, the eight others "
          f"{others} together; last loss {ran.losses[max(ran.losses)]:.3f} in minibatch "
          f"{max(ran.losses)}")  # fmt: skip
    print("  events:", ran.run.events, flush=True)


def killed(local: LocalFleet, subject: Subject, steps: int) -> None:
    plan = subject.plan("stitchnet", slot_ms=60)
    dying = [plan.decisions["horizontal"][0], plan.decisions["vertical"][0]]
    kill = Faults()
    for device in dying:
        kill = kill.kill(device, step=steps // 2)
    ran = Ran(local, subject, plan, steps, kill)
    lost = [event for event in ran.run.events if event["kind"] == "device_lost"]
    noticed = max(event["at_s"] for event in lost) - ran.faults[0].at_s
    accuracy = subject.accuracy(subject.net(ran.state), ran.plan)
    net, change = subject.net(), ran.run.events[-1]["step"]
    for used, begin, end in ((plan, 0, change), (ran.plan, change, steps)):
        masks = subject.channel(used).masks(TRAINING, begin, end - begin)
        for step in range(begin, end):
            x, y = subject.batch(step)
            net.step(x.flatten(1), y, masks.at(step - begin))
    print(f"\n{' and '.join(dying)} killed after {steps // 2} of {steps} minibatches: noticed after "
          f"{noticed:.2f} s; {accuracy:.2f}% at the end, {subject.accuracy(net, ran.plan):.2f}% "
          "simulated")  # fmt: skip
    print("  events:", ran.run.events)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    subject = Subject(torch.float32)
    with LocalFleet(FLEET.names) as local:
        local.crew.wait_for(local.names, 120.0)
        exact(local)
        learning(local, subject, steps)
        for slot_ms in (40, 100):
            clocked(local, subject, slot_ms, 30)
        cut_off(local, subject, 30)
        killed(local, subject, 2 * steps // 3)


if __name__ == "__main__":
    main()
