"""A two-device pipeline on a 50 Mbps link: how close to the bound 1 / max(compute, uplink, downlink)?

A convolutional front of 1 MB activations per micro-batch, 8 in flight, 32 micro-batches a step. Weft with
links shaped in the fabric and (as root) in network namespaces with `tc tbf`; beside it
torch.distributed.pipelining's 1F1B over gloo in namespaces with the same link. Interleaved.
"""

from __future__ import annotations

import os
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from two_stages import Measured, activation_bytes, torch_run, weft_run

CHANNELS, MICRO, IN_FLIGHT, STEPS, MBPS = 20, 32, 8, 2, 50.0


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
        if root:
            kernel = weft_run(CHANNELS, MICRO, IN_FLIGHT, STEPS, MBPS, netns=True)[0]
            found.setdefault("weft, tc tbf", []).append(share(kernel))
            theirs = torch_run(CHANNELS, MICRO, STEPS, MBPS)
            assert theirs is not None
            found.setdefault("torch 1F1B over gloo, tc tbf", []).append(share(theirs))
    print(
        f"{activation_bytes(CHANNELS) / 1e6:.2f} MB a micro-batch, {MBPS:g} Mbps, {MICRO} micro-batches"
    )
    print(f"{'':<30} {'of the bound':>12}   {'all rounds'}")
    for name, shares in found.items():
        told = " ".join(f"{s:.1%}" for s in shares)
        print(f"{name:<30} {statistics.median(shares):>12.1%}   {told}")
    if not root:
        print("torch's pipeline needs root here, to shape its link")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
