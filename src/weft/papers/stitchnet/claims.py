"""Every statement of StitchNet's evaluation (section V) as a claim, and our own targets for `stitchnet+`.

    all_claims(study, prr, overhead(6))

Accuracies are compared with the paper's numbers only on the paper's own data set. On another data set, the
paper's statements in words (better, similar, cannot learn) are still checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, pstdev, stdev

from weft.papers.absent import absent_claim
from weft.papers.claims import Claim
from weft.papers.stitchnet.study import LETTERS, LOSSY, SOME_LETTERS, Study
from weft.papers.stitchnet.tables import Overhead
from weft.strategies.stitchnet.topology import TOLERANCE, Figures

FAR = 20.0  # points: what counts as "far below", "very poor", "drastically"
ENOUGH = 3  # topologies; with fewer, no difference counts as more than chance
NOISE = 1.0  # points: topologies, weights and losses differ by about this from run to run
GAIN, HALF_GAIN = 1.5, 20.0  # points: our targets for stitchnet+
POINTS = 2.0  # an accuracy may differ by so much from the printed one

NOT_FASTER = (
    "Does not come out: Mix-Mapped and Random learn equally fast within the noise of topologies and seeds. "
    "What holds is equal accuracy for about 40% of the packets."
)
NOT_BETTER = (
    "Mix-Mapped is far better than Vertical and, within noise, as good as Random, not better; it needs "
    "about 40% of Random's packets."
)
SHORT = "So close only after as many steps as the paper trains; shorter runs differ by more."
CLONING_HURTS = (
    "The first devices to go are weakly connected: their neurons learned little, the others learned to do "
    "without them. Cloned to well-connected devices they are suddenly heard, which costs accuracy. "
    "stitchnet+ spreads the network anew instead."
)
ONE_LEFT = (
    "One worker then holds whatever was cloned to it, and the answer hangs on its two links with the "
    "coordinator: topologies differ widely."
)
TOO_FEW = (
    f"Not decided: {{count}} of the at least {ENOUGH} topologies that tell a difference from chance. The "
    "full run (without --quick) decides."
)
OTHER_SETTING = (
    "Not decided: few topologies, short training and other data than the full run's make the gain look "
    "larger than it is."
)
AIR = (
    "Unicast: a packet for every receiver. Broadcast: one transmission serves all that hear it, and a "
    "relay's repetition too."
)
MEAN_OF = (
    "Fitted: the radio model's parameters were chosen, and the topologies searched, so that these five "
    "figures come out. Mean over the topologies; what a device keeps for itself counts as delivered."
)


def all_claims(study: Study, prr: Sequence[Figures], costs: Overhead) -> tuple[Claim, ...]:
    """All claims of the paper."""
    claims = [
        *prr_claims(prr),
        *partition_claims(study),
        *learning_claims(study),
        *path_claims(study),
        *failure_claims(study),
        *overhead_claims(study, costs),
        *plus_claims(study),
    ]
    return tuple(claims)


def prr_claims(prr: Sequence[Figures]) -> list[Claim]:
    """The claims about how many packets arrive."""
    paper = Figures()
    names = {
        "all_links": "PRR of all 72 links at exponent 3.9",
        "direct": "PRR of direct messages at 3.9 (Fig. 13)",
        "subpath": "PRR of messages by subpath at 3.9 (Fig. 13)",
        "coordinator_low": "PRR between communicating devices at 3.5 (Fig. 8)",
        "coordinator_high": "PRR between communicating devices at 4.0 (Fig. 8)",
    }
    claims = []
    for name, what in names.items():
        ours = sum(getattr(one, name) for one in prr) / len(prr)
        theirs = getattr(paper, name)
        near = abs(ours - theirs) <= TOLERANCE
        id = f"prr-{name.replace('_', '-')}"
        claims.append(Claim(id, what, theirs, ours, "", near, MEAN_OF, fitted=True))
    return claims


def partition_claims(study: Study) -> list[Claim]:
    """The claims of Figures 7 to 10: partitions and mappings."""
    mix, random = study.mean("mix"), study.mean("random")
    vertical = study.mean("vertical")
    share = study.packets("mix") / study.packets("horizontal")
    air = study.broadcasts("mix") / study.broadcasts("horizontal")
    all_of_them = study.finals("vertical")
    placement = (
        f"It hangs on which devices share a layer: {min(all_of_them):.0f} to {max(all_of_them):.0f}% by "
        "topology."
    )
    rival = max(("random mapping", "reverse mapping"), key=study.mean)
    claims = [
        accuracy("fig8-mix", "Mix-Mapped at epoch 20, exponent 3.9", 85.76, study, "mix"),
        accuracy("fig7-vertical", "Vertical", 33.0, study, "vertical", 10.0,
                 placement),
        compare("fig7-vertical-poor", f"Vertical is far below Mix-Mapped ({FAR:g} points or more)", vertical,
                mix, vertical < mix - FAR, f"Far: {FAR:g} points or more. {placement}"),
        compare("fig7-random", f"Random is as accurate as Horizontal (within {2 * NOISE:g} points)", random,
                study.mean("horizontal"), abs(random - study.mean("horizontal")) < 2 * NOISE),
        Claim("fig7-cost", "Mix-Mapped's packets beside Horizontal's, as unicast", "fewer", share, "x",
              share < 1, AIR),
        Claim("fig7-cost-broadcast", "Mix-Mapped's packets beside Horizontal's, as broadcast", "fewer", air,
              "x", air < 1, AIR),
        Claim(
            "fig7-average", "Mix-Mapped beside 2.5 layers on average: packets as unicast (broadcast)",
            "fewer", f"{study.packets('mix'):.0f} ({study.broadcasts('mix'):.0f}) and "
            f"{study.packets('average'):.0f} ({study.broadcasts('average'):.0f})", "",
            study.packets("mix") < study.packets("average"), AIR,
        ),
        above("fig7-average-accuracy", "Mix-Mapped is more accurate than 2.5 layers on average", study, "mix",
              "average", "Equal within noise at a similar cost, in this simulation."),
        above("fig10-mapping", f"good devices horizontal is better than the better of the other two mappings "
              f"({rival})", study, "mix", rival),
    ]  # fmt: skip
    return [claim for claim in claims if claim is not None]


def learning_claims(study: Study) -> list[Claim]:
    """The claims of Figures 8, 9 and 15: which partition learns faster."""
    first = {n: study.curve(n)[0] for n in ("mix", "random")}
    last = study.mean("mix") - study.mean("random")
    recovered = {n: study.curve(n) for n in ("worse mix", "worse random")}
    gap = recovered["worse mix"][-1] - recovered["worse random"][-1]
    return [
        compare("fig8-epoch1", f"Mix-Mapped learns faster than Random (epoch 1: more than {NOISE:g} point)",
                first["mix"], first["random"], first["mix"] > first["random"] + NOISE, NOT_FASTER),
        Claim("fig8-epoch20", f"at epoch 20 Mix-Mapped is within {1.5 * NOISE:g} points of Random", "similar",
              f"{last:+.1f} points", "", abs(last) <= 1.5 * NOISE, "" if abs(last) <= 1.5 * NOISE else SHORT),
        above("fig9-better", "Mix-Mapped works better than Random", study, "mix", "random", NOT_BETTER),
        Claim("fig15-recovers", "Mix-Mapped recovers faster than Random when the radio gets worse "
              f"(more than {NOISE:g} point above it at the end)", "faster",
              f"{gap:+.1f} points", "", gap > NOISE,
              "" if gap > NOISE else NOT_FASTER),
    ]  # fmt: skip


def path_claims(study: Study) -> list[Claim]:
    """The claims of Figures 11, 12 and 14: coordinator, partial updates, paths."""
    none = study.mean("none")
    rival = max(("coordinator", "direct"), key=study.mean)
    own = study.mean("own")
    return [
        above("fig11-coordinator", "an elected coordinator is better than a random one", study, "mix",
              "random coordinator"),
        Claim("fig12-none", "without partial updates learning cannot happen", "cannot learn",
              none, "%", none < 15.0),
        compare("fig12-own", f"own values learn too ({FAR:g} points above no partial update)", own, none,
                own > none + FAR),
        above("fig14-subpath", f"subpath is better than the better of the other two ({rival})", study, "mix",
              rival),
    ]  # fmt: skip


def failure_claims(study: Study) -> list[Claim]:
    """The claims of Figure 16: devices that fail."""
    mix = {f: study.after_failures("mix", f"cloned {f}") for f in ("worst", "best")}
    random = {f: study.after_failures("random", f"cloned {f}") for f in ("worst", "best")}
    lost = study.after_failures("mix", "lost worst")
    ahead = sum(a > b for a, b in zip(mix["worst"][1:], random["worst"][1:], strict=True))
    gap = max(b - a for a, b in zip(mix["best"], random["best"], strict=True))
    counts = len(mix["worst"]) - 1
    return [
        Claim("fig16-one-left", f"one worker left: Mix-Mapped (within {POINTS:g} points)", 28.3,
              mix["worst"][-1], "%", abs(mix["worst"][-1] - 28.3) <= POINTS, ONE_LEFT),
        Claim("fig16-one-left-random", f"one worker left: Random (within {POINTS:g} points)", 10.17,
              random["worst"][-1], "%", abs(random["worst"][-1] - 10.17) <= POINTS, ONE_LEFT),
        Claim("fig16a", "worst connected first: Mix-Mapped above Random, however many failed", "everywhere",
              f"with {ahead} of {counts} numbers of failed devices", "", ahead == counts,
              "" if ahead == counts else ONE_LEFT),
        Claim("fig16b", "best connected first: Mix-Mapped at most so far below Random", 10.96, gap,
              "points", gap <= 10.96, "" if gap <= 10.96 else ONE_LEFT),
        Claim("fig16-cloning", "cloning the first lost device's neurons helps", "helps",
              f"{mix['worst'][1]:.1f} with, {lost[1]:.1f} without", "", mix["worst"][1] >= lost[1],
              CLONING_HURTS),
    ]  # fmt: skip


def overhead_claims(study: Study, costs: Overhead) -> list[Claim]:
    """The claims of Figures 17 and 18: overhead, data sets and widths."""
    drop = study.mean("mix", "devices 1") - study.mean("devices 1")
    grows = costs.packets[-1] > 0.9 * max(costs.packets) > costs.packets[1]
    claims: list[Claim | None] = [
        Claim("fig17-packets", "packets by number of devices", "grow",
              f"{costs.packets[1]:.0f} to {costs.packets[-1]:.0f}", "", grows),
        Claim("fig17-memory", "memory of a device falls with more devices", "falls",
              f"{costs.memory_kb[0]:.0f} to {costs.memory_kb[-1]:.0f} kB", "",
              costs.memory_kb[0] > costs.memory_kb[-1]),
    ]  # fmt: skip
    if study.setting.like_paper:
        claims += [
            Claim("fig17-drop", f"nine devices beside one (within {NOISE:g} point)", -2.24, drop, "points",
                  abs(drop + 2.24) <= NOISE, "A smaller loss of accuracy than the paper's."),
            accuracy("fig18-fashion", "width 128, Fashion-MNIST", 87.0, study, "fashion-mnist 128"),
            accuracy("fig18-mnist", "width 128, MNIST", 96.0, study, "mnist 128"),
            letters_claim(study),
        ]  # fmt: skip
    return [claim for claim in claims if claim is not None]


def letters_claim(study: Study) -> Claim | None:
    """The claim about EMNIST Letters; where its files are not there, their name."""
    id, what, paper = "fig18-letters", "width 128, EMNIST Letters", 85.0
    if not study.without_letters:
        return accuracy(id, what, paper, study, f"{LETTERS} 128")
    other = study.mean(f"{SOME_LETTERS} 128")
    sample = (
        f"A small sample of other letters gives {other:.1f}%, which says nothing about the claim."
    )
    return absent_claim(id, what, paper, study.without_letters, sample)


def plus_claims(study: Study) -> list[Claim]:
    """Our own targets for stitchnet+ on a bad radio."""
    mix, plus = f"mix {LOSSY}", f"plus {LOSSY}"
    gains = [b - a for a, b in zip(study.finals(mix), study.finals(plus), strict=True)]
    sent = study.packets(plus), study.packets(mix)
    over = (
        f"Deviation over {len(gains)} topologies {pstdev(gains):.1f}. No more packets as unicast; as "
        f"broadcast {study.broadcasts(plus):.0f} and {study.broadcasts(mix):.0f} (--set cost=broadcast plans "
        "by those)."
    )
    decided = study.setting.like_paper and len(gains) >= ENOUGH
    if not decided:
        over = f"{OTHER_SETTING} {over}"
    claims = [
        Claim("plus-accuracy", f"exponent {LOSSY}: stitchnet+ above Mix-Mapped, at no more packets (our "
              f"target); {sent[0]:.0f} and {sent[1]:.0f} packets", f"{GAIN:g} or more", mean(gains),
              "points", decided and mean(gains) >= GAIN and sent[0] <= sent[1], over),
    ]  # fmt: skip
    alone = study.mean("devices 1")
    for first in ("best", "worst"):
        kept = study.after_failures(mix, f"cloned {first}")
        ours = study.after_failures(plus, f"planned {first}")
        half = len(kept) // 2
        gain, room = ours[half] - kept[half], alone - kept[half]
        beyond = (
            f"Cannot be: Mix-Mapped still has {kept[half]:.1f}% and one device that loses nothing "
            f"{alone:.1f}%, so that no more than about {room:.1f} points can be gained. stitchnet+ has "
            f"{ours[half]:.1f}%."
        )
        short = f"{ours[half]:.1f}% beside {kept[half]:.1f}%; one device that loses nothing {alone:.1f}%."
        claims.append(
            Claim(f"plus-half-{first}", f"exponent {LOSSY}: stitchnet+ above Mix-Mapped with half of the "
                  f"workers lost, {first} connected first (our target)", f"{HALF_GAIN:g} or more", gain,
                  "points", decided and gain >= HALF_GAIN,
                  (beyond if room < HALF_GAIN else short) + ("" if decided else f" {OTHER_SETTING}"))
        )  # fmt: skip
    return claims


def accuracy(
    id: str,
    what: str,
    paper: float,
    study: Study,
    name: str,
    within: float = POINTS,
    note: str = "",
) -> Claim | None:
    """A claim with a printed accuracy; None if the data set is not the paper's."""
    if not study.setting.like_paper:
        return None
    ours = study.mean(name)
    spread = (
        f"Deviation over topologies {study.deviation(name):.1f}; within {within:g} points counts."
    )
    return Claim(
        id, what, paper, ours, "%", abs(ours - paper) <= within, f"{note} {spread}".strip()
    )


