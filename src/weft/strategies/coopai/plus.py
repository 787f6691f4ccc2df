"""coopai+: the same kind of plan as coopai's, made for physical links and unequal devices.

- It minimises the simulator's time, in which a receiver waits for the sender and messages share a medium.
- Rows are shared out in proportion to speed, with more for devices that have one neighbour or get the
  image first, and for fewer devices where maps are small (cut states).
- Inner rows are computed while rows from others are on their way.
- The gateway computes too where that helps: rows, blocks, or everything alone.
- With objective=throughput many frames are under way at once; what counts is how many come through. Whole
  frames for the devices in turn are a candidate then (`frames`).

First a dynamic program over layers and cut states on a small event model (`coopai_plus_search`): with one
state for every number of devices, with all for the best of these. What it finds is judged beside coopai's
and sls's own blocks by the simulator's seconds (`round_clock`); then small changes to the winner are tried
(`coopai_polish`).
"""

from __future__ import annotations

import dataclasses

from weft.errors import InputError
from weft.plans.plan import Plan
from weft.plans.strategy import ONLY_INFERS, strategy
from weft.plans.task import Task
from weft.strategies.coopai.planner import POLISH, Planner
from weft.strategies.coopai.strategy import OPTIONS

IN_FLIGHT = (1, 2, 4, 8, 12)  # frames


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
    planner = Planner(task)
    if not planner.streams:
        shared = planner.plan(planner.polished([planner.best()]))
        return min([shared, *planner.alone()], key=planner.task.price)
    plans = list(planner.whole_frames()) if planner.frames != "cut" else []
    if (
        planner.frames != "whole"
    ):  # what is best for one frame may be best for many, perhaps one by one
        stream = ("objective", "in_flight", "frames")
        other = {key: value for key, value in task.options.items() if key not in stream}
        alone = Planner(dataclasses.replace(task, batch=1, options=other))
        numbers = [n for n in IN_FLIGHT if n <= task.batch]
        if "in_flight" in task.options:  # a limit: the batch may have fewer frames
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
