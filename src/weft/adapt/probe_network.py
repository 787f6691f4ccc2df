"""A test network for probes. It costs as much as the real network and shows nothing else of it.

    segment = probe_network(flops=4.2e6, seed=7)
    work = probe_work(profile, batch=32, slowest_s=6.3, seed=7)     # work.share of a step's cost

A step of a large network would take seconds. So a probe trains less: fewer samples, or a smaller network.
Its time is then divided by the share.

Only the total number of operations is used. Layers, widths and weights are drawn at random. So nobody can
read from it how many layers the real network has, which ones, or what they have learned. (Its cost can be
read: that is the purpose of a probe.) Weights are not sent; the probed device draws its own.
"""

from __future__ import annotations

import itertools
import math
import random
from typing import NamedTuple

from weft.graph.network import Node, Segment, State, Value
from weft.graph.operators.calls import dense, relu
from weft.plans.profile import Profile

FEWEST, MOST = 3, 9  # layers of a test network
WIDEST = 4096
TRAIN_S = 0.3  # the longest time of a test network's step, on the slowest device that trains it
MOST_FLOPS = 8e6  # per sample: 4 million weights, 16 MB
MOST_SAMPLES = 1024


class ProbeWork(NamedTuple):
    """What devices train in a probe."""

    segment: Segment
    samples: int
    share: float  # the test network's operations divided by those of a real step


def probe_work(profile: Profile, batch: int, slowest_s: float, seed: int) -> ProbeWork:
    """A test network whose step takes at most TRAIN_S where a step of the real one takes `slowest_s`."""
    flops = profile_flops(profile)
    wanted = flops * batch * min(1.0, TRAIN_S / slowest_s if slowest_s > 0 else 1.0)
    samples = min(max(1, round(wanted / min(flops, MOST_FLOPS))), MOST_SAMPLES)
    segment = probe_network(min(wanted / samples, MOST_FLOPS), seed)
    return ProbeWork(segment, samples, segment_flops(segment) * samples / (flops * batch))


def probe_network(flops: float, seed: int) -> Segment:
    """Dense layers whose forward pass takes about `flops` operations per sample in all."""
    draw = random.Random(seed)
    count = draw.randint(FEWEST, MOST)
    shares = [draw.uniform(0.5, 1.5) for _ in range(count)]
    pairs = max(flops, 64.0 * count) / 2  # each weight costs one multiplication and one addition
    widths = [max(2, round(math.sqrt(pairs / count) * draw.uniform(0.7, 1.4)))]
    for share in shares[:-1]:  # the next width follows from the layer's share and the width before
        wanted = pairs * share / sum(shares)
        widths.append(min(WIDEST, max(2, round(wanted / widths[-1]))))
    done = sum(a * b for a, b in itertools.pairwise(widths))
    widths.append(max(1, round((pairs - done) / widths[-1])))
    return _dense(widths, draw)


def _dense(widths: list[int], draw: random.Random) -> Segment:
    nodes: list[Node] = []
    state: dict[str, State] = {}
    before = "x"
    for n, (a, b) in enumerate(itertools.pairwise(widths)):
        state[f"w{n}"], state[f"b{n}"] = State((b, a), "float32"), State((b,), "float32")
        nodes.append(dense(f"y{n}", before, f"w{n}", f"b{n}"))
        before = f"y{n}"
        if draw.random() < 0.7:
            nodes.append(relu(f"z{n}", before))
            before = f"z{n}"
    return Segment(
        first=0,
        last=len(widths) - 2,
        nodes=nodes,
        inputs={"x": Value((1, widths[0]), "float32")},
        outputs={before: Value((1, widths[-1]), "float32")},
        state=state,
    )


def segment_flops(segment: Segment) -> float:
    """Operations of a forward pass per sample."""
    return 2.0 * sum(s.shape[0] * s.shape[1] for s in segment.state.values() if len(s.shape) == 2)


def profile_flops(profile: Profile) -> float:
    """Operations of a network's forward pass per sample; estimated from its weights if not counted."""
    flops = sum(layer.forward_flops for layer in profile.layers)
    return flops or sum(layer.param_bytes / 2 for layer in profile.layers)
