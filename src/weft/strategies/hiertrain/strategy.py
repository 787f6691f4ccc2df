"""HierTrain: layers and samples split over device, edge and cloud, exactly as the paper counts.

               samples of s        samples of o        samples of l
    layers     1 .. m_s on s       1 .. N on o         1 .. m_l on l
               m_s+1 .. N on o                         m_l+1 .. N on o

The decision (who is o, s and l; m_s <= m_l; b_o + b_s + b_l = B) minimises the paper's step time T
and is exact. T sets barriers between stages and lets flows that share a link run at full rate each,
so the simulator's price of the plan on physical links is another number; `decisions` hold T as model_s.
A fleet without an edge server, or without a cloud machine, is the case m_s = 0: nobody is s.
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
    task, norms = with_synced_norms(task, "hiertrain")
    workers = tier_workers(task, "hiertrain")
    cells = all_cells(HierCosts.of(task, workers))
    found = fastest_split(cells)
    roles = dict(zip("osl", (int(index) for index in cells.roles[:, found.cell]), strict=True))
    names = {role: workers[index] for role, index in roles.items() if index < len(workers)}
    m_s, m_l = int(cells.m_s[found.cell]), int(cells.m_l[found.cell])
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
            (found.b_o, found.b_s, found.b_l),
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
            "b_o": found.b_o,
            "b_s": found.b_s,
            "b_l": found.b_l,
            "model_s": found.seconds,
        },
    )


def tier_workers(task: Task, strategy: str) -> tuple[str, ...]:
    """The device with the data, the fastest edge server and the fastest cloud machine in reach.

    Of a fleet without an edge server, or without a cloud machine, the two that there are.
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
    """Who holds what: the samples of s first, then those of o, then those of l.

    >>> [(s.device, s.layers) for s in role_shards(4, ("o", "s", "l"), 1, 4, (0, 3, 5))]
    [('s', (0, 0)), ('o', (1, 3)), ('l', (0, 3))]
    """
    o, s, l = roles  # noqa: E741 - the paper's letter
    b_o, b_s, b_l = shares
    return lane_shards(layers, o, [(s, m_s, b_s), (o, layers, b_o), (l, m_l, b_l)])


def lane_shards(layers: int, o: str, lanes: Iterable[tuple[str, int, int]]) -> tuple[Shard, ...]:
    """Lanes of (device, its first layers, samples), in the order of the samples; o finishes them.

    >>> [(s.device, s.layers) for s in lane_shards(3, "o", [("a", 1, 4), ("b", 3, 0), ("o", 3, 2)])]
    [('a', (0, 0)), ('o', (1, 2)), ('o', (0, 2))]
    """
    found: list[Shard] = []
    offset = 0
    for device, m, samples in lanes:
        part = Part(samples, offset)
        offset += samples
        if samples and m > 0:
            found.append(Shard(device, (0, m - 1), part))
        if samples and m < layers:
            found.append(Shard(o, (m, layers - 1), part))
    return tuple(found)
