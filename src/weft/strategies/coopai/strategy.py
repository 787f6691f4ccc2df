"""CoopAI: low-latency inference by k devices behind a gateway, exactly as in the paper.

    coopai   MLS: blocks of layers, one round each; all k devices compute rows or units of every block
    sls      the paper's baseline: every layer is a round

Every device computes its strip of a block alone. Between two blocks it fetches through the gateway what it
lacks. Blocks, modes and k minimise the paper's completion time exactly (`search`). In the paper's time
a receiver may begin before the sender is done, and every device has its share of the bandwidth even while
the others send nothing. So the simulator's price on a real medium is another number. `decisions` hold
the paper's time as model_s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weft.errors import InputError
from weft.fleet.fleet import Medium
from weft.plans import options
from weft.plans.plan import Plan
from weft.plans.rounds import Round
from weft.plans.strategy import ONLY_INFERS, strategy
from weft.plans.task import Task
from weft.strategies.coopai.geometry import DenseLayer, Geometry, RowLayer, check_rows, geometry_of
from weft.strategies.coopai.model import Speeds
from weft.strategies.coopai.passthrough import as_printed
from weft.strategies.coopai.search import Split, best_splits
from weft.strategies.coopai.sequence import task_in_sequence
from weft.strategies.coopai.slicing import Block, rounds_of, shards_of

OPTIONS = {
    "devices": "how many devices take part; the best number where it is not given",
    "overlap": "off | on: inner rows are computed while rows from others are on their way",
    "micro_batches": "frames that the batch is cut into, 1 up to the batch size",
    "in_flight": "how many frames may be under way at once",
}


@dataclass(frozen=True)
class Cell:
    """A gateway and the devices behind it; the fastest device comes first."""

    gateway: str
    medium: Medium | None  # None: every device has its own link to the gateway
    devices: tuple[str, ...]
    speeds: Speeds  # of the slowest device, and of the medium


@strategy(
    "coopai",
    "blocks of layers, rows and units over devices behind a gateway, by its paper",
    modes=("infer",),
    options=OPTIONS,
    needs=frozenset({"graph"}),
    refuses=ONLY_INFERS,
)
def coopai(task: Task) -> Plan:
    """The paper's plan; InputError if the fleet has no gateway or no layer can be cut by rows."""
    return _plan(task, "coopai", single=False)


@strategy(
    "sls",
    "coopai's baseline: every layer a round of its own",
    modes=("infer",),
    options=OPTIONS,
    needs=frozenset({"graph"}),
    refuses=ONLY_INFERS,
)
def sls(task: Task) -> Plan:
    """The plan of the paper's baseline: every layer is a round."""
    return _plan(task, "sls", single=True)


def _plan(task: Task, name: str, single: bool) -> Plan:
    cell = cell_of(task, name)
    task = task_in_sequence(task, name)
    assert task.graph is not None
    geometry = as_printed(geometry_of(task.graph))
    check_rows(geometry)
    splits = best_splits(geometry, cell.speeds, len(cell.devices), single=single)
    number = options.integer(task, "devices", 0, high=len(cell.devices))
    if number:
        chosen = splits[number - 1]
    else:
        possible = [split for split in splits if enough_rows(geometry, split)]
        chosen = min(possible, key=lambda split: split.seconds)
    return rounds_plan(
        task,
        name,
        cell.devices[: chosen.devices],
        chosen.blocks,
        overlap=options.choice(task, "overlap", ("off", "on"), "off") == "on",
        micro_batches=options.micro_batches(task),
        in_flight=options.in_flight(task, 1),
        decisions={
            "model_s": chosen.seconds * task.batch,
            "model_s_by_devices": {str(s.devices): s.seconds * task.batch for s in splits},
        },
    )


