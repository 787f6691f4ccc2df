"""HierTrain and its baselines, really run: step times on an emulated Pi, NUC and cloud machine.

AlexNet (64x64, 200 classes) on random images, 5 Mbps device-edge, 1.5 to 5 Mbps edge-cloud. One fleet
of node processes for all runs; every strategy runs in turn at each bandwidth. The cloud has 25 GFLOPS
(the paper's cannot be emulated on a small machine). Pipelined baselines get the best of 2, 4 and 8
micro-batches. Ratios are over All-Edge, serial, as in the paper.
"""

from __future__ import annotations

import sys

import msgspec
import torch
from torch import nn

from weft import zoo
from weft.fleet.fleet import Fleet
from weft.fleet.parse import parse_fleet
from weft.graph.capture.module import capture, capture_loss, state_of
from weft.graph.optimizers.optimizer import Optimizer
from weft.planning.decide import decide
from weft.planning.task import make_task
from weft.plans.plan import Plan, Shard
from weft.runtime.run.jobs import Settings
from weft.runtime.run.launch import Place, open_crew
from weft.runtime.run.pace import Emulation, emulation
from weft.runtime.run.run import Run

BATCH, STEPS = 16, 5
PIPELINED = {"micro_batches": "best"}
CODED = {**PIPELINED, "codec": "int8", "input_codec": "int8"}  # what hiertrain+ may do too
RUNS: list[tuple[str, str, dict[str, str]]] = [
    ("all-edge", "all-edge", {}),
    ("all-edge, pipelined", "all-edge", PIPELINED),
    ("all-cloud", "all-cloud", {}),
    ("all-cloud, pipelined", "all-cloud", PIPELINED),
    ("all-edge, pipelined, 8 bit", "all-edge", CODED),
    ("all-cloud, pipelined, 8 bit", "all-cloud", CODED),
    ("jointdnn", "jointdnn", {}),
    ("jointdnn+", "jointdnn+", {}),
    ("jalad", "jalad", {}),
    ("hiertrain", "hiertrain", {}),
    ("hiertrain+, no codecs", "hiertrain+", {"codecs": "none"}),
    ("hiertrain+", "hiertrain+", {"codecs": "all"}),
]


def fleet(edge_cloud: float) -> Fleet:
    return parse_fleet(
        f"""
        [[device]]
        name = "pi"
        gflops = 0.9
        data = true
        [[device]]
        name = "nuc"
        tier = "edge"
        gflops = 7.5
        [[device]]
        name = "cloud"
        tier = "cloud"
        gflops = 25
        [[link]]
        between = ["pi", "nuc"]
        mbps = 5
        [[link]]
        between = ["nuc", "cloud"]
        mbps = {edge_cloud}
        """
    )


class Bench:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = zoo.build("alexnet", (3, 64, 64), 200)
        self.x, self.y = torch.rand(BATCH, 3, 64, 64), torch.randint(0, 200, (BATCH,))
        graph = capture(self.model, self.x[:2], name="alexnet")
        self.graph = capture_loss(graph, nn.CrossEntropyLoss(), self.y[:2])
        self.state = state_of(self.model)
        self.rule = Optimizer("sgd", 0.001)
        self.here: Emulation = emulation(
            self.graph, self.state, fleet(5), batch=BATCH, training=True, optimizer=self.rule
        )

    def plan(self, mbps: float, strategy: str, options: dict[str, str]) -> Plan:
        if options.get("micro_batches") == "best":
            plans = [
                self.plan(mbps, strategy, {**options, "micro_batches": n}) for n in ("2", "4", "8")
            ]
            return min(plans, key=lambda p: p.predicted.seconds if p.predicted else 0.0)
        task = make_task(
            self.here.profile, fleet(mbps), batch=BATCH, options=options, graph=self.graph
        )
        return decide(strategy, task)


def main(bandwidths: list[float]) -> None:
    bench = Bench()
    settings = Settings(optimizer=bench.rule, deadline_s=60.0, paced=bench.here.paced)
    everyone = bench.plan(5, "hiertrain", {})
    feed = {bench.graph.inputs[0]: bench.x}
    print(f"this machine: {bench.here.gflops_here:.0f} GFLOPS")
    with open_crew(on_every_device(everyone), Place(local=True), settings) as (crew, fitted):
        for mbps in bandwidths:
            print(f"\nedge-cloud {mbps:g} Mbps, batch {BATCH}")
            print(f"{'':<28} {'predicted':>10} {'measured':>10} {'ratio':>6} {'over all-edge':>14}")
            steps: dict[str, float] = {}
            for label, strategy, options in RUNS:
                plan = bench.plan(mbps, strategy, options)
                with Run(
                    crew, plan, bench.graph, bench.state, fitted,
                    lambda _: (feed, bench.y),
                ) as run:  # fmt: skip
                    run.prepare()
                    run.steps(0, STEPS)
                    measured = run.timeline()[0].step_s
                assert plan.predicted is not None
                expected = plan.predicted.seconds
                steps[label] = measured
                told = f"{expected:>8.3f} s {measured:>8.3f} s {measured / expected:>6.3f}"
                print(f"{label:<28} {told} {steps['all-edge'] / measured:>13.2f}x", flush=True)
            plain = min(v for k, v in steps.items() if k.endswith("pipelined"))
            coded = min(v for k, v in steps.items() if k.endswith("8 bit"))
            print(f"over the best pipelined baseline: hiertrain+ {plain / steps['hiertrain+']:.2f}x, "
                  f"without codecs {plain / steps['hiertrain+, no codecs']:.2f}x; "
                  f"hiertrain+ over the best one in 8 bit {coded / steps['hiertrain+']:.2f}x")  # fmt: skip


def on_every_device(plan: Plan) -> Plan:
    """A plan that needs every device, so that all nodes are started once."""
    last = len(plan.profile.layers) - 1
    shards = [
        Shard("pi", (0, 0)),
        Shard("nuc", (1, 1)),
        Shard("cloud", (2, last)),
    ]
    return msgspec.structs.replace(plan, shards=tuple(shards))


if __name__ == "__main__":
    main([float(a) for a in sys.argv[1:]] or [1.5, 2.0, 3.0, 5.0])
