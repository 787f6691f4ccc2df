"""The loom: random draws from the whole product, by benchmarks/loom.py. Chunks of seeds 1 to 5."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

from proofs.case import ROOT, Case, Skip, check, digest_of, source_digest

SCRIPT = ROOT / "benchmarks" / "loom.py"
SEEDS = range(1, 6)
DRAWS, RUNS, CHUNKS = 100, 6, 10  # per chunk: 5,000 draws and 300 real runs in all
LIMIT_S = 600.0


def cases() -> list[Case]:
    """Every seed's first chunk, then every seed's second: a run that ends early has seen all seeds."""
    digest = digest_of(source_digest(), files=[SCRIPT] if SCRIPT.exists() else [])
    return [
        Case("loom", f"seed {seed}, from draw {chunk * DRAWS}", partial(weave, seed, chunk * DRAWS),
             LIMIT_S, digest)
        for chunk in range(CHUNKS)
        for seed in SEEDS
    ]  # fmt: skip


def weave(seed: int, first: int) -> str:
    if not SCRIPT.exists():
        raise Skip("benchmarks/loom.py is not there")
    command = [sys.executable, str(SCRIPT), "--seed", str(seed), "--first", str(first)]
    command += ["--draws", str(DRAWS), "--runs", str(RUNS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S - 5)
    found = done.stdout[done.stdout.find("violations:") :]
    check(
        done.returncode == 0, f"exit code {done.returncode}: {found[-2000:] or done.stderr[-2000:]}"
    )
    return f"{DRAWS} draws, {RUNS} real runs, no violation"
