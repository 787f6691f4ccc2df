"""How long CoopAI's exact search takes, and how that grows with layers and devices.

    python benchmarks/coopai_planning.py

The networks of the paper for k = 1..10 on 13.6 GFLOPS behind 100 Mbps; chains of 10 to 80 equal convolutions
for 5 to 40 devices. Processor time, the median of several runs; from a network's geometry (which is read
once) to the blocks of every k. The exponents are of the slopes between neighbours in a table of logarithms:
the paper's bound, devices x layers^2, is 1 and 2.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from itertools import pairwise

from weft.graph.split.rows import Rule
from weft.papers.coopai.runs import NETWORKS, captured
from weft.strategies.coopai.geometry import Geometry, RowLayer, Step, geometry_of
from weft.strategies.coopai.model import Speeds
from weft.strategies.coopai.passthrough import as_printed
from weft.strategies.coopai.search import best_splits

SPEEDS = Speeds(13.6e9, 100e6)
TURNS = 9
LAYERS = (10, 20, 40, 80)
DEVICES = (5, 10, 20, 40)


def chain(layers: int, height: int = 224) -> Geometry:
    """Equal 3x3 convolutions, 64 channels on 224 columns."""
    names = [f"v{m}" for m in range(layers + 1)]
    width = 64 * height
    flops = 2.0 * 9 * 64 * width
    steps = [
        Step(after, (before,), Rule((before,), (), 1, 1, 3), flops)
        for before, after in pairwise(names)
    ]
    return Geometry(
        "chain",
        tuple(RowLayer((step,), flops * height, after=False) for step in steps),
        tuple((name,) for name in names),
        dict.fromkeys(names, height),
        dict.fromkeys(names, width),
        dict.fromkeys(names, width * height),
        {name: m - 1 for m, name in enumerate(names)},
        {name: (m,) for m, name in enumerate(names[:-1])},
    )


def median_ms(run: Callable[[], object]) -> float:
    run()
    times = []
    for _ in range(TURNS):
        begin = time.process_time()
        run()
        times.append((time.process_time() - begin) * 1e3)
    return statistics.median(times)


def growth(times: list[float], sizes: tuple[int, ...]) -> str:
    steps = zip(times, times[1:], sizes, sizes[1:], strict=False)
    return " ".join(f"{math.log(b / a) / math.log(n / m):5.2f}" for a, b, m, n in steps)


def main() -> None:
    print("k = 1..10, all blocks: processor time")
    for name, title in NETWORKS.items():
        geometry = as_printed(geometry_of(captured(name)))

        def plan(found: Geometry = geometry) -> object:
            return best_splits(found, SPEEDS, 10)

        print(f"{title:<10}{len(geometry.layers):>4} layers{median_ms(plan):>9.1f} ms", flush=True)
    by_layers = [median_ms(lambda n=n: best_splits(chain(n), SPEEDS, 10)) for n in LAYERS]
    print(f"10 devices, {LAYERS} layers: {' '.join(f'{t:.1f}' for t in by_layers)} ms")
    print(f"    exponent of layers: {growth(by_layers, LAYERS)}")
    geometry = chain(20)
    by_devices = [median_ms(lambda d=d: best_splits(geometry, SPEEDS, d)) for d in DEVICES]
    print(f"20 layers, {DEVICES} devices: {' '.join(f'{t:.1f}' for t in by_devices)} ms")
    print(f"    exponent of devices: {growth(by_devices, DEVICES)}")


if __name__ == "__main__":
    main()
