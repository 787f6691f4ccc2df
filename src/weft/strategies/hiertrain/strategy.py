"""HierTrain: layers and samples split over device, edge and cloud, exactly as in the paper.

               samples of s        samples of o        samples of l
    layers     1 .. m_s on s       1 .. N on o         1 .. m_l on l
               m_s+1 .. N on o                         m_l+1 .. N on o

The decision is who has the roles o, s and l, the cuts m_s <= m_l, and the shares b_o + b_s + b_l = B. It
minimises the paper's step time T exactly. T has barriers between stages, and flows that share a link each
get its full rate. So the simulator's price on physical links is another number; `decisions` hold T as
model_s. In a fleet without an edge server, or without a cloud machine, nobody has role s and m_s = 0.
"""

from __future__ import annotations

from collections.abc import Iterable

from weft.errors import InputError
from weft.fleet.fleet import Tier
from weft.plans import options
from weft.plans.plan import Part, Plan, Shard
from weft.plans.strategy import strategy
from weft.plans.task import Task
from weft.strategies.common.costs import Costs
from weft.strategies.common.stages import fastest
from weft.strategies.hiertrain.model import HierCosts, all_cells
from weft.strategies.hiertrain.search import fastest_split
from weft.strategies.hiertrain.synced import OPTION, with_synced_norms


@strategy(
    "hiertrain",
    "layers and samples over device, edge and cloud, by its paper",
    modes=("train",),
    options=OPTION,
    needs=frozenset({"tiers"}),
)
def hiertrain(task: Task) -> Plan:
    """The paper's plan; InputError if the fleet has neither an edge server nor a cloud machine."""
    task, norms = with_synced_norms(task, "hiertrain")
    workers = tier_workers(task, "hiertrain")
    cells = all_cells(HierCosts.of(task, workers))
    best = fastest_split(cells)
    roles = dict(zip("osl", (int(index) for index in cells.roles[:, best.cell]), strict=True))
    names = {role: workers[index] for role, index in roles.items() if index < len(workers)}
    m_s, m_l = int(cells.m_s[best.cell]), int(cells.m_l[best.cell])
    return Plan(
        strategy="hiertrain",
        model=task.profile.model,
        batch=task.batch,
        mode=task.mode,
        shards=role_shards(
            len(task.profile.layers),
            (names["o"], names.get("s", ""), names["l"]),
            m_s,
            m_l,
            (best.b_o, best.b_s, best.b_l),
        ),
        source=task.source,
        fleet=task.fleet,
        profile=task.profile,
        codec=options.codec(task),
        input_codec=options.input_codec(task),
        route=options.route(task),
        optimizer=task.optimizer,
        layering="norms" if norms else "depth",
        norms=norms,
        decisions={
            "roles": names,
            "m_s": m_s,
            "m_l": m_l,
            "b_o": best.b_o,
            "b_s": best.b_s,
            "b_l": best.b_l,
            "model_s": best.seconds,
        },
    )


def tier_workers(task: Task, strategy: str) -> tuple[str, ...]:
    """The device with the data, the fastest edge server and the fastest cloud machine that it can reach.

    If the fleet has no edge server or no cloud machine: only two workers. InputError if it has neither.
    """
    costs = Costs(task)
    present = {device.tier for device in task.fleet.devices}
    tiers: list[Tier] = [tier for tier in ("edge", "cloud") if tier in present]
    if not tiers:
        raise InputError(
            f"strategy {strategy} needs a device of tier 'edge' or 'cloud' beside the one with the "
            f"data; the fleet has only devices: {', '.join(task.fleet.names)}"
        )
    others = [fastest(task, costs, tier, strategy) for tier in tiers]
    for source in set(task.sources) & set(others):
        tier = task.fleet.device(source).tier
        raise InputError(
            f"strategy {strategy} needs other machines beside the one with the data; "
            f"{source} (tier {tier!r}) holds the data and is also the fastest of its tier: "
            "put the data on a device of tier 'device'"
        )
    return task.source, *others


def role_shards(
    layers: int, roles: tuple[str, str, str], m_s: int, m_l: int, shares: tuple[int, int, int]
) -> tuple[Shard, ...]:
    """The shards: first those for the samples of s, then of o, then of l.

    >>> [(s.device, s.layers) for s in role_shards(4, ("o", "s", "l"), 1, 4, (0, 3, 5))]
    [('s', (0, 0)), ('o', (1, 3)), ('l', (0, 3))]
    """
    o, s, l = roles  # noqa: E741 - the paper's letter
    b_o, b_s, b_l = shares
    return lane_shards(layers, o, [(s, m_s, b_s), (o, layers, b_o), (l, m_l, b_l)])


def lane_shards(layers: int, o: str, lanes: Iterable[tuple[str, int, int]]) -> tuple[Shard, ...]:
    """The shards of lanes (device, number of its first layers, samples); o computes the other layers.

    >>> [(s.device, s.layers) for s in lane_shards(3, "o", [("a", 1, 4), ("b", 3, 0), ("o", 3, 2)])]
    [('a', (0, 0)), ('o', (1, 2)), ('o', (0, 2))]
    """
    shards: list[Shard] = []
    offset = 0
    for device, m, samples in lanes:
        part = Part(samples, offset)
        offset += samples
        if samples and m > 0:
            shards.append(Shard(device, (0, m - 1), part))
        if samples and m < layers:
            shards.append(Shard(o, (m, layers - 1), part))
    return tuple(shards)
