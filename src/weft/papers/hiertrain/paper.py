"""HierTrain's evaluation beside ours: Figures 6 to 11, Table II, and all claims about them.

    weft reproduce hiertrain

The times are those of the paper's own cost model, minimised exactly. Settings that the paper does not print
are in `runs.py`. Without --quick the plans are also really run (`measured.py`).
"""

from __future__ import annotations

from pathlib import Path

from weft.papers.claims import Reproduction, Table, mark_fitted
from weft.papers.hiertrain.claims import (
    FITTED,
    NO_LARGER_THAN_TWO,
    PAPER_PLANNING,
    alexnet_claims,
    beside_all_device,
    core_claims,
    lenet_claims,
    measured_claim,
    planning_claims,
    validity_claim,
    whole_claims,
)
from weft.papers.hiertrain.figures import (
    LOOKS,
    draw_cores,
    draw_measured,
    draw_methods,
    draw_validity,
)
from weft.papers.hiertrain.measured import MEASURED_MBPS, RealRun, run_really
from weft.papers.hiertrain.runs import (
    ALEXNET,
    CORES,
    LENET,
    LENET_SLOWER,
    METHODS,
    PLANNED,
    SPLIT,
    WHOLE,
    Planning,
    Setting,
    Sweep,
    captured,
    run_sweep,
    time_planning,
)
from weft.papers.registry import Tell, paper
from weft.papers.tables import claims_markdown, said, table_markdown, write_texts
from weft.report.words import digits, seconds
from weft.simulate.price import price

TITLE = "HierTrain: hybrid parallelism over device, edge and cloud"
REPEATS = 15  # times that each planning is measured; a third of that when quick


@paper("hiertrain", TITLE)
def hiertrain(out: Path, quick: bool, tell: Tell) -> Reproduction:
    """Quick: formula and simulator. Else AlexNet is also really trained, at four bandwidths."""
    computed = 1.0 if quick else 0.05  # the share of the time before the real runs
    graphs = {}
    for index, setting in enumerate(PLANNED):
        tell(f"reading {setting.title}", computed * 0.6 * index / len(PLANNED))
        graphs[setting.model] = captured(setting)
    tell("planning", computed * 0.6)
    alexnet = run_sweep(ALEXNET, graphs["alexnet"])
    lenet = run_sweep(LENET, graphs["lenet5"])
    slower = run_sweep(LENET_SLOWER, graphs["lenet5"])
    cores = {n: run_sweep(ALEXNET, graphs["alexnet"], ("hiertrain",), cores=n) for n in CORES}
    links = [price(plan).seconds for plan in alexnet.plans["hiertrain"]]
    repeats = REPEATS // 3 if quick else REPEATS
    planned = [time_planning(setting, graphs[setting.model], repeats) for setting in PLANNED]
    tell("drawing", computed * 0.75)
    files = draw_figures(out, alexnet, lenet, cores, links)
    runs = [] if quick else measure(out / "figure6_measured.png", files, computed, tell)
    claims = (
        validity_claim(alexnet, links),
        *([measured_claim(runs)] if runs else []),
        *whole_claims("fig7", "AlexNet", alexnet, (2.3, 4.5), NO_LARGER_THAN_TWO),
        *whole_claims("fig8", "LeNet-5", lenet, (1.7, 6.9), best_note=beside_all_device(lenet)),
        *alexnet_claims(alexnet),
        *lenet_claims(lenet),
        *core_claims(cores),
        *planning_claims(planned),
    )
    rows = tuple(mark_fitted(claims, FITTED))
    tables = (
        planning_table(planned),
        sweep_table("Figs. 7 and 9", ALEXNET, alexnet),
        sweep_table("Figs. 8 and 10", LENET, lenet),
        sweep_table("Figs. 8 and 10 once more", LENET_SLOWER, slower),
        settings_table(lenet, slower),
        cores_table(cores),
    )
    files += write_tables(out, Reproduction("hiertrain", rows, (), tables))
    tell("done", 1.0)
    return Reproduction("hiertrain", rows, tuple(map(str, files)), tables)


