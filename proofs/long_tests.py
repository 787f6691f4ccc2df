"""Long tests: those with the mark `proof`, which `make test` leaves out. A case is a file of tests."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import partial
from pathlib import Path

from proofs.case import ROOT, Case, check, digest_of, source_digest

MARK = "pytest.mark.proof"
CLOSING = re.compile(r"(\d+) passed")
LIMIT_S = 420.0


def cases() -> list[Case]:
    code = source_digest()
    return [
        Case("tests", str(path.relative_to(ROOT)), partial(run, path), LIMIT_S,
             digest_of(code, files=[path, Path(__file__)]))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if MARK in path.read_text()
    ]  # fmt: skip


def run(path: Path) -> str:
    """All marked tests of the file pass, or are skipped for want of data."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "proof", "--show-capture=no", str(path)], cwd=ROOT,
        capture_output=True, text=True, timeout=LIMIT_S - 10, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    check(done.returncode == 0, done.stdout.strip()[-1500:])
    passed = CLOSING.search(done.stdout)
    return f"{passed.group(1) if passed else 0} tests"
