"""Every statement of HierTrain's evaluation (section VI, and Table II of section V) as a claim.

    alexnet_claims(run_sweep(ALEXNET, captured(ALEXNET)))

If two statements of the paper exclude each other, the note gives the short proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from weft.papers.claims import Claim, number_claim
from weft.papers.hiertrain.measured import RealRun
from weft.papers.hiertrain.runs import Planning, Sweep
from weft.plans.plan import Plan
from weft.report.words import seconds

MATCH = 0.10  # "highly match": the formula is within a tenth of the time on links
# "beats": by more than a hundredth. The formula has no noise, so a smaller difference is a tie.
CLEARLY = 1.01
# A large speedup is at least the first, an insignificant one at most the second.
LARGE, SMALL = 1.25, 1.10
LOW = (1.5, 2.0)  # Mbps, the paper's "low bandwidth"
PAPER_PLANNING = (0.52, 1.48, 3.0, 4.0, 5.3, 12.0)  # Table II, seconds

NO_LARGER_THAN_TWO = (
    "The paper's other statements exclude it: above 3 Mbps its best policy is training on the cloud, "
    "read literally HierTrain(3) = All-Cloud(3). All-Cloud's time at most doubles from 3 to 1.5 Mbps, and "
    "HierTrain's does not fall. Hence All-Cloud(1.5) <= 2 All-Cloud(3) = 2 HierTrain(3) "
    "<= 2 HierTrain(1.5): at most about 2x at any bandwidth of the figure."
)
NEVER_ALL_CLOUD = (
    "Excluded by the speedups of Fig. 8, which do come out: where All-Cloud = 6.9 HierTrain and "
    "All-Edge <= 1.7 HierTrain, All-Cloud >= 4.1 All-Edge; up to 5 Mbps it gains at most 5/1.5, so "
    "All-Cloud >= 1.2 All-Edge at every bandwidth, and no planner that knows the edge would choose it."
)
DEVICE_ALONE = (
    "With speeds that give Fig. 8's ratios, one iteration on the device alone takes less time than "
    "sending its samples to the edge; both JointDNN may choose the device, JALAD may not. On slower machines "
    "it comes out, and Fig. 8's speedups do not: see the table of both settings."
)
CHOSEN = (
    "Fitted: the paper does not print its machines' effective speeds, and the ones here were chosen to come "
    "close to its figures. That one choice gives the whole figure says more than the number itself. The two "
    "networks are reproduced with different machine speeds (AlexNet 0.9 / 7.5 / 400 GFLOPS, LeNet-5 "
    "1 / 8 / 100), though the paper has one set of machines."
)
# Fitted beside the speedups of Figs. 7 and 8: AlexNet's machine speeds were chosen to give these too. Where
# JointDNN+ uses the edge follows from where it wins, where both JointDNN use the cloud from where it does not
# and the cloud is worker_o, and four cores over one from two cores over one.
FITTED = (
    "fig9-jointdnn-plus", "fig9-edge-used", "fig9-cloud", "fig9-jalad-low", "fig9-jalad-high", "fig11-cores",
    "fig11-1-to-2", "fig11-3-to-4", "fig11-cloud",
)  # fmt: skip
PLANNED_HERE = (
    "CPU time on this machine; it holds where planning takes no longer than in the paper. The paper "
    "rounds a linear program's answer, ours is the exact optimum."
)


def whole_claims(
    figure: str,
    title: str,
    sweep: Sweep,
    best: tuple[float, float],
    cloud_note: str = CHOSEN,
    best_note: str = "",
) -> list[Claim]:
    """Figures 7 and 8: HierTrain beside All-Edge and All-Cloud. `best` are the paper's speedups over them."""
    edge, cloud = sweep.seconds["all-edge"], sweep.seconds["all-cloud"]
    over_edge, over_cloud = sweep.speedups("all-edge"), sweep.speedups("all-cloud")
    wins = [min(pair) > CLEARLY for pair in zip(over_edge, over_cloud, strict=True)]
    return [
        Claim(
            f"{figure}-all-cloud", f"{title}: All-Cloud's time with more bandwidth",
            "falls", f"{seconds(cloud[0])} to {seconds(cloud[-1])}", "",
            all(a > b for a, b in pairwise(cloud)),
        ),
        Claim(
            f"{figure}-all-edge", f"{title}: All-Edge's time with more bandwidth",
            "unchanged", f"{seconds(min(edge))} to {seconds(max(edge))}", "", min(edge) == max(edge),
        ),
        everywhere(
            f"{figure}-best", f"{title}: HierTrain beats All-Edge and All-Cloud", sweep, wins, best_note
        ),
        number_claim(
            f"{figure}-over-all-edge", f"{title}: most over All-Edge", best[0], max(over_edge),
            note=CHOSEN, fitted=True,
        ),
        number_claim(
            f"{figure}-over-all-cloud", f"{title}: most over All-Cloud", best[1], max(over_cloud),
            note=cloud_note, fitted=True,
        ),
    ]  # fmt: skip


