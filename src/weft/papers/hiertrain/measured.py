"""HierTrain's plans in real runs: AlexNet, one process per machine, shaped links.

    run_really(3.0).measured_s

This is the paper's test of its model (Fig. 6). Samples are random, because an iteration takes as long as with
images. A cloud as fast as the paper's cannot be emulated on this machine. It then runs at this machine's
speed, and formula, simulator and measurement all use that speed.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.papers.hiertrain.runs import ALEXNET, BATCH, fleet_of

MEASURED_MBPS = (1.5, 2.0, 3.0, 5.0)
STEPS = 4
DEADLINE_S = 180.0  # an iteration takes 15 seconds; most of that is waiting for a link


@dataclass(frozen=True)
class RealRun:
    """One plan that was really run: seconds by formula, by simulator, and measured."""

    mbps: float
    formula_s: float
    simulated_s: float
    measured_s: float
    too_fast: tuple[str, ...]  # machines that ran at this machine's speed


def run_really(mbps: float) -> RealRun:
    """Run a few iterations of the plan that HierTrain makes for the emulated machines."""
    import torch
    from torch import nn

    from weft import zoo
    from weft.adapt.train import train

    assert ALEXNET.input_shape is not None
    assert ALEXNET.classes is not None
    random = torch.Generator().manual_seed(0)
    images = torch.rand(2 * BATCH, *ALEXNET.input_shape, generator=random)
    labels = torch.randint(ALEXNET.classes, (2 * BATCH,), generator=random)
    result = train(
        zoo.build(ALEXNET.model, ALEXNET.input_shape, ALEXNET.classes),
        (images, labels),
        nn.CrossEntropyLoss(),
        fleet=fleet_of(ALEXNET, mbps),
        strategy="hiertrain",
        options={"route": ALEXNET.route},
        steps=STEPS,
        batch=BATCH,
        local=True,
        deadline=DEADLINE_S,
        name=ALEXNET.model,
    )
    formula = float(result.plan.decisions["model_s"])
    return RealRun(mbps, formula, result.predicted_step_s, result.step_s, result.too_fast)
