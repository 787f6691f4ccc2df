"""coopai+: plans like coopai's, made for physical links and unequal devices.

- It minimises the simulator's time, in which a receiver waits for the sender and messages share a medium.
- Rows are shared out in proportion to speed. Devices with one neighbour, or which get the image first,
  get more rows. Where maps are small, fewer devices get rows (cut states).
- Inner rows are computed while rows from others are being sent.
- The gateway computes too if that helps: rows, blocks, or everything alone.
- With objective=throughput many frames are in flight, and the number of frames per second counts. Then a
  further candidate gives whole frames to one device after the other (`frames`).

First comes dynamic programming over layers and cut states on a small event model (`plus_search`): with one
state for every number of devices, then with all states for the best numbers. The results and the blocks of
coopai and sls are compared by the simulator's seconds (`clock`). Then small changes to the winner are
tried (`polish`).
"""

from __future__ import annotations

import dataclasses

from weft.errors import InputError
from weft.plans.plan import Plan
from weft.plans.strategy import ONLY_INFERS, strategy
from weft.plans.task import Task
from weft.strategies.coopai.planner import POLISH, Planner
from weft.strategies.coopai.strategy import OPTIONS

IN_FLIGHT = (1, 2, 4, 8, 12)  # frames in flight that are tried


@strategy(
    "coopai+",
    "coopai for physical links: unequal shares, overlap, fewer devices where maps are small",
    modes=("infer",),
    options={
        "devices": OPTIONS["devices"],
        "overlap": "on | off: inner rows are computed while rows from others are on their way",
        "shares": "free | even: of rows, in proportion to speed and place, or all the same",
        "gateway": "on | off: whether the gateway may compute too",
        "objective": "latency | throughput: of one answer, or of a batch of frames one by one",
        "in_flight": "with objective=throughput: how many frames may be under way at once",
        "frames": "either | cut | whole: with objective=throughput, whether devices share each frame or "
        "get whole ones in turn",
        "polish": f"how many small changes are tried in the end; {POLISH} where it is not given",
    },
    needs=frozenset({"graph"}),
    refuses=ONLY_INFERS,
)
def coopai_plus(task: Task) -> Plan:
    """The fastest plan, or for throughput the plan with the most frames per second."""
    planner = Planner(task)
    if not planner.streams:
        shared = planner.plan(planner.polished([planner.best()]))
        return min([shared, *planner.alone()], key=planner.task.price)
    plans = list(planner.whole_frames()) if planner.frames != "cut" else []
    if planner.frames != "whole":  # the best candidate for one frame may also be the best for many
        stream = ("objective", "in_flight", "frames")
        other = {key: value for key, value in task.options.items() if key not in stream}
        alone = Planner(dataclasses.replace(task, batch=1, options=other))
        numbers = [n for n in IN_FLIGHT if n <= task.batch]
        if "in_flight" in task.options:  # this is a limit: the batch may have fewer frames
            numbers = [planner.in_flight]
        choices = [
            choice._replace(in_flight=number)
            for choice in (planner.best(), alone.best())
            for number in numbers
        ]
        plans.append(planner.plan(planner.polished(choices)))
    if not plans:
        raise InputError(
            f"--set frames=whole with batch = {task.batch}: {planner.fixed} devices cannot each get a "
            "frame that pays; give a larger --batch or fewer devices"
        )
    return min(plans, key=planner.task.price)
