"""`--set sync_bn=yes`: batch norms use the statistics of the whole minibatch, so a split equals one process.

task, norms = with_synced_norms(task, "hiertrain")
"""

from __future__ import annotations

import dataclasses

from weft.errors import InputError
from weft.plans import options
from weft.plans.relayer import relayered
from weft.plans.task import Task

OPTION = {
    "sync_bn": "no | yes: whether batch norms share their statistics over all pieces of a minibatch"
}
Norms = tuple[tuple[int, int], ...]


def with_synced_norms(task: Task, strategy: str) -> tuple[Task, Norms]:
    """The task with a new layer at every batch norm, and these norms; the task as it is if not asked for.

    InputError if only a profile of the network is known.
    """
    if options.choice(task, "sync_bn", ("no", "yes"), "no") == "no":
        return task, ()
    if task.graph is None:
        raise InputError(
            f"{strategy} with sync_bn=yes needs the network itself, not only a profile of "
            f"{task.profile.model!r}: name a network of `weft models` or file.py:factory"
        )
    from weft.graph.norms import (  # imports torch, so it is imported only when needed
        by_norms,
        synced_norms,
    )

    graph = by_norms(task.graph)
    norms = synced_norms(graph)
    if not norms:
        return task, ()
    profile = relayered(task.profile, task.graph, graph)
    return dataclasses.replace(task, graph=graph, profile=profile), norms
