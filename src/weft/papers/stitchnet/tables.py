"""The tables of StitchNet's reproduction, and the costs of distributing a network (Fig. 17).

overhead(6).packets
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median, pstdev

from weft.papers.claims import Table
from weft.papers.stitchnet.runs import HIDDEN, Job, scene
from weft.papers.stitchnet.study import LOSSY, Study
from weft.strategies.stitchnet.broadcast import broadcasts
from weft.strategies.stitchnet.paths import packets, slots
from weft.strategies.stitchnet.topology import Figures, find_topologies, find_topology

COUNTED = 20  # topologies on which packets are counted: that takes no training
SLOT_MS = 100.0  # one transmission in the paper's worst case
PAPER_ACCURACY = {  # Fashion-MNIST, epoch 20, as far as the paper prints it
    "mix": "85.76", "random": "similar", "vertical": "33", "none": "cannot learn",
    "random coordinator": "worse", "coordinator": "below subpath", "direct": "below subpath",
    "devices 1": "2.24 above Mix-Mapped",
}  # fmt: skip
ROWS = (
    ("mix", "Mix-Mapped"), ("random", "Random"), ("vertical", "Vertical"),
    ("horizontal", "Horizontal"), ("average", "2.5 layers on average"),
    ("random mapping", "Mix-Mapped, random mapping"),
    ("reverse mapping", "Mix-Mapped, reverse mapping"),
    ("random coordinator", "random coordinator"), ("coordinator", "coordinator path"),
    ("direct", "direct path"), ("own", "own values for lost ones"), ("none", "no partial update"),
    ("devices 1", "one device, nothing lost"), ("plus", "stitchnet+"),
    (f"mix {LOSSY}", f"Mix-Mapped, exponent {LOSSY}"),
    (f"plus {LOSSY}", f"stitchnet+, exponent {LOSSY}"),
)  # fmt: skip


@dataclass(frozen=True)
class Overhead:
    """The costs of a batch, by number of devices."""

    devices: tuple[int, ...]
    packets: tuple[float, ...]
    compute_ms: tuple[float, ...]  # of the busiest worker, measured on this machine
    network_ms: tuple[float, ...]  # every slot takes the paper's worst case
    memory_kb: tuple[float, ...]  # parameters of the busiest worker


def overhead(topologies: int) -> Overhead:
    """Packets and memory of Mix-Mapped by number of devices, and the time of a step on this machine."""
    counts = tuple(range(1, 10))
    places = [place.seed for place in find_topologies(topologies)]
    step_ms = 1e3 * plain_step_s()
    sent, compute, network, memory = [], [], [], []
    for devices in counts:
        scenes = [scene(Job(place=place, devices=devices)) for place in places]
        spread = scenes[0].spread
        widths = (784, *spread.widths)
        weights = [
            sum(len(spread.units(d, k)) * (widths[k] + 1) for k in range(HIDDEN))
            for d in spread.workers
        ]
        share = max(weights) / sum(weights)
        sent.append(0.0 if devices == 1 else mean(packets(one.routes) for one in scenes))
        compute.append(step_ms * share)
        network.append(0.0 if devices == 1 else slots(spread) * SLOT_MS)
        memory.append(4 * max(weights) / 1e3)
    return Overhead(counts, tuple(sent), tuple(compute), tuple(network), tuple(memory))


@dataclass(frozen=True)
class Sent:
    """What a batch sends by partition, one number for each topology."""

    packets: dict[str, tuple[int, ...]]  # as unicast
    broadcasts: dict[str, tuple[int, ...]]


def count_sent(topologies: int) -> Sent:
    """The packets of the partitions of Fig. 7, all on the same topologies."""
    places = [place.seed for place in find_topologies(topologies)]
    routes = {
        mapper: [scene(Job(place=place, mapper=mapper)).routes for place in places]
        for mapper in ("mix-mapped", "horizontal", "average-layers")
    }
    return Sent(
        {mapper: tuple(map(packets, each)) for mapper, each in routes.items()},
        {mapper: tuple(map(broadcasts, each)) for mapper, each in routes.items()},
    )


def plain_step_s() -> float:
    """CPU seconds of one training step of the 4 x 64 network on one device."""
    import torch

    from weft.graph.split.masked import Perceptron
    from weft.papers.stitchnet.runs import channel_of

    job = Job(place=find_topology().seed, devices=1)
    masks = channel_of(job, scene(job)).masks(0, 0, 1).at(0)
    net = Perceptron((784, *(64,) * HIDDEN, 10))
    x, y = torch.rand(100, 784), torch.randint(10, (100,))
    times = []
    for _ in range(30):
        begin = time.thread_time()
        net.step(x, y, masks)
        times.append(time.thread_time() - begin)
    return median(times)


def accuracy_table(study: Study) -> Table:
    """Accuracy of each variant, beside the paper's."""
    setting = study.setting
    rows = []
    for name, label in ROWS:
        paper = PAPER_ACCURACY.get(name, "") if setting.like_paper else ""
        rows.append(
            (label, paper, f"{study.mean(name):.1f}", f"{study.deviation(name):.1f}",
             f"{study.messages(name):.0f}", f"{study.packets(name):.0f}",
             f"{study.broadcasts(name):.0f}", str(len(study.of(name))))
        )  # fmt: skip
    return Table(
        f"Test accuracy in percent under loss: {setting.data}, 4 x 64, epoch {setting.epochs}, "
        "exponent 3.9 where no other is named",
        (
            "",
            "paper",
            "ours",
            "deviation",
            "messages",
            "packets (unicast)",
            "broadcasts",
            "topologies",
        ),
        tuple(rows),
    )


