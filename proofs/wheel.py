"""The wheel: built, installed in a fresh environment, and used outside the repository."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from functools import partial
from pathlib import Path

from proofs.case import ROOT, Case, check, digest_of, source_digest

LIMIT_S = 1500.0  # an environment with torch takes minutes on a machine that does other work too
# The commands that a new user tries first; `fleet.toml` is written by the proof.
COMMANDS = (
    "--version",
    "models",
    "strategies",
    "plan lenet5 --fleet fleet.toml --strategy chain -o plan.json",
    "simulate plan.json",
    "demo",
)
FLEET = """
[[device]]
name = "pi"
gflops = 1.0
data = true
[[device]]
name = "nuc"
tier = "edge"
gflops = 8.0
[[link]]
between = ["pi", "nuc"]
mbps = 50
"""


def cases() -> list[Case]:
    files = [Path(__file__), ROOT / "pyproject.toml", ROOT / "constraints.txt"]
    return [Case("wheel", "installed elsewhere", partial(install_and_use), LIMIT_S,
                 digest_of(source_digest(), files=files))]  # fmt: skip


def install_and_use() -> str:
    """Each command ends with exit code 0, in a folder that knows nothing of the repository."""
    with tempfile.TemporaryDirectory(prefix="weft-wheel-") as folder:
        place = Path(folder)
        _run(
            [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, str(ROOT)],
            place,
        )
        wheels = list(place.glob("weft-*.whl"))
        check(len(wheels) == 1, f"pip wheel made {[w.name for w in wheels]}")
        _run([sys.executable, "-m", "venv", "env"], place)
        binaries = place / "env" / "bin"
        constraints = str(ROOT / "constraints.txt")
        _run(
            [str(binaries / "pip"), "install", "-q", "-c", constraints, f"{wheels[0]}[data,web]"],
            place,
        )
        (place / "fleet.toml").write_text(FLEET)
        begin = time.monotonic()
        for command in COMMANDS:
            _run([str(binaries / "weft"), *command.split()], place)
        look_at_page(binaries / "weft", place)
        size, used_s = wheels[0].stat().st_size, time.monotonic() - begin
    return f"{size / 1e3:.0f} kB; {len(COMMANDS)} commands and the page, in {used_s:.0f} s"


def look_at_page(weft: Path, place: Path) -> None:
    """`weft web` serves the page, its scripts and its style from the installed package; it knows the demo."""
    process = subprocess.Popen(
        [str(weft), "web", "runs", "--port", "0", "--json"], cwd=place, env=_clean(),
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        text = ""
        while not text.endswith("}\n"):
            line = process.stdout.readline()
            check(line != "", "weft web has ended")
            text += line
        told = json.loads(text)
        check(told["runs"] == ["demo"], f"weft web knows the runs {told['runs']}")
        for name in ("", "static/main.js", "static/style.css", "metrics"):
            with urllib.request.urlopen(told["url"] + name, timeout=60) as answer:
                check(len(answer.read()) > 100, f"weft web has no /{name}")
    finally:
        process.terminate()
        process.wait(60)


def _clean() -> dict[str, str]:
    """The environment without what leads to the repository."""
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}


def _run(command: list[str], place: Path) -> None:
    done = subprocess.run(
        command, cwd=place, env=_clean(), capture_output=True, text=True, timeout=LIMIT_S - 30,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    shown = " ".join(Path(part).name if part.startswith("/") else part for part in command)
    check(done.returncode == 0, f"{shown}: exit code {done.returncode}: {done.stderr[-1500:]}")
