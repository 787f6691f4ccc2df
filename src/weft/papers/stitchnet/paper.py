"""StitchNet's evaluation beside ours: Figures 7 to 18, the radio model's figures, and all claims.

    weft reproduce stitchnet              # Fashion-MNIST and MNIST, read from $WEFT_DATA
    weft reproduce stitchnet --quick      # 5,000 MNIST images, no download

Networks are trained and tested with lost messages in the fast masked form (`graph/split/masked.py`), on
topologies that a search gives (`strategies/stitchnet/topology.py`), two networks at a time.
"""

from __future__ import annotations

from pathlib import Path

from weft.papers.absent import why_not_there
from weft.papers.claims import Reproduction
from weft.papers.registry import Tell, paper
from weft.papers.stitchnet.claims import all_claims
from weft.papers.stitchnet.figures import draw_figures
from weft.papers.stitchnet.runs import run_jobs
from weft.papers.stitchnet.study import (
    FULL,
    LETTERS,
    QUICK,
    Setting,
    Study,
    all_jobs,
    with_other_letters,
)
from weft.papers.stitchnet.tables import (
    COUNTED,
    accuracy_table,
    count_sent,
    failure_table,
    overhead,
    plus_table,
    prr_table,
)
from weft.papers.tables import claims_markdown, table_markdown, write_texts
from weft.strategies.stitchnet.topology import Figures, figures, find_topologies

TITLE = "StitchNet: neurons over devices on lossy radio"


@paper("stitchnet", TITLE)
def stitchnet(out: Path, quick: bool, tell: Tell) -> Reproduction:
    """Quick: fewer topologies, shorter training, on 5,000 MNIST images."""
    return study_paper(out, QUICK if quick else FULL, tell)


def study_paper(out: Path, setting: Setting, tell: Tell) -> Reproduction:
    """Run the study, and write its claims, tables and figures."""
    from weft.data import load

    load(setting.data)  # refuses a missing data set now, not in a process after a minute
    tell("searching topologies", 0.0)
    places = find_topologies(setting.many)
    without = why_not_there(LETTERS) if LETTERS in setting.sets else None
    if without is not None:
        setting = with_other_letters(setting)
    outcomes = run_jobs(all_jobs(setting), lambda what, share: tell(what, 0.97 * share))
    study = Study(setting, outcomes, without or "")
    return written(out, study, [figures(place) for place in places], tell)


def written(out: Path, study: Study, prr: list[Figures], tell: Tell) -> Reproduction:
    """Write the claims, tables and figures of a study."""
    tell("drawing", 0.97)
    costs = overhead(study.setting.many)
    claims = all_claims(study, prr, costs, count_sent(COUNTED))
    tables = (accuracy_table(study), failure_table(study), plus_table(study), prr_table(prr))
    files = draw_figures(out, study, prr, costs)
    texts = {
        out / "claims.md": claims_markdown(Reproduction("stitchnet", claims, (), tables)),
        out / "tables.md": "\n".join(map(table_markdown, tables)),
    }
    write_texts(texts)
    tell("done", 1.0)
    return Reproduction("stitchnet", claims, tuple(map(str, [*files, *texts])), tables)
