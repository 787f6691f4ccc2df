"""Every statement of the paper's evaluation (section III) as a claim, and our own targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import sqrt

from weft.papers.claims import Claim, number_claim
from weft.papers.decoupled.compute import Load
from weft.papers.decoupled.runs import Setting, Summary

POINT = 1.0  # accuracies this close count as equal

PER_EPOCH = (
    "Comes out when the peer's smaller share of the samples counts (load = FLOPs * k/C). Per sample the "
    "same peer computes only {sample:.2f}x less: the shared layers are {shared:.0%} of the dense network."
)
CIFAR100 = (
    " The paper prints no formula; with its 5 filters a class and the shared layers alone, no more than "
    "{most:.2f}x is possible for 20 of 100 classes."
)


def compute_claims(found: Sequence[Load]) -> list[Claim]:
    """Claims on how much computing a peer needs."""
    claims = []
    for load in found:
        if load.paper is None:
            continue
        share = load.shared_macs / load.dense_macs
        note = PER_EPOCH.format(sample=load.per_sample, shared=share)
        if load.id == "cifar100":
            note += CIFAR100.format(most=load.per_epoch / load.per_sample / share)
        what = f"{load.label}: less computation of a peer"
        claims.append(number_claim(f"fig5-{load.id}", what, load.paper, load.per_epoch, note=note))
    return claims


def accuracy_claims(setting: Setting, found: Mapping[str, Summary]) -> list[Claim]:
    """Figure 3: 4N_5Cls on a ring against centralized training."""
    dense, central, ours = found["dense"], found["central"], found["4N_5Cls"]
    seeds = f"{ours.seeds} seed{'s' if ours.seeds > 1 else ''}"
    words = f"{ours.mean:.1f}% against {{:.1f}}%"
    gap, own_gap = dense.mean - ours.mean, central.mean - ours.mean
    claims = [
        Claim(
            "fig3-centralized", f"{setting.title}: 4N_5Cls reaches centralized training",
            "reached", words.format(dense.mean), "", gap <= POINT,
            f"Mean of {seeds}, {setting.rounds} rounds, {setting.train} samples. Within {POINT:g} point "
            "counts as reached.",
        ),
        Claim(
            "fig3-centralized-decoupled",
            f"{setting.title}: 4N_5Cls reaches centralized training of the decoupled network",
            "reached", words.format(central.mean), "", own_gap <= POINT,
            "The same network, trained in one place: what the distribution itself costs.",
        ),
        Claim(
            "fig3-global", f"{setting.title}: the whole network converges", "rises",
            f"{ours.curve[0]:.1f} to {ours.curve[-1]:.1f}%", "", ours.curve[-1] > ours.curve[0],
            "From the first round to the last.",
        ),
        Claim(
            "fig3-local", f"{setting.title}: sub-models are good on their own classes",
            "very good accuracy", f"{ours.local[-1]:.1f}%", "", ours.local[-1] > ours.mean,
            "Choosing among five classes is easier than among ten: not comparable with the whole network.",
        ),
    ]  # fmt: skip
    if "equal-steps" in found:
        equal = found["equal-steps"]
        claims.append(
            Claim(
                "fig3-equal-steps",
                f"{setting.title}: with as many steps a peer as centralized training (decoupled network)",
                "reached", f"{equal.mean:.1f}% against {central.mean:.1f}%", "",
                central.mean - equal.mean <= POINT,
                "Equal steps take all of the saving that fewer samples gave: a peer then computes only "
                f"{dense.work / equal.work:.2f}x less than dense centralized training.",
            )
        )  # fmt: skip
    if "fedavg" in found:
        claims.append(
            _better("fedavg", setting, ours, found["fedavg"], "FedAvg on the same class sets")
        )
    if "no-sync" in found:
        claims.append(_better("sync", setting, ours, found["no-sync"], "no exchange until the end"))
    return claims


def _better(id: str, setting: Setting, ours: Summary, other: Summary, words: str) -> Claim:
    return Claim(
        f"ours-{id}", f"{setting.title}: better than {words}", "better",
        f"{ours.mean:.1f}% against {other.mean:.1f}%", "", ours.mean > other.mean,
        "" if ours.mean > other.mean else "Not on this data with these few rounds.",
    )  # fmt: skip


def overlap_claims(setting: Setting, rows: Sequence[Summary], dense: Summary) -> list[Claim]:
    """Figure 4; rows from the smallest overlap to the largest."""
    means = [row.mean for row in rows]
    falls = all(a <= b for a, b in pairwise(means))
    text = ", ".join(f"{row.method.label.split(' (')[0]}: {row.mean:.1f}%" for row in rows)
    return [
        Claim(
            f"fig4-overlap-{setting.data}", f"{setting.title}: less overlap is worse", "falls", text,
            "", falls, "" if falls else "Not in this order at every overlap; seeds differ by "
            f"{max(row.spread for row in rows):.1f} points.",
        ),
        Claim(
            f"fig4-largest-{setting.data}",
            f"{setting.title}: the largest overlap reaches centralized training",
            "reached", f"{means[-1]:.1f}% against {dense.mean:.1f}%", "",
            dense.mean - means[-1] <= POINT,
            f"Within {POINT:g} point counts as reached.",
        ),
    ]  # fmt: skip


def topology_claims(setting: Setting, ring: Summary, mesh: Summary) -> list[Claim]:
    """Claims on rings and meshes."""
    holds = mesh.mean >= ring.mean - POINT
    return [
        Claim(
            "fig2-mesh", f"{setting.title}: a mesh is the upper bound of topologies", "mesh best",
            f"mesh {mesh.mean:.1f}%, ring {ring.mean:.1f}%", "", holds,
            "Differences below a point are within the noise of a few seeds. In 4N_5Cls most common "
            "classes lie between ring neighbours, so a mesh adds little.",
        )
    ]  # fmt: skip


def _error(one: Summary, other: Summary) -> float:
    """The standard error of the difference of two means, as if their seeds were not the same."""
    return sqrt(one.spread**2 / one.seeds + other.spread**2 / other.seeds)


def plus_claims(
    setting: Setting, dense: Summary, plus: Summary, slow: Summary | None, barrier: float
) -> list[Claim]:
    """Our own targets for decoupled+."""
    gap, less = dense.mean - plus.mean, dense.work / plus.work
    claims = [
        Claim(
            "plus-accuracy", f"{setting.title}: decoupled+ near centralized dense training (our target)",
            "within 1 point", f"{plus.mean:.1f}% against {dense.mean:.1f}%", "", gap <= POINT,
            f"Deviation over the seeds ({plus.seeds}): {plus.spread:.1f} and {dense.spread:.1f} points; the "
            f"difference has a standard error of {_error(plus, dense):.1f}.",
        ),
        Claim(
            "plus-compute", f"{setting.title}: decoupled+, less computation of the busiest peer (our target)",
            "at least 3x", f"{less:.2f}x", "", less >= 3,
            "Multiply-adds of all samples that the busiest peer computes in the whole training, and of "
            "putting the network together at its end.",
        ),
    ]  # fmt: skip
    if slow is not None:
        claims.append(
            Claim(
                "plus-slow", "one peer 10x slower: a round against the fast peers' (our target)",
                "at most 2x", f"{slow.round_s:.2f}x", "", slow.round_s <= 2,
                f"Simulated time; with a barrier {barrier:.1f}x. Accuracy then: {slow.mean:.1f}%.",
            )
        )  # fmt: skip
    return claims
