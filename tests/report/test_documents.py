"""The documents of `--json`: what scripts read."""

from __future__ import annotations

from weft.planning.compare import Row
from weft.report.documents import compare_document


def test_a_script_finds_a_strategys_row_by_its_name() -> None:
    """The same strategy without its codecs once stood in the same list; a script took it for the other."""
    rows = [
        Row("quick+", "train", 0.1, differs="codec int8"),
        Row("quick+", "train", 0.2, setting="codecs=none"),
    ]
    document = compare_document("net", 8, rows)
    assert [(row["strategy"], row["step_s"]) for row in document["rows"]] == [("quick+", 0.1)]
    assert [row["setting"] for row in document["variants"]] == ["codecs=none"]
