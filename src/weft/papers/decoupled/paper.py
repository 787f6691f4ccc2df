"""Decoupled training's evaluation beside ours: Figures 2 to 5 and all claims about them.

    weft reproduce decoupled            # subsets of CIFAR-10, Speech Commands and, if present, CIFAR-100
    weft reproduce decoupled --quick    # MNIST images that come with a package, one seed: no claims about
                                        # accuracies, because one seed does not show noise

The accuracy runs use a small network of five convolutions, AlexNet and VGG-16 on subsets, for a few rounds.
They show which method is better, not the paper's absolute numbers. A long run that was stopped continues
where it stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from weft.papers.absent import why_not_there
from weft.papers.claims import Claim, Reproduction, Table
from weft.papers.decoupled.claims import (
    accuracy_claims,
    compute_claims,
    missing_claims,
    overlap_claims,
    plus_claims,
    topology_claims,
)
from weft.papers.decoupled.compute import Load, loads
from weft.papers.decoupled.figures import draw_bars, draw_compute, draw_convergence
from weft.papers.decoupled.runs import (
    ALEXNET,
    CIFAR,
    CIFAR100,
    DIGITS,
    SPEECH,
    VGG,
    Setting,
    Summary,
    jobs,
    run_all,
    scoring_rows,
    summarise,
)
from weft.papers.registry import Tell, paper
from weft.papers.tables import claims_markdown, table_markdown, write_texts

TITLE = "Decoupled training: unequal peers, different classes, no server"
SEEDS = (0, 1, 2)
# Further seeds for the two rows of our own target: three seeds differ by more than the target's point.
MORE = (3, 4)
BARRIER = 10.0  # with one peer ten times slower, a round with a barrier takes so many fast rounds
METHODS_CIFAR = (
    "dense", "central", "equal-steps", "4N_5Cls", "split", "overlap-1", "overlap-2", "mesh", "gossip",
    "no-sync", "fedavg", "plus", "plus-time", "plus-slow", "dense-third",
)  # fmt: skip
METHODS_PAPER = ("dense", "central", "4N_5Cls")  # for the paper's own networks
METHODS_CIFAR100 = ("dense", "central", "overlap-10", "overlap-25")
METHODS_SPEECH = ("dense", "central", "overlap-1", "overlap-3", "overlap-6", "fedavg")
METHODS_QUICK = (
    "dense", "central", "4N_5Cls", "split", "overlap-1", "mesh", "no-sync", "fedavg", "plus", "plus-slow",
)  # fmt: skip


@paper("decoupled", TITLE)
def decoupled(out: Path, quick: bool, tell: Tell) -> Reproduction:
    """Run all methods (or those that earlier calls left out), draw the figures, and judge the claims."""
    plans: list[tuple[Setting, Sequence[str], Sequence[int]]]
    absent: str | None = None
    if quick:
        plans = [(DIGITS, METHODS_QUICK, SEEDS[:1])]
    else:
        plans = [
            (CIFAR, METHODS_CIFAR, SEEDS), (CIFAR, ("dense", "plus", "dense-third"), MORE),
            (SPEECH, METHODS_SPEECH, SEEDS), (ALEXNET, METHODS_PAPER, SEEDS), (VGG, METHODS_PAPER, SEEDS),
        ]  # fmt: skip
        absent = why_not_there(CIFAR100.data)
        if absent is None:
            plans.append((CIFAR100, METHODS_CIFAR100, SEEDS))
    wanted = [job for setting, names, seeds in plans for job in jobs(setting, names, seeds)]
    outcomes = run_all(wanted, out, tell, workers=1 if quick else 2)
    summaries = {setting: summarise(outcomes, setting) for setting, _, _ in plans}
    counted = loads()
    tell("drawing", 0.98)
    files = draw_figures(out, summaries, counted)
    claims = [*compute_claims(counted), *learning_claims(summaries)]
    if absent is not None:
        claims += missing_claims(CIFAR100, absent)
    tables = (
        compute_table(counted),
        scoring_table(plans[0][0]),
        *(accuracy_table(setting, rows) for setting, rows in summaries.items()),
    )
    files += write_tables(out, Reproduction("decoupled", tuple(claims), (), tables))
    tell("done", 1.0)
    return Reproduction("decoupled", tuple(claims), tuple(map(str, files)), tables)


def learning_claims(summaries: Mapping[Setting, Mapping[str, Summary]]) -> list[Claim]:
    """The claims about accuracy."""
    claims: list[Claim] = []
    for setting, rows in summaries.items():
        if "4N_5Cls" in rows:
            claims += accuracy_claims(setting, rows)
        overlaps = overlap_rows(rows)
        if len(overlaps) > 1:
            claims += overlap_claims(setting, overlaps, rows["dense"])
        if "mesh" in rows:
            claims += topology_claims(setting, rows["4N_5Cls"], rows["mesh"])
        if "plus" in rows:
            claims += plus_claims(
                setting,
                rows["dense"],
                rows["plus"],
                rows.get("plus-slow"),
                BARRIER,
                rows.get("dense-third"),
            )
    return claims


def overlap_rows(rows: Mapping[str, Summary]) -> list[Summary]:
    """Rows by overlap, the smallest first; 4N_5Cls has the largest overlap of the sets for ten classes."""
    names = [f"overlap-{n}" for n in (1, 2, 3, 6, 10, 25) if f"overlap-{n}" in rows]
    return [rows[name] for name in [*names, *(["4N_5Cls"] if "4N_5Cls" in rows else [])]]


def draw_figures(
    out: Path, summaries: Mapping[Setting, Mapping[str, Summary]], counted: Sequence[Load]
) -> list[Path]:
    """Draw the paper's figures with our numbers."""
    files = [out / name for name in ("figure3.png", "figure4.png", "topology.png", "figure5.png")]
    first, rows = next(iter(summaries.items()))
    draw_convergence(files[0], first, rows)
    overlaps = [
        (setting, [*overlap_rows(own), own["central"], own["dense"]])
        for setting, own in summaries.items()
        if setting.network == first.network
    ]
    draw_bars(files[1], "Fig. 4, overlap", overlaps)
    kinds = [rows[name] for name in ("no-sync", "4N_5Cls", "gossip", "mesh") if name in rows]
    draw_bars(files[2], "Topologies and exchange", [(first, kinds)])
    draw_compute(files[3], counted)
    return files


