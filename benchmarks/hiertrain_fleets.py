"""hiertrain+ against HierTrain and every baseline on random fleets and networks, by the simulator.

    python benchmarks/hiertrain_fleets.py --draws 300 --seed 1

All with the same codecs (none, or 8 bits); jalad, which is always coded, against 8 bits only. Prints wins,
ties (within 1%) and losses. Exit code 1 where it loses by more than 1%.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import sys
from collections import Counter

import msgspec

from weft.errors import WeftError
from weft.loom.draw import draw
from weft.loom.planned import task_of
from weft.planning.decide import decide

OURS = "hiertrain+"
RIVALS = (
    "hiertrain",
    "all-device",
    "all-edge",
    "all-cloud",
    "jointdnn",
    "jointdnn+",
    "jalad",
    "chain",
)
TIE = 1.01


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--draws", type=int, default=300, help="fleets and networks that can be planned"
    )
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    found: dict[str, Counter[str]] = {name: Counter() for name in RIVALS}
    worst, planned, index = 0.0, 0, 0
    while planned < given.draws:
        drawn = msgspec.structs.replace(draw(given.seed, index, (OURS,)), options={}, wrong="")
        coded = random.Random(f"{given.seed}/{index}").random() < 0.5
        index += 1
        try:
            task = task_of(drawn)
            ours = decide(
                OURS, dataclasses.replace(task, options={"codecs": "all" if coded else "none"})
            )
        except WeftError:
            continue
        planned += 1
        assert ours.predicted is not None
        for name in RIVALS:
            if name == "jalad" and not coded:
                continue
            codec = "int8" if coded else "none"
            options = (
                {"input_codec": codec}
                if name == "jalad"
                else {"codec": codec, "input_codec": codec}
            )
            try:
                rival = decide(name, dataclasses.replace(task, options=options))
            except WeftError:
                found[name]["refused"] += 1
                continue
            rival = msgspec.structs.replace(rival, gradient_codec=ours.gradient_codec)
            ratio = ours.predicted.seconds / max(task.price(rival), 1e-300)
            worst = max(worst, ratio)
            kind = "loss" if ratio > TIE else "win" if ratio < 1 / TIE else "tie"
            found[name][kind] += 1
    print(f"{planned} of {index} draws planned; rival  wins  ties  losses  refused")
    for name, row in found.items():
        print(f"{name:12}{row['win']:6}{row['tie']:6}{row['loss']:6}{row['refused']:6}")
    print(f"at worst {worst:.4f} of a rival's time")
    return 1 if any(row["loss"] for row in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