def prr_table(figures: Sequence[Figures]) -> Table:
    """How many packets arrive, beside the paper's numbers."""
    paper = Figures()
    names = {
        "all_links": "all 72 links, exponent 3.9", "direct": "direct, 3.9",
        "subpath": "subpath, 3.9", "coordinator_low": "coordinator, 3.5",
        "coordinator_high": "coordinator, 4.0",
    }  # fmt: skip
    rows = []
    for name, label in names.items():
        values = [getattr(one, name) for one in figures]
        away = max(abs(v - getattr(paper, name)) for v in values)
        rows.append((label, f"{getattr(paper, name):.2f}", f"{mean(values):.3f}", f"{away:.3f}"))
    columns = ("mean packet reception ratio", "paper", "ours", "furthest topology")
    return Table(
        f"The radio model on {len(figures)} topologies found by search", columns, tuple(rows)
    )


def failure_table(study: Study) -> Table:
    """Accuracy by number of lost devices."""
    rows = []
    for name, label, rules in (
        ("mix", "Mix-Mapped", ("cloned", "lost")), ("random", "Random", ("cloned", "lost")),
        (f"mix {LOSSY}", f"Mix-Mapped, {LOSSY}", ("cloned", "lost")),
        (f"plus {LOSSY}", f"stitchnet+, {LOSSY}", ("planned",)),
    ):  # fmt: skip
        for first in ("worst", "best"):
            for rule in rules:
                curve = study.after_failures(name, f"{rule} {first}")
                rows.append((f"{label}, {first} first, {rule}", *(f"{v:.1f}" for v in curve)))
    return Table(
        "Test accuracy in percent by number of devices lost",
        ("exponent 3.9 where no other is named", *(str(n) for n in range(8))),
        tuple(rows),
    )


def plus_table(study: Study) -> Table:
    """stitchnet+ and Mix-Mapped on each topology, at the lossier exponent."""
    rows = []
    mixes, pluses = study.of(f"mix {LOSSY}"), study.of(f"plus {LOSSY}")
    gains: list[tuple[float, float, float]] = []
    for index, (mix, plus) in enumerate(zip(mixes, pluses, strict=True)):
        half = [
            100 * (plus.failed[f"planned {first}"][4] - mix.failed[f"cloned {first}"][4])
            for first in ("worst", "best")
        ]
        gains.append((plus.final - mix.final, *half))  # type: ignore[arg-type]
        rows.append(
            (str(index + 1), f"{mix.final:.1f} ({mix.packets})", f"{plus.final:.1f} ({plus.packets})",
             *(f"{value:+.1f}" for value in gains[-1]))
        )  # fmt: skip
    columns = list(zip(*gains, strict=True))
    rows.append(("mean", "", "", *(f"{mean(c):+.1f}" for c in columns)))
    rows.append(("deviation", "", "", *(f"{pstdev(c):.1f}" for c in columns)))
    return Table(
        f"stitchnet+ beside Mix-Mapped at an exponent of {LOSSY}: accuracy (packets a batch) and gains",
        ("topology", "Mix-Mapped", "stitchnet+", "gain", "half lost, worst first",
         "half lost, best first"),
        tuple(rows),
    )  # fmt: skip
