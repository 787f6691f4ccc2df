"""Every statement of the paper's evaluation (section III) as a claim, and our own targets.

compute_claims(loads())
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import sqrt

from weft.papers.absent import absent_claim
from weft.papers.claims import Claim, number_claim
from weft.papers.decoupled.compute import Load
from weft.papers.decoupled.runs import Setting, Summary

FITTED_LOADS = ("cifar10", "cifar100", "kws")
POINT = 1.0  # one accuracy reaches another if it is at most so many points below
NOISE = 2.0  # a difference of more than so many standard errors is no noise
ENOUGH = 3  # seeds: with fewer the noise is not known, and nothing is claimed

NO_BOUND = (
    "Not judged: the decoupled network, trained in one place, is better than the dense one ({central:.1f}% "
    "against {dense:.1f}%, beyond noise). So few samples and rounds leave the dense network half trained: "
    "to reach it says nothing."
)
PER_EPOCH = (
    "Comes out when the peer's smaller share of the samples counts (load = FLOPs * k/C). Per sample the "
    "same peer computes only {sample:.2f}x less: the shared layers are {shared:.0%} of the dense network."
)
CIFAR100 = (
    " The paper prints no formula; with its 5 filters a class and the shared layers alone, no more than "
    "{most:.2f}x is possible for 20 of 100 classes."
)


def compute_claims(loads: Sequence[Load]) -> list[Claim]:
    """Claims on how much computing a peer needs."""
    claims = []
    for load in loads:
        if load.paper is None:
            continue
        share = load.shared_macs / load.dense_macs
        note = PER_EPOCH.format(sample=load.per_sample, shared=share)
        if load.id == "cifar100":
            note += CIFAR100.format(most=load.per_epoch / load.per_sample / share)
        what = f"{load.label}: less computation of a peer"
        # The paper does not print its filters. They were chosen here by these numbers.
        claims.append(
            number_claim(
                f"fig5-{load.id}", what, load.paper, load.per_epoch, note=note,
                fitted=load.id in FITTED_LOADS,
            )
        )  # fmt: skip
    return claims


def _error(one: Summary, other: Summary) -> float:
    """The standard error of the difference of two means, as if their seeds were different."""
    return sqrt(one.spread**2 / one.seeds + other.spread**2 / other.seeds)


def _judged(*rows: Summary) -> bool:
    """Whether there are enough seeds to tell a difference from noise."""
    return min(row.seeds for row in rows) >= ENOUGH


def _seeds(*rows: Summary) -> str:
    count = min(row.seeds for row in rows)
    if count >= ENOUGH:
        return f"Means of {count} seeds."
    return (
        f"Not judged: {count} seed{'s' if count > 1 else ''}, and {ENOUGH} are needed to see noise."
    )


def _reaches(ours: Summary, other: Summary) -> bool:
    """At most a point below; the noise of the difference counts against us."""
    return _judged(ours, other) and other.mean - ours.mean + _error(ours, other) <= POINT


def _beats(ours: Summary, other: Summary) -> bool:
    """Better by more than twice the noise of the difference."""
    return _judged(ours, other) and ours.mean - other.mean > NOISE * _error(ours, other)


def _against(ours: Summary, other: Summary) -> str:
    return f"{ours.mean:.1f}% against {other.mean:.1f}%"


def _reach_claim(
    id: str, what: str, ours: Summary, other: Summary, note: str = "", *, judged: bool = True
) -> Claim:
    words = (
        f"{_seeds(ours, other)} Reached: at most {POINT:g} point below, the standard error of the difference "
        f"({_error(ours, other):.1f}) counted against us. {note}"
    )
    return Claim(
        id,
        what,
        "reached",
        _against(ours, other),
        "",
        judged and _reaches(ours, other),
        words.strip(),
    )


def accuracy_claims(setting: Setting, summaries: Mapping[str, Summary]) -> list[Claim]:
    """Figure 3: 4N_5Cls on a ring against centralized training."""
    dense, central, ours = summaries["dense"], summaries["central"], summaries["4N_5Cls"]
    of = "" if setting.network == "cnn5" else f"-{setting.network}"
    size = f"{setting.rounds} rounds, {setting.train} samples, {setting.network}."
    bound = not _beats(central, dense)
    if not bound:
        size += " " + NO_BOUND.format(central=central.mean, dense=dense.mean)
    rise = ours.curve[-1] - ours.curve[0]
    claims = [
        _reach_claim(
            f"fig3-centralized{of}", f"{setting.title}: 4N_5Cls reaches centralized training", ours, dense,
            size, judged=bound,
        ),
        _reach_claim(
            f"fig3-centralized-decoupled{of}",
            f"{setting.title}: 4N_5Cls reaches centralized training of the decoupled network", ours, central,
            "The same network, trained in one place: what the distribution itself costs.",
        ),
        Claim(
            f"fig3-global{of}", f"{setting.title}: the whole network converges", "rises",
            f"{ours.curve[0]:.1f} to {ours.curve[-1]:.1f}%", "",
            _judged(ours) and rise > NOISE * _error(ours, ours),
            f"{_seeds(ours)} From the first round to the last, by more than twice the standard error.",
        ),
    ]  # fmt: skip
    if dense.local and ours.local:
        gap = dense.local[-1] - ours.local[-1]
        claims.append(
            Claim(
                f"fig3-local{of}", f"{setting.title}: sub-models are good on their own classes",
                "very good accuracy", f"{ours.local[-1]:.1f}% against {dense.local[-1]:.1f}%", "",
                bound and _judged(ours, dense) and gap + _error(ours, dense) <= POINT,
                f"{_seeds(ours, dense)} Very good: as good as the centralized dense network, which chooses "
                f"among the same classes on the same samples; at most {POINT:g} point below, noise counted "
                "against us.",
            )
        )  # fmt: skip
    if "equal-steps" in summaries:
        equal = summaries["equal-steps"]
        claims.append(
            _reach_claim(
                f"fig3-equal-steps{of}",
                f"{setting.title}: with as many steps a peer as centralized training (decoupled network)",
                equal, central,
                "Equal steps take all of the saving that fewer samples gave: a peer then computes only "
                f"{dense.work / equal.work:.2f}x less than dense centralized training.",
            )
        )  # fmt: skip
    if "fedavg" in summaries:
        claims.append(
            _better("fedavg", setting, ours, summaries["fedavg"], "FedAvg on the same class sets")
        )
    if "no-sync" in summaries:
        claims.append(
            _better("sync", setting, ours, summaries["no-sync"], "no exchange until the end")
        )
    return claims


def _better(id: str, setting: Setting, ours: Summary, other: Summary, words: str) -> Claim:
    return Claim(
        f"ours-{id}", f"{setting.title}: better than {words}", "better", _against(ours, other), "",
        _beats(ours, other),
        f"{_seeds(ours, other)} Better: by more than twice the standard error of the difference "
        f"({_error(ours, other):.1f}).", own=True,
    )  # fmt: skip


def overlap_claims(setting: Setting, rows: Sequence[Summary], dense: Summary) -> list[Claim]:
    """Figure 4; the rows are in the order of the overlap, the smallest first."""
    steps = [b.mean - a.mean >= -_error(a, b) for a, b in pairwise(rows)]
    falls = all(steps) and _beats(rows[-1], rows[0])
    text = ", ".join(f"{row.method.label.split(' (')[0]}: {row.mean:.1f}%" for row in rows)
    return [
        Claim(
            f"fig4-overlap-{setting.data}", f"{setting.title}: less overlap is worse", "falls", text,
            "", falls,
            f"{_seeds(*rows)} Falls: no overlap beats a larger one by more than the standard error, and the "
            f"largest beats the smallest by more than twice it ({_error(rows[-1], rows[0]):.1f}).",
        ),
        _reach_claim(
            f"fig4-largest-{setting.data}",
            f"{setting.title}: the largest overlap reaches centralized training", rows[-1], dense,
        ),
    ]  # fmt: skip


def missing_claims(setting: Setting, why: str) -> list[Claim]:
    """The claims of Figure 4 for a data set that is not on this machine."""
    return [
        absent_claim(
            f"fig4-overlap-{setting.data}", f"{setting.title}: less overlap is worse", "falls", why
        ),
        absent_claim(
            f"fig4-largest-{setting.data}",
            f"{setting.title}: the largest overlap reaches centralized training", "reached", why,
        ),
    ]  # fmt: skip


def topology_claims(setting: Setting, ring: Summary, mesh: Summary) -> list[Claim]:
    """The claim about rings and meshes."""
    return [
        Claim(
            "fig2-mesh", f"{setting.title}: a mesh is the upper bound of topologies", "mesh best",
            f"mesh {mesh.mean:.1f}%, ring {ring.mean:.1f}%", "", _beats(mesh, ring),
            f"{_seeds(mesh, ring)} Best: better than the ring by more than twice the standard error of the "
            f"difference ({_error(mesh, ring):.1f}). In 4N_5Cls most common classes lie between ring "
            "neighbours, so a mesh adds little.",
        )
    ]  # fmt: skip


def plus_claims(
    setting: Setting, dense: Summary, plus: Summary, slow: Summary | None, barrier: float,
    third: Summary | None = None,
) -> list[Claim]:  # fmt: skip
    """Our own targets for decoupled+."""
    less = dense.work / plus.work
    claims = [
        Claim(
            "plus-accuracy", f"{setting.title}: decoupled+ near centralized dense training (our target)",
            "within 1 point", _against(plus, dense), "", _reaches(plus, dense),
            f"{_seeds(plus, dense)} Deviation over the seeds: {plus.spread:.1f} and {dense.spread:.1f} "
            f"points; the difference has a standard error of {_error(plus, dense):.1f}, counted against us.",
            own=True,
        ),
        Claim(
            "plus-compute", f"{setting.title}: decoupled+, less computation of the busiest peer (our target)",
            "at least 3x", f"{less:.2f}x", "", less >= 3,
            "Multiply-adds of all samples that the busiest peer computes in the whole training, and of "
            "putting the network together at its end.", own=True,
        ),
    ]  # fmt: skip
    if third is not None:
        claims.append(
            Claim(
                "plus-equal-compute",
                f"{setting.title}: decoupled+ better than dense training with as little computation",
                "better", _against(plus, third), "", _beats(plus, third),
                f"{_seeds(plus, third)} Dense centralized training with a third of its passes computes "
                f"{dense.work / third.work:.2f}x less, decoupled+'s busiest peer {less:.2f}x less.", own=True,
            )
        )  # fmt: skip
    if slow is not None:
        claims.append(
            Claim(
                "plus-slow", "one peer 10x slower: a round against the fast peers' (our target)",
                "at most 2x", f"{slow.round_s:.2f}x", "", slow.round_s <= 2,
                f"Simulated time; with a barrier {barrier:.1f}x. Accuracy then: {slow.mean:.1f}%.", own=True,
            )
        )  # fmt: skip
    return claims
