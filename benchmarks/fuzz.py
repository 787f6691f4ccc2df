"""Sends a million wrong messages to one node: prints how many, crashes, memory, and how soon it answers.

python benchmarks/fuzz.py [MESSAGES] [SEED]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from proofs.fuzz import fuzz


def main() -> None:
    messages = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    began = time.monotonic()

    def progress(sent: int) -> None:
        if sent % 20_000 == 0:
            took = time.monotonic() - began
            print(f"{sent:,} messages, {took:.0f} s", file=sys.stderr, flush=True)

    result = fuzz(messages, seed, progress)
    print(f"{result}; {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