def cell_of(task: Task, strategy: str, *, links: bool = False) -> Cell:
    """The medium whose gateway is the source, and the devices behind it; InputError if there is none.

    With `links`, devices with their own links to the source count as well.
    """
    media = [medium for medium in task.fleet.medium if medium.gateway == task.source]
    beside = _beside(task) if links and not media else []
    if beside:
        speeds = {name: _flops_per_s(task, name) for name in beside}
        rates = [task.fleet.route(task.source, name)[0].bytes_per_s * 8 for name in beside]
        order = tuple(sorted(beside, key=lambda name: -speeds[name]))
        return Cell(task.source, None, order, Speeds(min(speeds.values()), min(rates) * len(rates)))
    if not media:
        gateways = ", ".join(f"{m.name} (gateway {m.gateway})" for m in task.fleet.medium) or "none"
        raise InputError(
            f"strategy {strategy} needs a [[medium]] whose gateway is {task.source!r}, which asks; "
            f"the fleet's media are: {gateways}. Give the gateway's device data = true, or add a medium"
            + (", or a [[link]] from it to each device" if links else "")
        )
    medium = media[0]
    members = [name for name in medium.members if name != medium.gateway]
    if not members:
        raise InputError(
            f"[[medium]] {medium.name}: members = {list(medium.members)}; strategy {strategy} needs "
            "at least one device behind the gateway"
        )
    speed = {name: _flops_per_s(task, name) for name in members}
    # Equal ones stay in the file's order.
    devices = tuple(sorted(members, key=lambda name: -speed[name]))
    bits = medium.mbps * 1e6 * (1 - medium.loss)
    return Cell(medium.gateway, medium, devices, Speeds(min(speed.values()), bits))


def _beside(task: Task) -> list[str]:
    """Devices with their own link to the source."""
    ends = [link.between for link in task.fleet.link if task.source in link.between]
    return list(dict.fromkeys(b if a == task.source else a for a, b in ends))


def _flops_per_s(task: Task, device: str) -> float:
    """FLOP/s of a device: from the fleet file, else from the profile's times."""
    gflops = task.fleet.device(device).gflops
    if gflops is not None:
        return gflops * 1e9
    flops = sum(layer.forward_flops for layer in task.profile.layers)
    seconds = sum(task.profile.devices[device].forward_s)
    if not flops or not seconds:
        raise InputError(
            f"[[device]] {device}: gflops is missing, and the profile does not say how fast it is"
        )
    return flops / seconds


def enough_rows(geometry: Geometry, split: Split) -> bool:
    """Whether every device gets something to compute in every round."""
    return all(
        block.mode == "whole" or places(geometry, block) >= split.devices for block in split.blocks
    )


def places(geometry: Geometry, block: Block) -> int:
    """The number of rows, outputs or inputs that are shared out in a block."""
    first, last = (geometry.layers[index] for index in block.layers)
    if block.mode == "rows+data":
        last = geometry.layers[block.layers[1] - 1]
    if isinstance(last, RowLayer):
        return geometry.heights[last.output]
    assert isinstance(first, DenseLayer)
    return first.inputs if block.mode == "data" else first.outputs


def rounds_plan(
    task: Task,
    name: str,
    devices: tuple[str, ...],
    blocks: tuple[Block, ...],
    *,
    overlap: bool | Sequence[bool] = False,
    halves: float = 0.0,
    micro_batches: int = 1,
    in_flight: int = 1,
    decisions: Mapping[str, object] | None = None,
) -> Plan:
    """The plan in which these devices compute these blocks; `task` has its layers in sequence."""
    assert task.graph is not None
    rounds = rounds_of(task.graph, blocks, devices, task.source, overlap, halves)
    return plan_of_rounds(
        task,
        name,
        rounds,
        micro_batches=micro_batches,
        in_flight=in_flight,
        decisions={
            "devices": len(devices),
            "blocks": [list(block.layers) for block in blocks],
            "modes": [block.mode for block in blocks],
            **(decisions or {}),
        },
    )


def plan_of_rounds(
    task: Task,
    name: str,
    rounds: tuple[Round, ...],
    *,
    micro_batches: int,
    in_flight: int,
    decisions: dict[str, object],
) -> Plan:
    """The plan with these rounds."""
    return Plan(
        strategy=name,
        model=task.profile.model,
        batch=task.batch,
        mode=task.mode,
        shards=shards_of(rounds),
        source=task.source,
        fleet=task.fleet,
        profile=task.profile,
        micro_batches=micro_batches,
        in_flight=in_flight,
        codec=options.codec(task),
        input_codec=options.input_codec(task),
        route=options.route(task),
        layering="sequence",
        rounds=rounds,
        optimizer=task.optimizer,
        decisions=decisions,
    )