def beside_all_device(sweep: Sweep) -> str:
    """What HierTrain gains over All-Device, which the paper does not show."""
    over = sweep.speedups("all-device")
    return (
        f"Over All-Device, which the paper does not show, it gains {min(over):.2f}x to {max(over):.2f}x: "
        "with these speeds the device alone is nearly as good."
    )


def alexnet_claims(sweep: Sweep) -> list[Claim]:
    """Figure 9: HierTrain beside the other methods that split."""
    plus = [r > CLEARLY for r in sweep.speedups("jointdnn", "jointdnn+")]
    edge = ["edge" in workers(plan) for plan in sweep.plans["jointdnn+"]]
    pairs = zip(sweep.plans["jointdnn"], sweep.plans["jointdnn+"], strict=True)
    alone = [workers(a) == workers(b) == {"cloud"} for a, b in pairs]
    over = sweep.speedups("jalad")
    high = [speed > max(LOW) for speed in sweep.mbps]
    least = min(ratio for ratio, up in zip(over, high, strict=True) if up)
    compressed = [1 / ratio > CLEARLY for ratio in over]
    return [
        *beats_jointdnn("fig9", "AlexNet", sweep),
        Claim(
            "fig9-jointdnn-plus", "AlexNet: JointDNN+ beats JointDNN", "up to 2 Mbps",
            where(sweep, plus), "", low_only(sweep, plus),
            "One step of 0.5 Mbps further than the paper says." if sum(plus) > len(LOW) else "",
        ),
        Claim(
            "fig9-edge-used", "AlexNet: JointDNN+ uses the edge server", "up to 2 Mbps",
            where(sweep, edge), "", low_only(sweep, edge),
            "One step of 0.5 Mbps further than the paper says." if sum(edge) > len(LOW) else "",
        ),
        Claim(
            "fig9-cloud", "AlexNet: both JointDNN train in the cloud", "at larger bandwidths",
            where(sweep, alone), "", alone[-1] and sorted(alone) == alone,
        ),
        Claim(
            "fig9-jalad-low", "AlexNet: JALAD beats HierTrain", "up to 2 Mbps",
            where(sweep, compressed), "", low_only(sweep, compressed), jalad_note(sweep),
        ),
        Claim(
            "fig9-jalad-high", "AlexNet: HierTrain over JALAD above 2 Mbps", "faster",
            max(over), "x", least > CLEARLY,
            f"The largest speedup; above 2 Mbps the smallest is {least:.2f}x.",
        ),
    ]  # fmt: skip


def jalad_note(sweep: Sweep) -> str:
    """How much JALAD gains at the low bandwidths."""
    pairs = zip(sweep.mbps, sweep.speedups("hiertrain", "jalad"), strict=True)
    gains = ", ".join(f"{gain:.3f}x at {m:g}" for m, gain in pairs if m in LOW)
    return f"{gains} Mbps. It counts where it is more than {CLEARLY:g}x."


