from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def papers_data() -> Path:
    """The folder with the papers' sets; tests that read them are skipped where there is none."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    folder = Path(os.environ.get("WEFT_DATA") or beside)
    if not folder.is_dir():
        pytest.skip("the papers' data sets are not here (WEFT_DATA)")
    return folder
