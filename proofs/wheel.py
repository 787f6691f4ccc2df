"""The wheel: built, installed in a fresh environment, and used outside the repository."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from proofs.case import ROOT, Case, check, digest_of, source_digest

LIMIT_S = 600.0
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
            [str(binaries / "pip"), "install", "-q", "-c", constraints, f"{wheels[0]}[data]"], place
        )
        (place / "fleet.toml").write_text(FLEET)
        for command in COMMANDS:
            _run([str(binaries / "weft"), *command.split()], place)
        size = wheels[0].stat().st_size
    return f"{size / 1e3:.0f} kB; {len(COMMANDS)} commands"


def _run(command: list[str], place: Path) -> None:
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        command, cwd=place, env=clean, capture_output=True, text=True, timeout=LIMIT_S - 30,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    shown = " ".join(Path(part).name if part.startswith("/") else part for part in command)
    check(done.returncode == 0, f"{shown}: exit code {done.returncode}: {done.stderr[-1500:]}")
