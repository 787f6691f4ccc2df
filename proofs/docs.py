"""The docs: every command line of README.md and docs/*.md ends with exit code 0.

A page's commands run in their order in one copy of the examples, so that a later one finds the files of an
earlier one. A page is one case.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from proofs.case import ROOT, Case, Skip, check, digest_of, source_digest

COMMAND = re.compile(
    r"^(?: {4}|\t)(?:\$ )?((?:weft |python examples/)(?:\\\n|[^\n])*)", re.MULTILINE
)
COMMENT = re.compile(r"\s{2,}\S.*$|\s#.*$")
LIMIT_S = 600.0
# What cannot be run here, by what stands in the command, and why.
ELSEWHERE = {
    "...": "is not written out",
    "--join": "needs real devices",
    "weft node": "serves until it is stopped",
    "weft fleet": "needs real devices",
    "--netns": "needs root and network namespaces",
    "weft reproduce all": "takes minutes; a test of tests/papers runs it with one paper",
    "weft web": "serves until it is stopped",
    "weft top": "serves until it is stopped",
    "$WEFT_DATA": "needs data sets that are not part of the project",
}
SYNTAX = re.compile(r"\[OPTIONS\]|\bMODEL\b|\bPLAN\b|PAPER")


def cases() -> list[Case]:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    digest = digest_of(source_digest(), files=[Path(__file__), *(ROOT / "examples").rglob("*.*")])
    return [
        Case("docs", str(page.relative_to(ROOT)), partial(follow, page), LIMIT_S,
             digest_of(digest, page.read_text()))
        for page in pages
        if list(commands(page))
    ]  # fmt: skip


def commands(page: Path) -> Iterator[str]:
    """As a reader would type them, without remarks beside them."""
    for match in COMMAND.finditer(page.read_text()):
        line = " ".join(part.strip() for part in match.group(1).split("\\\n"))
        if not SYNTAX.search(line):
            yield COMMENT.sub("", line).strip()


def reason_to_skip(command: str) -> str | None:
    for words, why in ELSEWHERE.items():
        if words in command:
            return why
    if command.startswith("weft reproduce") and "--quick" not in command:
        return "takes hours; --quick stands beside it"
    if re.match(r"weft (train|infer)\b", command) and not re.search(r"--(local|netns)", command):
        return "needs real devices"
    return None


def follow(page: Path) -> str:
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        shutil.copytree(ROOT / "examples", here / "examples")
        shutil.copy(ROOT / "examples" / "fleets" / "demo.toml", here / "fleet.toml")
        ran, skipped = 0, []
        for command in commands(page):
            why = reason_to_skip(command)
            if why is not None:
                skipped.append(f"{command}: {why}")
                continue
            _follow(command, here)
            ran += 1
    if not ran:
        raise Skip("; ".join(skipped))
    return f"{ran} commands" + (f"; skipped {'; '.join(skipped)}" if skipped else "")


def _follow(command: str, here: Path) -> None:
    words = shlex.split(command)
    program = ["-m", "weft"] if words[0] == "weft" else []
    settings = {"MPLBACKEND": "Agg", "XDG_CONFIG_HOME": str(here / "settings")}  # keys of its own
    environment = {**os.environ, **settings}
    done = subprocess.run(
        [sys.executable, *program, *words[1:]], cwd=here, env=environment, capture_output=True,
        text=True, timeout=LIMIT_S - 10, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    says = (done.stderr or done.stdout).strip()[-1500:]
    check(done.returncode == 0, f"`{command}` ended with {done.returncode}: {says}")
