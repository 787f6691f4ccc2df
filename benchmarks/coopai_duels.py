"""coopai+ against coopai, sls and one machine, in the simulator: wins, ties and losses on random tasks.

    python benchmarks/coopai_duels.py [tasks] [off]      # off: the gateway only relays, as in the paper

Networks and fleets are those of the loom: small convolutions, residual ones, branches and zoo networks behind
gateways with a few devices. Every third task is a stream of frames. A win or a loss is a difference of more
than 1%.
"""

from __future__ import annotations

import dataclasses
import random
import sys
from collections import Counter, defaultdict

from weft.errors import WeftError
from weft.loom.draw import Draw, as_text
from weft.loom.fleets import draw_fleet
from weft.loom.networks import draw_net
from weft.loom.planned import task_of
from weft.loom.settings import fitting
from weft.planning.decide import decide
from weft.plans import registry
from weft.plans.task import Task

FRAMES = 6
BEYOND = 0.01
Ask = tuple[str, dict[str, str]]
PLUS = "coopai+"


def rivals(stream: bool) -> dict[str, Ask]:
    """By title; of a stream the same with frames in flight."""
    frames = {"micro_batches": str(FRAMES), "in_flight": str(FRAMES)} if stream else {}
    return {
        "coopai": ("coopai", frames),
        "coopai, overlapping": ("coopai", {**frames, "overlap": "on"}),
        "sls": ("sls", frames),
        "sls, overlapping": ("sls", {**frames, "overlap": "on"}),
        "one device": ("coopai", {**frames, "devices": "1"}),
    }


def seconds(task: Task, strategy: str, options: dict[str, str]) -> float | None:
    """What the plan takes; None where there is none."""
    try:
        plan = decide(strategy, dataclasses.replace(task, options=options))
    except WeftError:
        return None
    assert plan.predicted is not None
    return plan.predicted.seconds


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 240
    relays = {"gateway": "off"} if "off" in sys.argv[2:] else {}
    score: dict[str, Counter[str]] = defaultdict(Counter)
    worst: dict[str, float] = defaultdict(float)
    kind = fitting(registry.get(PLUS))
    done = index = 0
    while done < count:
        index += 1
        rng = random.Random(f"duel/{index}")
        stream = index % 3 == 0
        drawn = Draw(
            net=draw_net(rng, index // 20, kind), fleet=draw_fleet(rng, kind), strategy=PLUS,
            mode="infer", batch=FRAMES if stream else 1,
        )  # fmt: skip
        task = task_of(drawn)
        ours = seconds(task, PLUS, {**relays, **({"objective": "throughput"} if stream else {})})
        if ours is None:
            continue  # a network without rows, a fleet without a gateway
        done += 1
        others = {title: seconds(task, *ask) for title, ask in rivals(stream).items()}
        gateway = task.profile.devices[task.source].forward(0, len(task.profile.layers) - 1, 1)
        if not relays:
            others["the gateway alone"] = gateway * task.batch
        for title, theirs in others.items():
            if theirs is None:
                continue
            ratio = ours / theirs
            score[title][
                "win" if ratio < 1 - BEYOND else "loss" if ratio > 1 + BEYOND else "tie"
            ] += 1
            worst[title] = max(worst[title], ratio)
            if ratio > 1 + BEYOND:
                print(f"slower than {title} by {ratio - 1:.1%}: {as_text(drawn)}", flush=True)
    print(f"{done} tasks\n{'against':22}{'wins':>6}{'ties':>6}{'losses':>8}{'worst':>9}")
    for title, found in score.items():
        print(f"{title:22}{found['win']:6}{found['tie']:6}{found['loss']:8}{worst[title]:9.3f}")


if __name__ == "__main__":
    main()