def compute_table(counted: Sequence[Load]) -> Table:
    """Multiply-adds of each configuration, beside the paper's."""
    rows = tuple(
        (
            load.label, f"{load.dense_macs / 1e6:.1f}", f"{load.shared_macs / 1e6:.1f}",
            f"{load.peer_macs / 1e6:.1f}", f"{load.per_sample:.2f}x", f"{load.per_epoch:.2f}x",
            f"{load.aggregation_share:.2e}", "-" if load.paper is None else f"{load.paper:g}x",
        )
        for load in counted
    )  # fmt: skip
    columns = (
        "VGG-16 at 32x32", "dense, M MACs", "shared", "peer", "less per sample", "less per epoch",
        "averaging / epoch", "paper",
    )  # fmt: skip
    return Table("Fig. 5: computation of one peer", columns, rows)


def scoring_table(setting: Setting) -> Table:
    """Accuracy before any training, by how filters are chosen, and with new statistics."""
    rows = tuple(
        (name, f"{before:.1f}%", f"{after:.1f}%") for name, before, after in scoring_rows(setting)
    )
    columns = ("filters chosen by", "decoupled", "batch norm estimated anew")
    return Table(f"Decoupling alone: {setting.title}, 10% of the filters a class", columns, rows)


def accuracy_table(setting: Setting, summaries: Mapping[str, Summary]) -> Table:
    """Accuracy of each method in one setting."""
    dense = summaries["dense"]
    rows = tuple(
        (
            summary.method.label,
            f"{summary.mean:.1f} ± {summary.spread:.1f}" if summary.seeds > 1 else f"{summary.mean:.1f}",
            str(summary.seeds),
            f"{dense.work / summary.work:.2f}x",
            f"{summary.sent:.2f}" if summary.sent else "-",
        )
        for summary in summaries.values()
    )  # fmt: skip
    title = f"{setting.title}: {setting.train} samples, {setting.rounds} rounds"
    columns = ("method", "accuracy, %", "seeds", "less computation", "MB sent by a peer")
    return Table(title, columns, rows)


def write_tables(out: Path, reproduction: Reproduction) -> list[Path]:
    """Write claims and tables as Markdown."""
    texts = {
        out / "claims.md": claims_markdown(reproduction),
        out / "tables.md": "\n".join(map(table_markdown, reproduction.tables)),
    }
    return write_texts(texts)
