"""A two-device pipeline on a 50 Mbps link: how close to the bound 1 / max(compute, uplink, downlink)?

    python benchmarks/pipeline.py [ROUNDS]

A convolutional front of 1 MB activations per micro-batch, 32 micro-batches a step. Weft with links shaped in
the fabric and (as root) in network namespaces with `tc tbf`; beside it schedules of
torch.distributed.pipelining over gloo in namespaces with the same link. A schedule of torch decides itself
how many micro-batches it has in flight, so Weft runs with the same number beside each, and with 8. All of
them take turns.
"""

from __future__ import annotations

import os
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from two_stages import Measured, activation_bytes, torch_run, weft_run

CHANNELS, MICRO, IN_FLIGHT, STEPS, MBPS = 20, 32, 8, 2, 50.0
# Forward passes of the first stage before its first backward pass, in torch's source for two ranks.
DEPTHS = {"1f1b": 2, "interleaved": 4, "zero-bubble": 4, "gpipe": MICRO}


def share(measured: Measured) -> float:
    """Of the bound, the busiest of compute, uplink and downlink."""
    link = activation_bytes(CHANNELS) / (MBPS * 1e6 / 8)
    return max(measured.compute_s, link) * MICRO / measured.step_s


def main(rounds: int = 3) -> None:
    root = os.geteuid() == 0
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        ours = weft_run(CHANNELS, MICRO, IN_FLIGHT, STEPS, MBPS)[0]
        found.setdefault("weft, fabric", []).append(share(ours))
        for depth in sorted({IN_FLIGHT, *DEPTHS.values()}) if root else ():
            kernel = weft_run(CHANNELS, MICRO, depth, STEPS, MBPS, netns=True)[0]
            found.setdefault(f"weft, tc tbf, {depth} in flight", []).append(share(kernel))
        for schedule, depth in DEPTHS.items() if root else ():
            theirs = torch_run(CHANNELS, MICRO, STEPS, MBPS, schedule)
            assert theirs is not None
            name = f"torch {schedule}, tc tbf, {depth} in flight"
            found.setdefault(name, []).append(share(theirs))
    print(
        f"{activation_bytes(CHANNELS) / 1e6:.2f} MB a micro-batch, {MBPS:g} Mbps, {MICRO} micro-batches"
    )
    print(f"{'':<40} {'of the bound':>12}   {'all rounds'}")
    for name, shares in found.items():
        told = " ".join(f"{s:.1%}" for s in shares)
        print(f"{name:<40} {statistics.median(shares):>12.1%}   {told}")
    if not root:
        print("torch's pipeline needs root here, to shape its link")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
