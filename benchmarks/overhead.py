"""The runtime's own CPU time per micro-batch and hop, beside torch.distributed.pipelining over gloo.

Two processes on this machine, unshaped loopback. Own time is all CPU time of both processes, kernel time
and network threads included, less that of the mathematics. One hop: one link, crossed by
an activation forward and a gradient backward. Interleaved, median of several.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from two_stages import activation_bytes, torch_run, weft_run

ROUNDS, STEPS = 3, 30


def main() -> None:
    print(f"{'activations':>14} {'weft ms':>9} {'torch ms':>9} {'torch / weft':>13}")
    for channels in (1, 5, 20):
        ours, theirs = [], []
        for _ in range(ROUNDS):
            ours.append(weft_run(channels, 16, 4, STEPS, None)[0].own_ms)
            measured = torch_run(channels, 16, STEPS, None)
            assert measured is not None
            theirs.append(measured.own_ms)
        a, b = statistics.median(ours), statistics.median(theirs)
        size = activation_bytes(channels)
        print(f"{size / 1e3:>11.0f} kB {a:>9.3f} {b:>9.3f} {b / a:>12.2f}x", flush=True)


if __name__ == "__main__":
    main()