def beyond_noise(gains: Sequence[float]) -> bool:
    """Whether a mean difference over topologies is more than twice its standard error."""
    if len(gains) < ENOUGH:
        return False
    return bool(mean(gains) > 2 * stdev(gains) / len(gains) ** 0.5)


def above(id: str, what: str, study: Study, name: str, rival: str, note: str = "") -> Claim:
    """The claim that one variant is more accurate than another, beyond noise, on their common topologies."""
    gains = study.gains(name, rival)
    first, second = study.mean(name, rival), study.mean(rival, name)
    if len(gains) < ENOUGH:
        why = TOO_FEW.format(count=len(gains))
    else:
        error = stdev(gains) / len(gains) ** 0.5
        why = (
            f"{mean(gains):+.2f} points over {len(gains)} topologies, standard error {error:.2f}; more than "
            "twice the error counts."
        )
    ours = f"{first:.1f} and {second:.1f}%"
    return Claim(id, what, "yes", ours, "", beyond_noise(gains), f"{note} {why}".strip())


def compare(id: str, what: str, ours: float, other: float, holds: bool, note: str = "") -> Claim:
    """A claim about two accuracies. The note is used only if the claim does not hold."""
    reason = note or "Not beyond the noise of so few topologies."
    return Claim(
        id, what, "yes", f"{ours:.1f} and {other:.1f}%", "", holds, "" if holds else reason
    )