def lenet_claims(sweep: Sweep) -> list[Claim]:
    """Figure 10: the same methods on LeNet-5."""
    plus = [r > CLEARLY for r in sweep.speedups("jointdnn", "jointdnn+")]
    ratios = sweep.speedups("jalad", "jointdnn+")
    same = [abs(ratio - 1) < 0.01 for ratio in ratios]
    both = zip(sweep.plans["jalad"], sweep.plans["jointdnn+"], strict=True)
    chosen = [(workers(a), workers(b)) for a, b in both]
    as_edge = [pair == ({"edge"}, {"edge"}) for pair in chosen]
    as_cloud = [pair == ({"cloud"}, {"cloud"}) for pair in chosen]
    return [
        *beats_jointdnn("fig10", "LeNet-5", sweep),
        Claim(
            "fig10-jointdnn-plus", "LeNet-5: JointDNN+ beats JointDNN", "up to 2 Mbps",
            where(sweep, plus), "", low_only(sweep, plus), DEVICE_ALONE,
        ),
        Claim(
            "fig10-overlap", "LeNet-5: JALAD and JointDNN+ take the same time",
            "everywhere", where(sweep, same), "", all(same), DEVICE_ALONE,
        ),
        Claim(
            "fig10-all-edge", "LeNet-5: both are All-Edge", "at low bandwidths",
            where(sweep, as_edge), "", as_edge[0], DEVICE_ALONE,
        ),
        Claim(
            "fig10-all-cloud", "LeNet-5: both are All-Cloud", "at high bandwidths",
            where(sweep, as_cloud), "", as_cloud[-1], NEVER_ALL_CLOUD,
        ),
    ]  # fmt: skip


def beats_jointdnn(figure: str, title: str, sweep: Sweep) -> list[Claim]:
    """Claims that HierTrain is faster than JointDNN."""
    claims: list[Claim] = []
    for name, label in (("jointdnn", "JointDNN"), ("jointdnn+", "JointDNN+")):
        over = sweep.speedups(name)
        wins = [r > CLEARLY for r in over]
        note = (
            f"{min(over):.2f}x to {max(over):.2f}x. It counts where it is more than {CLEARLY:g}x."
        )
        what = f"{title}: HierTrain beats {label}"
        claims.append(everywhere(f"{figure}-{name}", what, sweep, wins, note))
    return claims


def core_claims(sweeps: dict[int, Sweep]) -> list[Claim]:
    """Figure 11: more cores at the edge server."""
    by_cores = {cores: sweep.seconds["hiertrain"] for cores, sweep in sweeps.items()}
    mbps = sweeps[1].mbps
    low = {cores: times[0] for cores, times in by_cores.items()}
    gains = {m: a / b for m, a, b in zip(mbps, by_cores[1], by_cores[4], strict=True) if m > 3}
    on_cloud = [plan.decisions["roles"]["o"] == "cloud" for plan in sweeps[1].plans["hiertrain"]]
    large, small = f"Large: {LARGE:g}x or more.", f"Insignificant: {SMALL:g}x or less."
    listed = ", ".join(f"{ratio:.2f}x at {m:g}" for m, ratio in gains.items())
    return [
        Claim(
            "fig11-cores", "1.5 Mbps: four edge cores over one", "faster", low[1] / low[4], "x",
            low[1] / low[4] >= LARGE,
        ),
        Claim(
            "fig11-1-to-2", "1.5 Mbps: two edge cores over one", "large", low[1] / low[2], "x",
            low[1] / low[2] >= LARGE, large,
        ),
        Claim(
            "fig11-3-to-4", "1.5 Mbps: four edge cores over three", "insignificant",
            low[3] / low[4], "x", low[3] / low[4] <= SMALL, small,
        ),
        Claim(
            "fig11-above-3", "above 3 Mbps: four edge cores over one, at most", "no influence",
            max(gains.values()), "x", max(gains.values()) <= SMALL,
            f"{listed} Mbps. {small}",
        ),
        Claim(
            "fig11-cloud", "HierTrain trains on the cloud (it is worker_o)", "above 3 Mbps",
            where(sweeps[1], on_cloud), "",
            all(on for on, m in zip(on_cloud, mbps, strict=True) if m > 3), first_layers(sweeps[1]),
        ),
    ]  # fmt: skip


def first_layers(sweep: Sweep) -> str:
    """What the other machines compute at the largest bandwidth, beside the cloud."""
    decided = sweep.plans["hiertrain"][-1].decisions
    others = [
        f"the {decided['roles'][role]} runs the first {counted(decided[f'm_{role}'], 'layer')} "
        f"of {counted(decided[f'b_{role}'], 'sample')}"
        for role in ("s", "l")
        if decided[f"b_{role}"]
    ]
    if not others:
        return "Alone, as All-Cloud."
    return f"Not alone: at {sweep.mbps[-1]:g} Mbps {' and '.join(others)}."


