"""The runtime's own CPU time per micro-batch and hop, beside torch.distributed.pipelining over gloo.

    python benchmarks/overhead.py                     beside torch
    python benchmarks/overhead.py --before REV        and beside another commit of this repository
    python benchmarks/overhead.py --before FOLDER     and beside another checkout

Two processes on this machine, unshaped loopback. Own time is all CPU time of both processes, kernel time
and network threads included, less that of the mathematics, which is measured where it happens. One hop: one
link, crossed by an activation forward and a gradient backward. The runs take turns; medians. Every run of
Weft is a process of its own with the source and the benchmark (`two_stages`) of its checkout.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from two_stages import activation_bytes, torch_run

ROOT = Path(__file__).resolve().parent.parent
SIZES = (1, 5, 20, 80)  # channels: 50 kB, 250 kB, 1 MB, 4 MB
RUN = """
import sys
sys.path.insert(0, {benchmarks!r})
from two_stages import weft_run
print(weft_run({channels}, 16, 4, {steps}, None)[0].own_ms)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--before", help="a commit, or the folder of another checkout")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="channels")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    with checkout(options.before) as other:
        names = ["weft", *(["before"] if other else []), "torch"]
        ratios = "".join(f"{'weft / ' + name:>15}" for name in names[1:])
        print(f"{'activations':>14}" + "".join(f"{name + ' ms':>11}" for name in names) + ratios)
        for channels in options.sizes:
            figures: dict[str, list[float]] = {name: [] for name in names}
            for _ in range(options.rounds):
                figures["weft"].append(own_ms(ROOT, channels, options.steps))
                if other:
                    figures["before"].append(own_ms(other, channels, options.steps))
                figures["torch"].append(torch_ms(channels, options.steps))
            print(row(channels, figures), flush=True)


def row(channels: int, figures: dict[str, list[float]]) -> str:
    """One size: the medians, and Weft's over each of the others."""
    ours, *others = (statistics.median(values) for values in figures.values())
    shown = "".join(f"{value:>11.3f}" for value in (ours, *others))
    ratios = "".join(f"{ours / value:>14.2f}x" for value in others)
    return f"{activation_bytes(channels) / 1e3:>11.0f} kB{shown}{ratios}"


@contextlib.contextmanager
def checkout(before: str | None) -> Iterator[Path | None]:
    """The folder to compare with, if any. That of a commit is made here and removed at the end."""
    if before is None or Path(before).is_dir():
        yield Path(before).resolve() if before else None
        return
    with tempfile.TemporaryDirectory(prefix="weft-before-") as folder:
        made = Path(folder) / "before"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(made), before], check=True)
        try:
            yield made
        finally:
            subprocess.run([*git, "remove", "--force", str(made)], check=False)


def own_ms(folder: Path, channels: int, steps: int) -> float:
    """A run of the checkout in that folder."""
    text = RUN.format(benchmarks=str(folder / "benchmarks"), channels=channels, steps=steps)
    answer = subprocess.run(
        [sys.executable, "-c", text], env={**os.environ, "PYTHONPATH": str(folder / "src")},
        capture_output=True, timeout=600, check=False,
    )  # fmt: skip
    if answer.returncode:
        raise SystemExit(f"{folder}: the run failed:\n{answer.stderr.decode()[-2000:]}")
    return float(answer.stdout.decode().split()[-1])


def torch_ms(channels: int, steps: int) -> float:
    measured = torch_run(channels, 16, steps, None)
    assert measured is not None
    return measured.own_ms


if __name__ == "__main__":
    main()
