"""A task with its layers in sequence: one operator with weights each, as plans with rounds need them.

    task = task_in_sequence(task)        # graph and profile both have the finer layers

If a measured layer is divided, its time is shared out by FLOPs.
"""

from __future__ import annotations

import dataclasses

from weft.errors import InputError
from weft.plans.relayer import relayered
from weft.plans.task import Task


def task_in_sequence(task: Task, strategy: str = "coopai") -> Task:
    """The same task with the layers of `in_sequence(task.graph)`.

    InputError if only a profile of the network is known.
    """
    if task.graph is None:
        raise InputError(
            f"{strategy} needs the network itself, not only a profile of {task.profile.model!r}: "
            "name a network of `weft models` or file.py:factory and leave --profile out"
        )
    from weft.graph.sequence import in_sequence  # imports torch, so it is imported only when needed

    graph = in_sequence(task.graph)
    return dataclasses.replace(
        task, graph=graph, profile=relayered(task.profile, task.graph, graph)
    )
