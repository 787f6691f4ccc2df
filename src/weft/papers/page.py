"""The papers' claims beside ours as one HTML page that needs no other file.

write_page(reports, Path("runs/reproduce/index.html"), quick=True)
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

from weft.papers.claims import Claim, Reproduction, Table, joined
from weft.papers.registry import get
from weft.papers.tables import cells, ending, headline, write_texts
from weft.version import __version__

PICTURES = {".png": "image/png", ".svg": "image/svg+xml"}
STYLE = """
:root { color-scheme: light dark; --line: #8884; --dim: #777;
  --yes: #18794e; --no: #b45309; --fitted: #0e7490; }
@media (prefers-color-scheme: dark) {
  :root { --dim: #aaa; --yes: #4cc38a; --no: #f5a623; --fitted: #67e8f9; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0; display: block; overflow-x: auto; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem; border-bottom: 1px solid var(--line); }
.yes { color: var(--yes); } .no { color: var(--no); } .fitted { color: var(--fitted); font-style: italic; }
.reached, .missed { color: var(--dim); }
.note, figcaption { color: var(--dim); }
figure { margin: 1.5rem 0; } img { max-width: 100%; background: #fff; }
"""


def write_page(reports: Sequence[Reproduction], path: Path, *, quick: bool) -> Path:
    """Writes the page; InputError if that is not possible."""
    write_texts({path: page(reports, quick=quick)})
    return path


def page(reports: Sequence[Reproduction], *, quick: bool) -> str:
    """The whole page. It asks nobody for anything."""
    ordered = sorted(reports, key=lambda report: report.paper)
    links = " · ".join(f'<a href="#{r.paper}">{escape(ending(r))}</a>' for r in ordered)
    kind = "quick: no real runs, fewer draws" if quick else "in full"
    body = "\n".join(map(section, ordered))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Weft: the papers' claims beside ours</title><style>{STYLE}</style></head><body>
<h1>The papers' claims beside ours</h1>
<p>Weft {escape(__version__)}, {kind}. {escape(ending(joined(list(ordered))))}.
<em>Fitted</em>: the paper does not print a setting, and it was chosen here so that the claim holds.
Such a row says nothing about the paper. <em>Reached</em> and <em>missed</em>: a statement of ours, which the
paper does not make.</p>
<p>{links}</p>
{body}
</body></html>
"""


def section(report: Reproduction) -> str:
    """One paper: its claims, its tables, its figures."""
    rows = "\n".join(map(_row, report.claims))
    figures = "\n".join(_figure(Path(f)) for f in report.files if Path(f).suffix in PICTURES)
    return f"""<section id="{escape(report.paper)}"><h2>{escape(get(report.paper).title)}</h2>
<p>{escape(headline(report))}</p>
<table><thead><tr><th>claim</th><th>what</th><th>paper</th><th>ours</th><th>holds</th></tr></thead>
<tbody>
{rows}
</tbody></table>
{"".join(map(_table, report.tables))}
{figures}</section>"""


def _row(claim: Claim) -> str:
    name, what, paper, ours, verdict = map(escape, cells(claim))
    note = f'<div class="note">{escape(claim.note)}</div>' if claim.note else ""
    return (
        f"<tr><td>{name}</td><td>{what}{note}</td><td>{paper}</td><td>{ours}</td>"
        f'<td class="{verdict}">{verdict}</td></tr>'
    )


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.columns)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows
    )
    return f"<h3>{escape(table.title)}</h3><table><tr>{head}</tr>{rows}</table>"


def _figure(path: Path) -> str:
    """A picture inside the page, with what its file is called."""
    try:
        data = base64.b64encode(path.read_bytes()).decode()
    except OSError:
        return f"<p class='note'>{escape(path.name)} is not there any more</p>"
    words = escape(path.stem.replace("_", " ").replace("-", " "))
    return (
        f'<figure><img alt="{words}" src="data:{PICTURES[path.suffix]};base64,{data}">'
        f"<figcaption>{words}</figcaption></figure>"
    )
