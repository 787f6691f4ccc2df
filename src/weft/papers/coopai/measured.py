"""CoopAI's plans in real runs: sliced inference, one process per device, through a gateway.

    for row in run_rows("alexnet"):
        print(row.title, row.predicted_s, row.measured_s)

The fleet is ten emulated Raspberry Pi 4 (13.6 GFLOPS) behind a gateway with 100 Mbps for all, or six unequal
devices. A small machine cannot be ten Pis. So everything is `SCALE` times slower, speeds and link, and the
times are divided by it. One device alone needs less of that (`ALONE`). Every answer is compared with the
whole network's answer, and the bytes on the wire with the plan's. The paper's gateway only relays, so
coopai+ gets gateway=off here: all strategies use the same devices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.fleet.fleet import Device, Fleet, Medium
from weft.papers.claims import Claim, Table
from weft.planning.decide import decide
from weft.planning.task import make_task
from weft.plans.plan import Plan
from weft.plans.profile import Profile
from weft.zoo.loading import load as load_model

if TYPE_CHECKING:
    from torch import Tensor, nn

    from weft.graph.network import Graph

PI_GFLOPS, MBPS, DEVICES = 13.6, 100.0, 10
EQUAL = (PI_GFLOPS,) * DEVICES
UNEQUAL = (13.6, 10.0, 10.0, 6.8, 6.8, 6.8)
SCALE = {"alexnet": 40, "vgg16": 12, "vgg19": 12, "yolov2": 12}
ALONE = 4  # one device alone runs so many times faster than the others of the network
BEYOND = 0.98  # a measured time must be below this share of the other to count as faster
ANSWERS = 3  # the first one warms up
LONG_S = 10.0  # if an answer takes so long, only one more is asked for
DEADLINE_S = 300.0

Ask = tuple[str, str, dict[str, str]]  # title, strategy, options
ROWS: tuple[Ask, ...] = (
    ("one device", "coopai", {"devices": "1"}),
    ("sls", "sls", {}),
    ("sls, overlapping", "sls", {"overlap": "on"}),
    ("coopai", "coopai", {}),
    ("coopai+", "coopai+", {"gateway": "off"}),
)
UNEQUAL_ROWS: tuple[Ask, ...] = (
    ("coopai", "coopai", {}),
    ("coopai+", "coopai+", {"gateway": "off"}),
)
STREAM_ROWS: tuple[Ask, ...] = (  # for batches of frames
    ("coopai, in flight", "coopai", {"micro_batches": "4", "in_flight": "4"}),
    (
        "coopai+, throughput",
        "coopai+",
        {"objective": "throughput", "gateway": "off", "frames": "cut"},
    ),
    ("coopai+, whole frames", "coopai+", {"objective": "throughput", "gateway": "off"}),
)
STREAM_FRAMES = 4


@dataclass(frozen=True)
class RealRow:
    """One plan that was really run: predicted and measured."""

    title: str
    devices: int
    rounds: int
    predicted_s: float  # of an answer; in a stream: of a frame
    measured_s: float
    planned_bytes: int
    wire_bytes: frozenset[int]  # the different sums of bytes: of each answer, or of each batch
    far: float  # largest difference from the whole network's answer, relative to its largest value

    @property
    def ratio(self) -> float:
        """Measured divided by predicted time."""
        return self.measured_s / self.predicted_s


def cell(scale: float = 1.0, gflops: Sequence[float] = EQUAL) -> Fleet:
    """A gateway and the devices behind it."""
    names = tuple(f"rpi{n}" for n in range(1, len(gflops) + 1))
    members = (Device(name, gflops=g / scale) for name, g in zip(names, gflops, strict=True))
    return Fleet(
        (Device("gw", tier="edge", gflops=PI_GFLOPS / scale, data=True), *members),
        medium=(Medium("wifi", "gw", names, MBPS / scale),),
    )


def run_rows(
    name: str, asks: Sequence[Ask] = ROWS, gflops: Sequence[float] = EQUAL, batch: int = 1
) -> Iterator[RealRow]:
    """Plan and really run a network of the zoo, one strategy after the other."""
    import torch

    from weft.graph.capture.module import capture
    from weft.plans.derive import derive_profile

    torch.manual_seed(0)
    model, example = load_model(name)
    assert isinstance(example, torch.Tensor)
    model.eval()
    x = torch.rand(batch, *example.shape[1:])
    graph = capture(model, x[:1], name=name)
    for title, strategy, options in asks:
        scale = SCALE.get(name, 16) / (ALONE if options.get("devices") == "1" else 1)
        fleet = cell(scale, gflops)
        profile = derive_profile(graph, fleet)  # as the paper counts; it also paces the nodes
        plan = plan_for(graph, profile, fleet, strategy, options, batch)
        yield run_really(model, x, plan, title, scale)


def plan_for(
    graph: Graph,
    profile: Profile,
    fleet: Fleet,
    strategy: str,
    options: dict[str, str],
    batch: int = 1,
) -> Plan:
    """The plan of a strategy for a network on a fleet."""
    task = make_task(profile, fleet, batch=batch, mode="infer", options=options, graph=graph)
    return decide(strategy, task)


def run_really(model: nn.Module, x: Tensor, plan: Plan, title: str, scale: float) -> RealRow:
    """Run a plan on emulated devices and measure it."""
    import torch

    from weft.adapt.serve import serve
    from weft.runtime.run.serve import latency_s

    assert plan.predicted is not None
    count = ANSWERS if plan.predicted.seconds < LONG_S else 2
    with serve(
        model, x, plan.fleet, plan=plan, local=True, deadline=DEADLINE_S, on_loss="stop"
    ) as net:
        answers = [net(x) for _ in range(count)]
        timeline, _ = net.timeline()
    with torch.no_grad():
        whole = model(x)
    far = max(float((a - whole).abs().max() / whole.abs().max()) for a in answers)
    sent: Counter[int] = Counter()
    for span in timeline.spans:
        if span.what == "transfer":
            sent[span.step] += span.bytes
    return RealRow(
        title,
        len(plan.devices) - 1,
        len(plan.rounds),
        plan.predicted.seconds / scale / plan.micro_batches,
        latency_s(timeline) / scale / plan.micro_batches,
        sum(plan.predicted.transfer_bytes.values()),
        frozenset(sent.values()),
        far,
    )


def measured_table(title: str, rows: Sequence[RealRow]) -> Table:
    """The table of real runs."""
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
    """What the paper only computes: the order of the methods, here from real runs."""
    by_title = {row.title: row.measured_s for row in rows}
    one, single, blocks = (by_title[key] for key in ("one device", "sls", "coopai"))
    key = title.lower()
    worst = max(rows, key=lambda row: abs(row.ratio - 1))
    same = all(row.wire_bytes == {row.planned_bytes} for row in rows)
    return [
        Claim(f"measured-{key}-order", f"{title}: MLS before SLS before one device, really run",
              "MLS < SLS < one", f"{blocks:.3f} < {single:.3f} < {one:.3f} s", "",
              blocks < BEYOND * single and single < BEYOND * one,
              "Each at least 2% faster than the next."),
        Claim(f"measured-{key}-prediction", f"{title}: measured over simulated, the worst row",
              "not measured", worst.ratio, "x", abs(worst.ratio - 1) <= 0.1,
              "The paper has no measurement; within 10% counts.", own=True),
        Claim(f"measured-{key}-bytes", f"{title}: bytes on the wire are the plan's", "not measured",
              "equal" if same else "not equal", "", same, own=True),
    ]  # fmt: skip
