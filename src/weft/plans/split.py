"""How a client and one worker share a network: as a short setting, and as the plan of it.

setting_of(plan)                             # Setting("edge1", cut=3, in_flight=2)
plan_for(Setting("edge2", 4, 2), like=plan)  # the same network, fleet and batch, shared otherwise
"""

from __future__ import annotations

import msgspec

from weft.errors import InputError
from weft.plans.online import Labels, Setting
from weft.plans.plan import Plan, Shard


def setting_of(plan: Plan) -> Setting:
    """How a plan of client and worker shares the network."""
    worker = next((s.device for s in plan.shards if s.device != plan.source), None)
    cut = len(plan.profile.layers)
    if worker is not None:
        cut = next(s.layers[0] for s in plan.shards if s.device == worker)
    return Setting(worker, cut, plan.stale + 1, plan.codec)


def plan_for(
    setting: Setting, like: Plan, *, labels: Labels = "worker", standby: str | None = None
) -> Plan:
    """The plan of a setting; all else (batch, codecs, fleet, profile) as in `like`. It has no price yet."""
    last = len(like.profile.layers) - 1
    client, worker, cut = like.source, setting.worker, setting.cut
    if cut < 1:
        raise InputError(f"cut = {cut} would send the samples away; 1 to {last} are allowed")
    end = last if labels == "worker" else last - 1  # of the worker's layers
    shards: tuple[Shard, ...]
    if worker is None or cut > end:  # nothing is left for a worker
        worker, cut, shards = None, last + 1, (Shard(client, (0, last)),)
    else:
        shards = (Shard(client, (0, cut - 1)), Shard(worker, (cut, end)))
        shards += (Shard(client, (last, last)),) if end < last else ()
    copies = () if worker is None or standby is None else (Shard(standby, shards[1].layers),)
    plan = msgspec.structs.replace(
        like,
        shards=shards,
        standby=copies,
        stale=setting.in_flight - 1 if worker is not None else 0,
        codec=setting.codec if worker is not None else like.codec,
        predicted=None,
    )
    return plan.deciding(
        worker=worker,
        cut=cut,
        in_flight=setting.in_flight,
        standby=standby if copies else None,
        labels=labels,
    )