def measure(picture: Path, files: list[Path], begin: float, tell: Tell) -> list[RealRun]:
    """Run AlexNet at each bandwidth, and add the picture to the files."""
    runs: list[RealRun] = []
    for index, mbps in enumerate(MEASURED_MBPS):
        tell(f"training at {mbps:g} Mbps", begin + (1 - begin) * index / len(MEASURED_MBPS))
        runs.append(run_really(mbps))
    draw_measured(picture, ALEXNET, runs)
    files.append(picture)
    return runs


def draw_figures(
    out: Path, alexnet: Sweep, lenet: Sweep, cores: dict[int, Sweep], links: list[float]
) -> list[Path]:
    """Draw the paper's figures with our numbers."""
    files = [out / f"figure{number}.png" for number in range(6, 12)]
    ours, split = METHODS[0], (METHODS[0], *SPLIT)
    draw_validity(files[0], ALEXNET, alexnet, links)
    draw_methods(files[1], "Fig. 7", ALEXNET, alexnet, ours, *WHOLE[:2])
    draw_methods(files[2], "Fig. 8", LENET, lenet, ours, *WHOLE)
    draw_methods(files[3], "Fig. 9", ALEXNET, alexnet, *split)
    draw_methods(files[4], "Fig. 10", LENET, lenet, *split)
    draw_cores(files[5], ALEXNET, cores)
    return files


def planning_table(planned: list[Planning]) -> Table:
    """The paper's CPLEX on an i7-6700 beside our exact planner on this machine."""
    rows = []
    for row, theirs in zip(planned, PAPER_PLANNING, strict=True):
        ours = seconds(row.cpu_s)
        rows.append(
            (row.title, str(row.layers), f"{theirs:g} s", ours, f"{theirs / row.cpu_s:.0f}x")
        )
    columns = ("network", "layers", "paper", "ours (CPU time)", "paper / ours")
    return Table("Table II: time to plan one network", columns, tuple(rows))


def sweep_table(figures: str, setting: Setting, sweep: Sweep) -> Table:
    """Seconds of each method over the bandwidth."""
    rows = tuple(
        (LOOKS[name].label, *(digits(value) for value in sweep.seconds[name])) for name in METHODS
    )
    return Table(
        f"{figures}: {setting.title}, seconds of an iteration by Mbps ({setting.words()})",
        ("method", *(f"{m:g}" for m in sweep.mbps)),
        rows,
    )


def settings_table(first: Sweep, second: Sweep) -> Table:
    """The claims about LeNet-5 in both settings, side by side."""
    rows = []
    both = [
        [*whole_claims("fig8", "LeNet-5", sweep, (1.7, 6.9)), *lenet_claims(sweep)]
        for sweep in (first, second)
    ]
    for one, other in zip(*both, strict=True):
        cells = [
            f"{said(c.ours, c.unit)} ({'yes' if c.reproduced else 'no'})" for c in (one, other)
        ]
        rows.append((one.id, said(one.paper, one.unit), *cells))
    names = [" / ".join(f"{speed:g}" for speed in s.gflops) for s in (LENET, LENET_SLOWER)]
    columns = ("claim", "paper", *(f"{name} GFLOPS" for name in names))
    title = (
        "LeNet-5: two settings side by side; each gives what the other does not (yes: reproduced)"
    )
    return Table(title, columns, tuple(rows))


def cores_table(sweeps: dict[int, Sweep]) -> Table:
    """Seconds by the number of the edge server's cores."""
    rows = tuple(
        (str(cores), *(digits(value) for value in sweep.seconds["hiertrain"]))
        for cores, sweep in sweeps.items()
    )
    columns = ("edge cores", *(f"{m:g}" for m in sweeps[1].mbps))
    return Table("Fig. 11: AlexNet, HierTrain's seconds of an iteration by Mbps", columns, rows)


def write_tables(out: Path, reproduction: Reproduction) -> list[Path]:
    """The claims, Table II, and the numbers behind the figures."""
    planning, *sweeps = reproduction.tables
    texts = {
        out / "claims.md": claims_markdown(reproduction),
        out / "table2.md": table_markdown(planning),
        out / "figures.md": "\n".join(map(table_markdown, sweeps)),
    }
    return write_texts(texts)