def counted(number: int, noun: str) -> str:
    """A number and its noun, in the plural if needed."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def validity_claim(sweep: Sweep, links: Sequence[float]) -> Claim:
    """Figure 6: the formula's time against the same plans on links that are really shared."""
    ratios = [real / model for real, model in zip(links, sweep.seconds["hiertrain"], strict=True)]
    listed = ", ".join(f"{r:.2f} at {m:g}" for m, r in zip(sweep.mbps, ratios, strict=True))
    return Claim(
        "fig6-match", "AlexNet: time on links over the formula's time", "highly match",
        spread(ratios), "", all(abs(ratio - 1) <= MATCH for ratio in ratios),
        f"By the simulator, for the same plan: {listed} Mbps. The formula puts barriers between "
        "stages, which makes it slower than links are, and gives flows that share a link the full "
        "rate each, which makes it faster.",
    )  # fmt: skip


def measured_claim(runs: Sequence[RealRun]) -> Claim:
    """Figure 6 with processes and shaped links. The note says how close our simulator is."""
    ratios = [run.measured_s / run.formula_s for run in runs]
    note = f"{listed(runs, ratios)} Mbps. Over our simulator's time: "
    note += f"{listed(runs, [run.measured_s / run.simulated_s for run in runs])}."
    slower = sorted({name for run in runs for name in run.too_fast})
    if slower:
        note += f" At this machine's speed in all of these: {', '.join(slower)}."
    return Claim(
        "fig6-measured", "AlexNet: measured over the formula's time", "highly match",
        spread(ratios), "", all(abs(ratio - 1) <= MATCH for ratio in ratios), note,
    )  # fmt: skip


def listed(runs: Sequence[RealRun], ratios: Sequence[float]) -> str:
    """The ratios of real runs, as text."""
    pairs = zip(runs, ratios, strict=True)
    return ", ".join(f"{ratio:.2f} at {run.mbps:g}" for run, ratio in pairs)


def planning_claims(planned: Sequence[Planning]) -> list[Claim]:
    """Table II. If our planner is faster than the paper's, the claim is reproduced."""
    claims = [
        Claim(
            f"table2-{row.title.lower()}", f"{row.title} ({row.layers} layers): time to plan",
            paper, row.cpu_s, "s", row.cpu_s <= paper, PLANNED_HERE,
        )
        for row, paper in zip(planned, PAPER_PLANNING, strict=True)
    ]  # fmt: skip
    share = max(row.cpu_s / row.step_s for row in planned)
    return [
        *claims,
        Claim(
            "table2-negligible", "planning beside training", "can be ignored",
            f"at most {share:.1%} of one iteration", "", share < 0.1,
            note="CPU time on this machine; it holds below 10%",
        ),
    ]  # fmt: skip


def spread(ratios: Sequence[float]) -> str:
    """The smallest and the largest ratio, as text."""
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def workers(plan: Plan) -> set[str]:
    """The devices that compute in a plan."""
    return {shard.device for shard in plan.shards}


def everywhere(id: str, what: str, sweep: Sweep, holds: list[bool], note: str = "") -> Claim:
    """A claim that holds if every entry of `holds` is true."""
    return Claim(id, what, "everywhere", where(sweep, holds), "", all(holds), note)


def where(sweep: Sweep, holds: Sequence[bool]) -> str:
    """`up to 2 Mbps`, `from 3 Mbps`, or the bandwidths one by one."""
    true_at = [m for m, true in zip(sweep.mbps, holds, strict=True) if true]
    if len(true_at) in (0, len(sweep.mbps)):
        return "everywhere" if true_at else "nowhere"
    if tuple(true_at) == sweep.mbps[: len(true_at)]:
        return f"up to {true_at[-1]:g} Mbps"
    if tuple(true_at) == sweep.mbps[-len(true_at) :]:
        return f"from {true_at[0]:g} Mbps"
    return f"at {', '.join(f'{m:g}' for m in true_at)} Mbps"


def low_only(sweep: Sweep, holds: Sequence[bool]) -> bool:
    """Whether something is true at the paper's low bandwidths and nowhere else."""
    return list(holds) == [m in LOW for m in sweep.mbps]
