"""CoopAI's evaluation beside ours: Tables I and II, Figures 8 and 9, and the percentages of section V.

    weft reproduce coopai

The times are those of the paper's cost model, minimised exactly. Beside them are the simulator's times of the
same plans on physical links. The model's derivation is in a report that is no longer available; the reading
in `strategies/coopai/model.py` gives the printed numbers. Without --quick, coopai+ is planned too, and
AlexNet's plans are really run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from weft.papers.claims import Reproduction, Table
from weft.papers.coopai.claims import (
    BLOCKS,
    bandwidth_claims,
    device_claims,
    shape_claims,
    table_claims,
)
from weft.papers.coopai.figures import draw_bandwidths, draw_devices
from weft.papers.coopai.measured import RealRow, measured_claims, measured_table, run_rows
from weft.papers.coopai.physical import (
    PLANS,
    PLUS,
    WITH_GATEWAY,
    physical_claims,
    physical_table,
    simulate_plans,
)
from weft.papers.coopai.runs import (
    DEVICES,
    METHODS,
    NETWORKS,
    SWEEP,
    NetworkRuns,
    captured,
    run_network,
)
from weft.papers.registry import Tell, paper
from weft.papers.tables import claims_markdown, table_markdown, write_texts
from weft.report.words import digits

REALLY_RUN = "AlexNet"
TITLE = "CoopAI: cooperative inference on small devices behind a gateway"


@paper("coopai", TITLE)
def coopai(out: Path, quick: bool, tell: Tell) -> Reproduction:
    """Minimise the cost model exactly for every network, number of devices and bandwidth."""
    runs, simulated = [], []
    for index, (name, title) in enumerate(NETWORKS.items()):
        tell(f"planning {title}", (0.8 if quick else 0.5) * index / len(NETWORKS))
        runs.append(run_network(captured(name), title))
        simulated.append(simulate_plans(title, PLANS if quick else (*PLANS, PLUS, WITH_GATEWAY)))
    tell("drawing", 0.5 if not quick else 0.8)
    figures = [out / "figure8.png", out / "figure9.png"]
    draw_devices(figures[0], runs)
    draw_bandwidths(figures[1], runs)
    really: list[RealRow] = []
    for row in () if quick else run_rows(REALLY_RUN.lower()):
        tell(f"{REALLY_RUN}, really run: {row.title}", 0.5 + 0.1 * len(really))
        really.append(row)
    claims = (
        *table_claims(runs),
        *device_claims(runs),
        *bandwidth_claims(runs),
        *shape_claims(runs),
        *physical_claims(simulated),
        *(measured_claims(REALLY_RUN, really) if really else []),
    )
    tables = (
        networks_table(runs),
        blocks_table(runs),
        devices_table(runs),
        bandwidth_table(runs),
        physical_table(simulated),
        *([measured_table(REALLY_RUN, really)] if really else []),
    )
    files = [*figures, *write_tables(out, Reproduction("coopai", claims, (), tables))]
    tell("done", 1.0)
    return Reproduction("coopai", claims, tuple(map(str, files)), tables)


def networks_table(runs: Sequence[NetworkRuns]) -> Table:
    """The paper's networks, and ours."""
    rows = (
        ("input size", *("x".join(map(str, input_shape(run)[-2:])) for run in runs)),
        ("layers", *(str(len(run.graph.layers)) for run in runs)),
        ("parameters, million", *(f"{run.graph.parameters / 1e6:.1f}" for run in runs)),
        ("operations, GFLOPs", *(f"{run.graph.forward_flops / 1e9:.2f}" for run in runs)),
    )
    return Table("Table I: the networks", ("", *(run.title for run in runs)), rows)


def input_shape(run: NetworkRuns) -> tuple[int, ...]:
    """The shape of a network's input."""
    return run.graph.values[run.graph.inputs[0]].shape


def blocks_table(runs: Sequence[NetworkRuns]) -> Table:
    """The number of blocks of our plans, beside the paper's."""
    rows = []
    for run, paper_row in zip(runs, BLOCKS, strict=True):
        ours = (str(len(split.blocks)) for split in run.splits["mls"])
        rows += [(run.title, *ours), (f"{run.title}, paper", *map(str, paper_row))]
    columns = ("devices", *(str(k) for k in range(1, DEVICES + 1)))
    return Table("Table II: blocks of MLS", columns, tuple(rows))


def devices_table(runs: Sequence[NetworkRuns]) -> Table:
    """Latency by number of devices."""
    rows = tuple(
        (f"{run.title} {method.upper()}", *(digits(value) for value in run.seconds(method)))
        for run in runs
        for method in METHODS
    )
    columns = ("devices", *(str(k) for k in range(1, DEVICES + 1)))
    return Table("Fig. 8: seconds of the model by devices", columns, rows)


def bandwidth_table(runs: Sequence[NetworkRuns]) -> Table:
    """Latency by bandwidth."""
    rows = []
    for run in runs:
        for method in METHODS:
            times = (digits(value) for value in run.by_mbps[method])
            rows.append((f"{run.title} {method.upper()}", *times))
        rows.append((f"{run.title} saved, %", *(f"{value:.2f}" for value in run.saved_by_mbps)))
    columns = ("Mbps", *map(str, SWEEP))
    return Table("Fig. 9: seconds of the model by bandwidth", columns, tuple(rows))


def write_tables(out: Path, reproduction: Reproduction) -> list[Path]:
    """The claims, Tables I and II, and the numbers behind the figures."""
    networks, blocks, *figures = reproduction.tables
    texts = {
        out / "claims.md": claims_markdown(reproduction),
        out / "table1.md": table_markdown(networks),
        out / "table2.md": table_markdown(blocks),
        out / "figures.md": "\n".join(map(table_markdown, figures)),
    }
    return write_texts(texts)
