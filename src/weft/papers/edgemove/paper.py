"""EdgeMove's evaluation beside ours: Table 1, Figures 2, 5, 6, 8, 9 and 10, and a map of a trajectory.

    weft reproduce edgemove

Times come from the simulated city. Minibatches to an accuracy come from a small network that is really
trained. `weft train` makes live runs. With --quick there are fewer trajectories.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from weft.papers.claims import Claim, Reproduction, Table, mark_fitted
from weft.papers.edgemove.claims import (
    FITTED,
    LABELS,
    SPLIT,
    convergence_claims,
    cut_claim,
    overhead_claims,
    speed_claims,
    table_claims,
)
from weft.papers.edgemove.figures import (
    draw_convergence,
    draw_cuts,
    draw_map,
    draw_overheads,
    draw_speeds,
)
from weft.papers.edgemove.first_figures import draw_communication, draw_variation
from weft.papers.edgemove.introduction import (
    accuracy_claims,
    accuracy_table,
    communication_claims,
    communication_table,
    task_claims,
    variation_claims,
)
from weft.papers.edgemove.runs import (
    BOUND,
    OUR_POLICIES,
    PAID,
    PAPER_POLICIES,
    SPEED,
    STEPS,
    WORKLOADS,
    Runs,
    day_of,
    run_city,
    the_city,
    workload_costs,
)
from weft.papers.edgemove.trained import Needs, train_all
from weft.papers.registry import Tell, paper
from weft.papers.tables import claims_markdown, table_markdown, write_texts
from weft.strategies.edgemove.online.journey import travel

TITLE = "EdgeMove: pipelined training between a moving device and nearby edge servers"
TRAJECTORIES, FEWER = 40, 20  # of the paper's schemes: they vary so much that a few say nothing
OURS, FEWER_OURS = 10, 3


@paper("edgemove", TITLE)
def edgemove(out: Path, quick: bool, tell: Tell) -> Reproduction:
    """Simulate all trajectories, train LeNet-5, draw the figures, and judge the claims."""
    tell("reading VGG-16 and ResNet-50", 0.0)
    for load in WORKLOADS:
        workload_costs(load)
    trajectories, ours = (FEWER, FEWER_OURS) if quick else (TRAJECTORIES, OURS)
    runs = run_city(the_city(), trajectories, ours, tell, end=0.6)
    needs = train_all(tell, begin=0.6, end=0.9)
    tell("drawing", 0.9)
    files = draw_figures(out, runs)
    claims = all_claims(runs, needs)
    tables = (speedup_table(runs), bound_table(runs), adaptation_table(runs), communication_table(),
              accuracy_table(needs))  # fmt: skip
    files += write_tables(out, claims, tables)
    tell("done", 1.0)
    return Reproduction("edgemove", claims, tuple(map(str, files)), tables)


def all_claims(runs: Runs, needs: Needs) -> tuple[Claim, ...]:
    """All claims of the paper."""
    claims = (
        *task_claims(runs),
        *communication_claims(),
        *variation_claims(),
        *table_claims(runs),
        *accuracy_claims(runs, needs),
        *convergence_claims(runs),
        *speed_claims(runs),
        *overhead_claims(runs),
        cut_claim(),
    )
    few = f"Of {runs.trajectories} trajectories, which spread: more would tell chance from cause."
    return tuple(
        claim if claim.reproduced or claim.note else msgspec.structs.replace(claim, note=few)
        for claim in mark_fitted(claims, FITTED)
    )


def draw_figures(out: Path, runs: Runs) -> list[Path]:
    """Draw the figures, and a map of the first trajectory for two policies."""
    files = [out / f"figure{number}.png" for number in (2, 5, 6, 8, 9, 10)]
    draw_communication(files[0])
    draw_variation(files[1])
    draw_convergence(files[2], runs)
    draw_speeds(files[3], runs)
    draw_overheads(files[4], runs)
    draw_cuts(files[5])
    load, costs = WORKLOADS[0], workload_costs(WORKLOADS[0])
    day = day_of(runs.city, 0, SPEED)
    policies = {**PAPER_POLICIES, **OUR_POLICIES}
    for name in ("edgemove", "edgemove+"):
        journey = travel(policies[name](costs, load, 0), costs, day, STEPS, 0)
        path = out / f"map_{name.replace('+', '_plus')}.png"
        draw_map(path, runs.city, day, journey, f"{name}, {load.title}")
        files.append(path)
    return files


def where(runs: Runs) -> str:
    """How many trajectories there are, and in which city."""
    place = "the EUA data's 125 servers" if runs.city.real else (
        "a generated city of 125 servers: set WEFT_DATA for the real one"
    )  # fmt: skip
    ours = len(runs.bounds[WORKLOADS[0].id, False])
    return (
        f"{runs.trajectories} trajectories of {STEPS:,} minibatches, edgemove+ and clairvoyants {ours} of "
        f"them, {place}"
    )


def speedup_table(runs: Runs) -> Table:
    """The speed-up of each policy over the device alone."""
    labels = {name: LABELS.get(name, name) for name in (*SPLIT, *OUR_POLICIES, PAID, BOUND)}
    rows = tuple(
        (label, *(f"{runs.speedup(load.id, name):.2f}x" for load in WORKLOADS))
        for name, label in labels.items()
    )
    columns = ("speedup over On-Device", *(load.title for load in WORKLOADS))
    return Table(f"Table 1 and ours ({where(runs)})", columns, rows)


def bound_table(runs: Runs) -> Table:
    """How much longer than the clairvoyant with as many in flight, whose moves are free / are paid."""
    rows = tuple(
        (
            LABELS.get(name, name),
            *(
                f"{runs.behind_bound(w.id, name):+.1%} / {runs.behind_bound(w.id, name, True):+.1%}"
                for w in WORKLOADS
            ),
        )
        for name in ("pipedream-e", "edgemove", "edgemove+ (2)")
    )
    columns = (
        "time over a clairvoyant's: free moves / paid",
        *(load.title for load in WORKLOADS),
    )
    return Table("Two in flight, beside the best server and cut at every moment", columns, rows)


def adaptation_table(runs: Runs) -> Table:
    """The numbers behind Figure 9, with our policies too."""
    rows = []
    for name in ("pipedream-e", "edgemove", *OUR_POLICIES):
        cells = [
            f"{runs.mean(w.id, name, 'cut_moves'):.1f} / "
            f"{runs.mean(w.id, name, 'worker_changes'):.1f} / "
            f"{runs.mean(w.id, name, 'paused_s'):.0f} s"
            for w in WORKLOADS
        ]
        rows.append((LABELS.get(name, name), *cells))
    columns = ("policy", *(load.title for load in WORKLOADS))
    return Table("Fig. 9: moved cuts / changed workers / time for it", columns, tuple(rows))


def write_tables(out: Path, claims: tuple[Claim, ...], tables: tuple[Table, ...]) -> list[Path]:
    """Write claims and tables as Markdown."""
    reproduction = Reproduction("edgemove", claims, (), tables)
    texts = {
        out / "claims.md": claims_markdown(reproduction),
        out / "tables.md": "\n".join(map(table_markdown, tables)),
    }
    return write_texts(texts)
