"""Whole frames for the devices in turn: nothing is cut, each device computes every so many frames alone.

    for plan in whole_frames(task, ("r1", "r2"), in_flight=(4,)):
        task.price(plan)

More frames come through than with any cut where every device can hold the network and the medium is
fast enough for the images. A device gets as many frames as its speed allows: each frame goes to the device
that is expected to have it done first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from weft.codecs.registry import coded_bytes
from weft.plans import options
from weft.plans.plan import Plan
from weft.plans.rounds import Round, Turn
from weft.plans.task import Task
from weft.strategies.coopai.block_turns import Turns
from weft.strategies.coopai.strategy import plan_of_rounds


def whole_frames(
    task: Task, strategy: str, workers: Sequence[str], in_flight: Iterable[int]
) -> Iterator[Plan]:
    """Plans in which these workers, perhaps the gateway among them, get whole frames; one for each
    number in flight. `task` has its layers in sequence. None where a worker would get no frame."""
    assert task.graph is not None
    turns_of = frames_of(task, workers)
    if len(set(turns_of)) < len(workers):
        return
    layers = (0, len(task.graph.layers) - 1)
    maker = Turns(task.graph, layers, "whole", workers, task.source)
    turns: list[Turn] = []
    for place in range(len(workers)):
        shares = tuple(int(place == other) for other in range(len(workers)))
        turns += maker.of_devices(shares, None, 0.0)
    rounds = (Round(layers, "whole", tuple(turns), in_turn=turns_of),)
    for number in in_flight:
        yield plan_of_rounds(
            task,
            strategy,
            rounds,
            micro_batches=task.batch,
            in_flight=number,
            decisions={
                "devices": len([name for name in workers if name != task.source]),
                "blocks": [list(layers)],
                "modes": ["whole"],
                "gateway": "computes" if task.source in workers else "relays",
                "order": list(workers),
                "objective": "throughput",
                "frames": [turns_of.count(place) for place in range(len(workers))],
                "in_flight": number,
            },
        )


def frames_of(task: Task, workers: Sequence[str]) -> tuple[int, ...]:
    """Which worker computes each frame of the batch, by place: the one that has it done first."""
    profile, last = task.profile, len(task.profile.layers) - 1
    spent = [profile.devices[name].forward(0, last, 1) for name in workers]
    image = coded_bytes(profile.input_bytes, options.input_codec(task))
    hops = [task.fleet.route(task.source, name)[:1] for name in workers]  # none to the gateway
    free, sent = [0.0] * len(workers), dict.fromkeys((h.channel for hop in hops for h in hop), 0.0)
    found = []
    for _ in range(task.batch):
        arrival = [
            sum(sent[hop.channel] + image / hop.bytes_per_s for hop in each) for each in hops
        ]
        done = [max(free[n], arrival[n]) + spent[n] for n in range(len(workers))]
        chosen = done.index(min(done))
        for hop in hops[chosen]:
            sent[hop.channel] = arrival[chosen]
        free[chosen] = done[chosen]
        found.append(chosen)
    return tuple(found)
