"""CoopAI's plans really run: sliced inference on one process per device, through a gateway.

    for row in run_rows("alexnet"):
        print(row.title, row.predicted_s, row.measured_s)

Ten emulated Raspberry Pi 4 (13.6 GFLOPS) behind a gateway with 100 Mbps for all. A small machine cannot be
ten Pis, so everything is `SCALE` times slower, speeds and link alike; times are divided by it again.
Every answer is compared with the whole network's, and the bytes on the wire with the plan's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft import api
from weft.fleet.fleet import Device, Fleet, Medium
from weft.papers.claims import Claim, Table
from weft.plan.plan import Plan
from weft.plan.profile import Profile

if TYPE_CHECKING:
    from torch import Tensor, nn

    from weft.graph.network import Graph

PI_GFLOPS, MBPS, DEVICES = 13.6, 100.0, 10
SCALE = {"alexnet": 12, "vgg16": 16, "vgg19": 16, "yolov2": 24}
FRAMES = 3  # the first one warms up
DEADLINE_S = 300.0

Ask = tuple[str, str, dict[str, str]]  # title, strategy, options
ROWS: tuple[Ask, ...] = (
    ("one device", "coopai", {"devices": "1"}),
    ("sls", "sls", {}),
    ("sls, overlapping", "sls", {"overlap": "on"}),
    ("coopai", "coopai", {}),
    ("coopai+", "coopai+", {}),
)


@dataclass(frozen=True)
class RealRow:
    title: str
    devices: int
    rounds: int
    predicted_s: float
    measured_s: float
    planned_bytes: int
    wire_bytes: frozenset[int]  # per frame
    far: float  # largest difference from the whole network's answer, relative to its largest value

    @property
    def ratio(self) -> float:
        return self.measured_s / self.predicted_s


def cell(scale: float = 1.0, gflops: Sequence[float] = (PI_GFLOPS,) * DEVICES) -> Fleet:
    """A gateway and the devices behind it."""
    names = tuple(f"rpi{n}" for n in range(1, len(gflops) + 1))
    members = (Device(name, gflops=g / scale) for name, g in zip(names, gflops, strict=True))
    return Fleet(
        (Device("gw", tier="edge", gflops=PI_GFLOPS / scale, data=True), *members),
        medium=(Medium("wifi", "gw", names, MBPS / scale),),
    )


def run_rows(
    name: str, asks: Sequence[Ask] = ROWS, fleet: Fleet | None = None
) -> Iterator[RealRow]:
    """Plans and really runs a network of the zoo, one way after the other."""
    import torch

    from weft.graph.capture import capture
    from weft.plan.derive import derive_profile

    torch.manual_seed(0)
    scale = SCALE.get(name, 16)
    fleet = cell(scale) if fleet is None else fleet
    model, example = api.load_model(name)
    assert isinstance(example, torch.Tensor)
    model.eval()
    x = torch.rand(1, *example.shape[1:])
    graph = capture(model, x, name=name)
    profile = derive_profile(graph, fleet)  # as the paper counts; nodes are paced by it
    for title, strategy, options in asks:
        plan = plan_for(graph, profile, fleet, strategy, options)
        yield run_really(model, x, plan, title, scale)


def plan_for(
    graph: Graph, profile: Profile, fleet: Fleet, strategy: str, options: dict[str, str]
) -> Plan:
    task = api.make_task(profile, fleet, batch=1, mode="infer", options=options, graph=graph)
    return api.decide(strategy, task)


def run_really(model: nn.Module, x: Tensor, plan: Plan, title: str, scale: float) -> RealRow:
    import torch

    from weft.runtime.serve import latency_s, serve

    with serve(model, x, plan.fleet, plan=plan, local=True, deadline=DEADLINE_S) as net:
        answers = net.stream([x] * FRAMES)
        timeline, _ = net.timeline()
    with torch.no_grad():
        whole = model(x)
    far = max(float((a - whole).abs().max() / whole.abs().max()) for a in answers)
    sent: Counter[int] = Counter()
    for span in timeline.spans:
        if span.what == "transfer":
            sent[span.step] += span.bytes
    assert plan.predicted is not None
    return RealRow(
        title,
        len(plan.devices) - 1,
        len(plan.rounds),
        plan.predicted.seconds / scale,
        latency_s(timeline) / scale,
        sum(plan.predicted.transfer_bytes.values()),
        frozenset(sent.values()),
        far,
    )


def measured_table(title: str, rows: Sequence[RealRow]) -> Table:
    columns = ("really run", "devices", "rounds", "simulated", "measured", "ratio", "saved", "MB")
    cells = tuple(
        (
            row.title,
            str(row.devices),
            str(row.rounds),
            f"{row.predicted_s:.3f} s",
            f"{row.measured_s:.3f} s",
            f"{row.ratio:.3f}",
            f"{1 - row.measured_s / rows[0].measured_s:.1%}",
            f"{row.planned_bytes / 1e6:.2f}",
        )
        for row in rows
    )
    return Table(f"{title}, really run at 1/{SCALE[title.lower()]} of the speed", columns, cells)


def measured_claims(title: str, rows: Sequence[RealRow]) -> list[Claim]:
    """What the paper only computes: that the order holds where the network is really run."""
    by_title = {row.title: row.measured_s for row in rows}
    one, single, blocks = (by_title[key] for key in ("one device", "sls", "coopai"))
    key = title.lower()
    worst = max(rows, key=lambda row: abs(row.ratio - 1))
    same = all(row.wire_bytes == {row.planned_bytes} for row in rows)
    return [
        Claim(f"measured-{key}-order", f"{title}: MLS before SLS before one device, really run",
              "MLS < SLS < one", f"{blocks:.3f} < {single:.3f} < {one:.3f} s", "",
              blocks < single < one),
        Claim(f"measured-{key}-prediction", f"{title}: measured over simulated, the worst row",
              "not measured", worst.ratio, "x", abs(worst.ratio - 1) <= 0.1,
              "The paper has no measurement; within 10% counts."),
        Claim(f"measured-{key}-bytes", f"{title}: bytes on the wire are the plan's", "not measured",
              "equal" if same else "not equal", "", same),
    ]  # fmt: skip
