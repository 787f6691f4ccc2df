"""Whole frames for one device after the other: nothing is cut, each device computes some frames alone.

    for plan in whole_frames(task, "coopai+", ("r1", "r2"), in_flight=(4,)):
        task.price(plan)

This gives more frames per second than any cut if every device can hold the network and the medium is fast
enough for the images. Each frame goes to the device that is expected to finish it first, so faster
devices get more frames.
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
    """Plans in which these workers get whole frames, one plan for each number in flight.

    The gateway may be one of the workers. `task` has its layers in sequence. No plan if a worker would get
    no frame.
    """
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
    """For each frame of the batch, the place of the worker that finishes it first."""
    profile, last = task.profile, len(task.profile.layers) - 1
    spent = [profile.devices[name].forward(0, last, 1) for name in workers]
    image = coded_bytes(profile.input_bytes, options.input_codec(task))
    # The gateway itself has none.
    hops = [task.fleet.route(task.source, name)[:1] for name in workers]
    free, sent = [0.0] * len(workers), dict.fromkeys((h.channel for hop in hops for h in hop), 0.0)
    workers_by_frame = []
    for _ in range(task.batch):
        arrival = [
            sum(sent[hop.channel] + image / hop.bytes_per_s for hop in each) for each in hops
        ]
        done = [max(free[n], arrival[n]) + spent[n] for n in range(len(workers))]
        chosen = done.index(min(done))
        for hop in hops[chosen]:
            sent[hop.channel] = arrival[chosen]
        free[chosen] = done[chosen]
        workers_by_frame.append(chosen)
    return tuple(workers_by_frame)
