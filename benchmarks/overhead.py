"""The runtime's own CPU time per micro-batch and hop, beside torch.distributed.pipelining over gloo.

Two processes on this machine, unshaped loopback. Own time is all CPU time of both processes, kernel time
and network threads included, less that of the mathematics. One hop: one link, crossed by
an activation forward and a gradient backward. Interleaved, median of several.

python benchmarks/overhead.py                       beside torch
python benchmarks/overhead.py --before OTHER/src    beside another state of Weft's source, in the same rounds
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from two_stages import activation_bytes, torch_run, weft_run

SIZES = (1, 5, 20, 80)  # channels: 50 kB, 250 kB, 1 MB, 4 MB


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--before", help="the src folder of another state of Weft")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="channels")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument(
        "--one", type=int, help="one run with so many channels, and only its figure"
    )
    options = parser.parse_args()
    if options.one:
        print(own_ms(options.one, options.steps))
        return
    other = "before" if options.before else "torch"
    print(f"{'activations':>14} {'weft ms':>9} {other + ' ms':>9} {'weft / ' + other:>13}")
    for channels in options.sizes:
        ours, others = [], []
        for _ in range(options.rounds):
            ours.append(own_ms(channels, options.steps))
            others.append(
                before_ms(options.before, channels, options.steps)
                if options.before
                else torch_ms(channels, options.steps)
            )
        a, b = statistics.median(ours), statistics.median(others)
        size = activation_bytes(channels)
        print(f"{size / 1e3:>11.0f} kB {a:>9.3f} {b:>9.3f} {a / b:>12.2f}x", flush=True)


def own_ms(channels: int, steps: int) -> float:
    return weft_run(channels, 16, 4, steps, None)[0].own_ms


def torch_ms(channels: int, steps: int) -> float:
    measured = torch_run(channels, 16, steps, None)
    assert measured is not None
    return measured.own_ms


def before_ms(source: str, channels: int, steps: int) -> float:
    """The same run with another state of Weft, in a process of its own."""
    command = [sys.executable, __file__, "--one", str(channels), "--steps", str(steps)]
    answer = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": source}, check=True, capture_output=True,
        timeout=600,
    )  # fmt: skip
    return float(answer.stdout.decode().split()[-1])


if __name__ == "__main__":
    main()
