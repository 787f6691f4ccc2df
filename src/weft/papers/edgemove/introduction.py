"""The claims of EdgeMove's first sections (Figures 2 and 5, the speed-ups by task), and time to accuracy.

communication_claims()
"""

from __future__ import annotations

import statistics
from typing import NamedTuple

import numpy as np

from weft.fleet.city import CLOUD_RTT_S, CLOUD_SHARE, EDGE_RTT_S, FAR_LOSS, PEAK_UP
from weft.papers.claims import WITHIN, Claim, Table, number_claim
from weft.papers.edgemove.claims import LABELS, PAPER_SPEEDUPS, SPLIT, near_claim
from weft.papers.edgemove.runs import STEPS, WORKLOADS, Runs, Workload, workload_costs
from weft.papers.edgemove.trained import COUNTS, SEEDS, TARGET, Needs
from weft.papers.noise import Measured
from weft.strategies.edgemove.online.pipeline import draw_noise

MUCH_LESS = 0.8  # at most this share of the other's time counts as "much less"
AS_MANY = 0.10  # at most this share of minibatches more counts as "the same target accuracy"
CYCLES = (1, 5, 50, 500)  # minibatches of a rolling average (Figure 5)
PAPER_VARIATION = {5: 13.7, 500: 2.9}  # percent
TASKS = {  # section 1: smallest and largest speed-up, and the workloads
    "image": ((1.5, 2.1), ("vgg-cifar", "resnet-cinic")),
    "text": ((1.2, 2.0), ("vgg-agnews",)),
    "audio": ((1.2, 1.8), ("resnet-speech",)),
}


class Link(NamedTuple):
    """The link to a worker that serves one client, on an average day of the city."""

    up_bytes_per_s: float
    down_bytes_per_s: float
    rtt_s: float


# Inside a cell, the mean square distance of a walk is half the squared radius.
EDGE = Link(PEAK_UP * (1 - FAR_LOSS / 2), 2 * PEAK_UP * (1 - FAR_LOSS / 2), sum(EDGE_RTT_S) / 2)
CLOUD = Link(PEAK_UP * CLOUD_SHARE, 2 * PEAK_UP * CLOUD_SHARE, sum(CLOUD_RTT_S) / 2)


class Minibatch(NamedTuple):
    """Seconds of one minibatch, with one in flight."""

    computing_s: float
    communication_s: float

    @property
    def seconds(self) -> float:
        """Computing and communication together."""
        return self.computing_s + self.communication_s


def lowest_layer(load: Workload, link: Link | None) -> Minibatch:
    """Figure 2: the client trains the lowest layer, an idle worker the others. None: the client all."""
    costs = workload_costs(load)
    if link is None:
        return Minibatch(costs.alone_s, 0.0)
    crossing = costs.up_bytes[1] / link.up_bytes_per_s + costs.down_bytes[1] / link.down_bytes_per_s
    return Minibatch(float(costs.client_s[1] + costs.worker_s[1]), float(crossing) + link.rtt_s)


def communication_claims() -> list[Claim]:
    """Figure 2: the share of communication in the training time, with an idle worker."""
    cloud = [lowest_layer(load, CLOUD) for load in WORKLOADS]
    edge = [lowest_layer(load, EDGE) for load in WORKLOADS]
    share = statistics.fmean(one.communication_s / one.seconds for one in cloud)
    less = max(b.seconds / a.seconds for a, b in zip(cloud, edge, strict=True))
    return [
        number_claim(
            "fig2-share", "Device-Cloud: communication's share of the training time", 42.29,
            100 * share, "%",
            "One minibatch at a time. The paper names neither the four networks nor its data rate; with the "
            "one that gives Table 1 the lowest layer's output takes longer to cross than all layers to "
            "compute.",
        ),
        Claim(
            "fig2-edge", "Device-Edge takes at most 0.8 of Device-Cloud's time", "much less",
            f"at most {less:.2f} of it", "", less <= MUCH_LESS,
        ),
    ]  # fmt: skip


def communication_table() -> Table:
    """The numbers behind Figure 2."""
    rows = []
    for label, link in (("On-Device", None), ("Device-Cloud", CLOUD), ("Device-Edge", EDGE)):
        cells = [lowest_layer(load, link) for load in WORKLOADS]
        rows.append((
            label,
            *(f"{STEPS * c.seconds:.0f} s ({c.communication_s / c.seconds:.0%})" for c in cells),
        ))  # fmt: skip
    columns = ("scheme", *(load.title for load in WORKLOADS))
    return Table(
        f"Fig. 2: {STEPS:,} minibatches, one at a time (share of communication)",
        columns,
        tuple(rows),
    )


def variation(cycle: int, seed: int = 0) -> float:
    """Figure 5: standard deviation divided by mean of a worker's rolling average over `cycle` minibatches."""
    times = np.array(draw_noise(np.random.default_rng([seed, 6]), STEPS).worker)
    rolling = np.convolve(times, np.ones(cycle) / cycle, mode="valid")
    return float(rolling.std() / rolling.mean())


def variation_claims() -> list[Claim]:
    """Figure 5, section 4.1."""
    five, long = (100 * statistics.fmean(variation(c, s) for s in range(SEEDS)) for c in (5, 500))
    shorter = [variation(5, s) / variation(500, s) for s in range(SEEDS)]
    return [
        number_claim(
            "fig5-five", "Variation of a rolling average of 5 iterations", PAPER_VARIATION[5], five, "%",
            "The noise of a worker's minibatch was chosen for this: it is independent from minibatch to "
            "minibatch.",
        ),
        number_claim(
            "fig5-500", "Variation of a rolling average of 500 iterations", PAPER_VARIATION[500], long,
            "%",
            "With independent noise it falls with the root of the cycle. The paper's GPU also drifts "
            "slowly; in the city that is the servers' load, which is not in this number.",
        ),
        Claim(
            "fig5-stable", "500 iterations vary at most a quarter as much as 5", "stabilizes",
            f"1/{min(shorter):.1f} or less", "", min(shorter) >= 4,
            "By construction: the noise was chosen independent, so it falls with the root of the cycle.",
        ),
    ]  # fmt: skip


def task_claims(runs: Runs) -> list[Claim]:
    """Section 1: the speed-ups over the schemes that split, by task."""
    claims = []
    for task, ((low, high), loads) in TASKS.items():
        ratios = [ratio(runs, load, other) for load in loads for other in SPLIT[:2]]
        printed = [
            PAPER_SPEEDUPS[load][-1] / PAPER_SPEEDUPS[load][n] for load in loads for n in (0, 1)
        ]
        least, most = min(ratios), max(ratios)
        near = all(
            abs(ours.mean / paper - 1) + ours.error <= WITHIN
            for ours, paper in ((least, low), (most, high))
        )
        claims.append(Claim(
            f"intro-{task}", f"EdgeMove over the schemes that split, {task} classification",
            f"{low}x to {high}x", f"{least.mean:.2f}x to {most.mean:.2f}x", "", near,
            f"The paper's own Table 1 gives {min(printed):.2f}x to {max(printed):.2f}x.",
        ))  # fmt: skip
    return claims


def ratio(runs: Runs, load: str, other: str) -> Measured:
    """EdgeMove's speed divided by another scheme's; the error is a share."""
    gain = runs.gain(load, "edgemove", other)
    return Measured(1 + gain.mean, gain.error / (1 + gain.mean))


def accuracy_claims(runs: Runs, needs: Needs) -> list[Claim]:
    """Table 1's measure, the time to a target accuracy.

    It is the number of minibatches from real training times the seconds from the city. The schemes that
    split have two minibatches in flight, On-Device has one.
    """
    additional = Measured(*needs.more(2))
    claims = [
        Claim(
            "accuracy-minibatches",
            f"Two in flight need at most {AS_MANY:.0%} more minibatches to {TARGET:.0%} (LeNet-5, trained)",
            "to the same accuracy", str(additional), "", additional.below(AS_MANY),
            f"{len(needs.minibatches[1])} seeds; the client's layers are one update old. With four in "
            f"flight: {Measured(*needs.more(4))}.",
        )
    ]  # fmt: skip
    for load in WORKLOADS:
        speedup = runs.speedup(load.id, "edgemove") / (1 + additional.mean)
        error = runs.error(load.id, "edgemove") + additional.error
        claims.append(
            near_claim(
                f"accuracy-{load.id}", f"{load.title}: EdgeMove's time to accuracy over On-Device",
                PAPER_SPEEDUPS[load.id][-1], speedup, error,
                "Minibatches of LeNet-5 with the pipeline's staleness, seconds of this network.",
            )
        )  # fmt: skip
    least = min((ratio(runs, load.id, "on-device") for load in WORKLOADS), key=lambda one: one.mean)
    stale = Measured(least.mean / (1 + additional.mean) - 1, least.error + additional.error)
    claims.append(Claim(
        "accuracy-first", f"{LABELS['edgemove']} is at the target accuracy before On-Device, staleness paid",
        "on all four", f"at least {stale}", "", stale.above(0.0),
    ))  # fmt: skip
    return claims


def accuracy_table(needs: Needs) -> Table:
    """Minibatches to the target accuracy."""
    seeds = range(len(needs.minibatches[1]))
    rows = tuple(
        (f"{count} in flight", *(str(needs.minibatches[count][seed]) for seed in seeds))
        for count in COUNTS
    )
    columns = ("LeNet-5, 5,000 MNIST images", *(f"seed {seed}" for seed in seeds))
    return Table(f"Minibatches to {TARGET:.0%} of the test images, really trained", columns, rows)
