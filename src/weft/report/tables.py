"""Tables for the terminal: a plan, a comparison, a profile, predicted beside measured.

rich.print(plan_table(plan))     # with colour, as wide as the terminal
text = render(plan_table(plan))  # plain text, always the same
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from io import StringIO
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group, RenderableType
from rich.markup import escape as without_markup
from rich.table import Table
from rich.text import Text

from weft.errors import printable
from weft.plans.plan import Plan, Shard
from weft.plans.profile import DeviceTimes, Profile
from weft.program.copies import copies_of, keeps_copies
from weft.program.timeline import Timeline
from weft.report.words import count, layer_range, part_words, seconds, size

if TYPE_CHECKING:
    from weft.planning.advise import Best
    from weft.planning.compare import Row

KINDS = ("load", "forward", "loss", "backward", "update", "emit")
FEW_DEVICES = 5  # a profile with more devices shows only their names


def render(renderable: RenderableType, width: int = 100) -> str:
    """Plain text without colour, as `print(plan)` shows it."""
    console = Console(file=StringIO(), width=width, color_system=None, legacy_windows=False)
    console.print(renderable)
    assert isinstance(console.file, StringIO)
    lines = console.file.getvalue().splitlines()
    return "\n".join(line.rstrip() for line in lines).strip("\n")


def safe(cell: str) -> str:
    """Words from a file or from another device as they are: no markup, and nothing that a terminal obeys."""
    return without_markup(printable(cell))


def new_table() -> Table:
    """An empty table in the style of all tables."""
    return Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)


def framed(title: str, table: Table, caption: str = "") -> RenderableType:
    """A table under its title. Unlike Rich's titles, the title does not wrap at the table's width."""
    parts: list[RenderableType] = [Text(printable(title), style="bold"), table]
    return Group(*parts, Text(printable(caption), style="dim")) if caption else Group(*parts)


def list_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> RenderableType:
    """A list with one line per entry. The last column may wrap."""
    table = new_table()
    for name in columns[:-1]:
        table.add_column(name, overflow="fold")
    table.add_column(columns[-1], overflow="fold", ratio=1)
    for row in rows:
        table.add_row(*map(safe, row))
    return table


def plan_table(plan: Plan) -> RenderableType:
    """Which device holds which layers and parts, and its compute time and memory."""
    table = new_table()
    for name in ("device", "tier", "layers", "part"):
        table.add_column(name, overflow="fold")
    for name in ("compute", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    for device in plan.devices:
        shards = [shard for shard in plan.shards if shard.device == device]
        for index, (layers, part) in enumerate(shard_cells(plan, device, shards)):
            who = device_cells(plan, device) if index == 0 else ("", "", "", "")
            name, tier, compute, memory = who
            table.add_row(*map(safe, (name, tier, layers, part, compute, memory)))
    return framed(plan_title(plan), table, plan_caption(plan))


def strategy_words(plan: Plan) -> str:
    """The strategy of a plan; for `auto` also the one that it took."""
    taken = plan.decisions.get("taken")
    return f"{plan.strategy} (takes {taken})" if taken else plan.strategy


def plan_title(plan: Plan) -> str:
    """The line above a plan's table."""
    title = f"{strategy_words(plan)}: {plan.model}, batch {plan.batch}"
    if plan.predicted is None:
        return title
    unit = "a step" if plan.mode == "train" else "an answer"
    return f"{title}, {seconds(plan.predicted.seconds)} {unit} predicted"


def plan_caption(plan: Plan) -> str:
    """The lines below the table, about the whole plan: the pipeline, the codec, the bytes on each channel."""
    words: list[str] = []
    if plan.micro_batches > 1:
        words.append(f"{plan.micro_batches} micro-batches")
    if plan.in_flight > 1:
        words.append(f"{plan.in_flight} in flight")
    for what, codec in (
        ("activations", plan.codec),
        ("weight gradients", plan.gradient_codec),
        ("samples", plan.input_codec),
    ):
        if codec != "none":
            words.append(f"{what} in {codec}")
    lines = [", ".join(words)] if words else []
    moved = plan.predicted.transfer_bytes if plan.predicted else {}
    unit = "step" if plan.mode == "train" else "answer"
    if plan.swarm is not None and {"packets", "broadcasts"} <= plan.decisions.keys():
        unicast, broadcast = plan.decisions["packets"], plan.decisions["broadcasts"]
        lines.append(f"packets of a {unit}: {unicast} as unicast, {broadcast} as broadcast")
    if moved:
        channels = ", ".join(
            f"{channel} {size(moved[channel])}" for channel in moved if moved[channel]
        )
        lines.append(f"bytes per {unit}: {channels}")
    if plan.predicted is not None and keeps_copies(plan):
        copies = copies_of(plan)
        held = ", ".join(f"{device} {size(copies.bytes[device])}" for device in copies.bytes)
        lines.append(
            f"a copy every {copies.every} minibatches: a loss repeats at most {seconds(copies.repeats_s)}; "
            f"memory for copies, beside the above: {held}"
        )
        if copies.lacking:
            short = ", ".join(f"{device} {size(lack)}" for device, lack in copies.lacking.items())
            lines.append(
                f"with the copies memory_mb is too small: {short} too little. Give layers to another device, "
                "or use --on-loss stop, which makes no copies"
            )
    apart = plan.decisions.get("taken_apart")
    if apart:
        numbers = plan.decisions["parameters"]
        lines.append(
            f"another network than {plan.model}: a structure for each class in {', '.join(apart)}; "
            f"{numbers['becomes']:,} parameters, where {plan.model} has {numbers['given']:,}"
        )
    if plan.peers is not None and not plan.peers.structured:
        lines.append(f"every peer has {plan.model} whole")
    return "\n".join(lines)


def shard_cells(plan: Plan, device: str, shards: Sequence[Shard]) -> list[tuple[str, str]]:
    """The cells "layers" and "part" of a device's shards."""
    if not shards:
        role = "feeds the samples" if plan.mode == "train" else "asks"
        return [("-", role if device in plan.sources else "-")]
    return [(layer_range(plan, shard), part_words(shard.part, plan.batch)) for shard in shards]


def device_cells(plan: Plan, name: str) -> tuple[str, str, str, str]:
    """The cells with name, tier, compute seconds, needed memory and available memory."""
    device = next((d for d in plan.fleet.devices if d.name == name), None)
    tier = device.tier if device else ""
    if plan.predicted is None:
        return name, tier, "", ""
    compute = seconds(plan.predicted.compute_s.get(name, 0.0))
    used = plan.predicted.memory_bytes.get(name)
    memory = "" if used is None else size(used)
    if memory and device and device.memory_mb is not None:
        memory += f" of {size(device.memory_mb * 1e6)}"
    return name, tier, compute, memory


SPEEDUP = (
    "speedup: over the best single machine, which may begin with the first samples while others "
    "still arrive"
)


def compare_table(
    rows: Sequence[Row], title: str = "", best: Best | None = None, why_none: str = ""
) -> RenderableType:
    """Strategies, best first, and the advice, or why there is none. The speedup is over the best single
    machine. Impossible strategies are in a line below."""
    table = new_table()
    table.add_column("strategy", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("speedup", justify="right", no_wrap=True)
    table.add_column("devices", overflow="fold")
    table.add_column("differs", overflow="fold")
    for row in rows:
        if row.seconds is not None:
            cells = (
                row.label,
                seconds(row.seconds),
                "-" if row.speedup is None else f"{row.speedup:.2f}x",
                ", ".join(row.devices),
                row.differs,
            )
            table.add_row(*map(safe, cells))
    lines = [f"best: {best.why}"] if best is not None else []
    lines += [f"best: none is advised: {why_none}"] if best is None and why_none else []
    lines += [SPEEDUP] if table.rows else []
    if any(row.differs for row in rows):
        lines.append(
            "differs: in what it computes from one process; empty: the same up to rounding"
        )
    peers = [row.strategy for row in rows if row.peers and row.valid]
    if peers:
        lines.append(f"{', '.join(peers)}: each device does a minibatch of its own in that time")
    lines += [f"{row.strategy}: {row.note}" for row in rows if row.note]
    return framed(title, table, "\n".join([*lines, *left_out(rows)]))


def left_out(rows: Iterable[Row]) -> list[str]:
    """A line that names the strategies that are not possible, grouped by reason."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.why_not is not None:
            reasons.setdefault(_short(row.why_not, row.strategy), []).append(row.strategy)
    groups = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in reasons.items())
    return [f"not for this fleet: {groups}"] if groups else []


def _short(reason: str, strategy: str) -> str:
    """The first part of an error message: what is wrong, without the allowed values and the advice."""
    text = reason.split("; ")[0].split(". ")[0]
    for prefix in (f"strategy {strategy} ", "fleet: ", "the plan does not fit: "):
        text = text.removeprefix(prefix)
    return text


def profile_table(profile: Profile) -> RenderableType:
    """Each layer's sizes, and its times per sample on each device.

    One device: separate columns for forward, backward and update. A few devices: one column each for forward
    + backward.
    """
    columns = time_columns(profile)
    table = new_table()
    table.add_column("#", justify="right")
    table.add_column("layer", overflow="fold", min_width=8)
    for name in ("parameters", "output", "flops", *columns):
        table.add_column(safe(name), justify="right", no_wrap=True)
    for index, layer in enumerate(profile.layers):
        flops = count(layer.forward_flops) if layer.forward_flops else "-"
        sizes = (size(layer.param_bytes), size(layer.output_bytes), flops)
        times = (seconds(cost(index, index)) for cost in columns.values())
        table.add_row(str(index), safe(layer.name), *sizes, *times)
    last = len(profile.layers) - 1
    total = size(sum(layer.param_bytes for layer in profile.layers))
    flops = count(sum(layer.forward_flops for layer in profile.layers))
    table.add_section()
    times = (seconds(cost(0, last)) for cost in columns.values())
    table.add_row("", "all", total, "", flops, *times, style="bold")
    return framed(f"{profile.model}: {last + 1} layers", table, profile_caption(profile, columns))


def time_columns(profile: Profile) -> dict[str, Callable[[int, int], float]]:
    """Column names, each with the seconds it shows for layers first..last."""
    devices = profile.devices
    if len(devices) == 1:
        (only,) = devices.values()
        return {
            "forward": lambda first, last: only.forward(first, last, 1),
            "backward": lambda first, last: only.backward(first, last, 1),
            "update": only.update,
        }

    def both(times: DeviceTimes) -> Callable[[int, int], float]:
        return lambda first, last: times.forward(first, last, 1) + times.backward(first, last, 1)

    if len(devices) > FEW_DEVICES:
        return {}
    return {name: both(times) for name, times in devices.items()}


def profile_caption(profile: Profile, columns: Container[str]) -> str:
    """The line below a profile's table."""
    text = f"input {size(profile.input_bytes)} a sample; times are of one sample"
    names = list(profile.devices)
    if len(names) == 1:
        return f"{text}, update of one step; on {names[0]}"
    if names and names[0] in columns:
        return f"{text}, forward + backward"
    return f"{text}; profiled on {', '.join(names) or 'no device'}"


def timeline_table(predicted: Timeline, measured: Timeline | None = None) -> RenderableType:
    """Seconds per step on each device by kind, and on each channel; measured beside predicted.

    The ratio is measured over predicted: above 1 the prediction was too low.
    """
    sides = [predicted] if measured is None else [predicted, measured]
    table = new_table()
    table.add_column("where", overflow="fold")
    table.add_column("what", no_wrap=True)
    for side in sides:
        label = "predicted" if side is predicted else "measured"
        table.add_column(label, justify="right", no_wrap=True)
    if measured is not None:
        table.add_column("ratio", justify="right", no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)

    costs = [per_step(side) for side in sides]
    before = ""
    for where, what in timeline_rows(costs):
        values = [side.get((where, what)) for side in costs]
        cells = ["-" if value is None else seconds(value[0]) for value in values]
        if measured is not None:
            cells.append(ratio(values[0], values[1]))
        moved = next((value[1] for value in values if value is not None and value[1]), 0.0)
        if where != before and before:
            table.add_section()
        name = where if where != before else ""
        table.add_row(safe(name), safe(what), *cells, size(moved) if moved else "")
        before = where
    return framed(
        timeline_title(predicted, measured),
        table,
        "average over the steps in which the device took part",
    )


def timeline_title(predicted: Timeline, measured: Timeline | None) -> str:
    """The line above a table of predicted and measured times."""
    title = f"step predicted {seconds(predicted.step_s)}"
    if measured is None:
        return title
    title += f", measured {seconds(measured.step_s)}"
    return f"{title} ({measured.step_s / predicted.step_s:.2f}x)" if predicted.step_s else title


def per_step(timeline: Timeline) -> dict[tuple[str, str], tuple[float, float]]:
    """Seconds and bytes by (device or channel, kind), averaged over the steps in which the device took part.
    A slow peer takes part in fewer steps than a fast one, and a server that is no longer used in none."""
    steps: dict[str, set[int]] = {}
    for span in timeline.spans:
        steps.setdefault(span.where, set()).add(span.step)
    totals: dict[tuple[str, str], tuple[float, float]] = {}
    for span in timeline.spans:
        key, steps_taken = (span.where, span.what), len(steps[span.where])
        time, moved = totals.get(key, (0.0, 0.0))
        totals[key] = (
            time + (span.end - span.start) / steps_taken,
            moved + span.bytes / steps_taken,
        )
    return totals


def timeline_rows(
    sides: Sequence[dict[tuple[str, str], tuple[float, float]]],
) -> list[tuple[str, str]]:
    """The rows: devices first, then channels; for each one in the order of a step."""
    keys = dict.fromkeys(key for side in sides for key in side)
    channels = {where for where, what in keys if what == "transfer"}
    order = list(dict.fromkeys(where for where, _ in keys))

    def place(key: tuple[str, str]) -> tuple[bool, int, int]:
        where, what = key
        return where in channels, order.index(where), (*KINDS, what).index(what)

    return sorted(keys, key=place)


def ratio(predicted: tuple[float, float] | None, measured: tuple[float, float] | None) -> str:
    """Measured over predicted, as text."""
    if predicted is None or measured is None or predicted[0] <= 0:
        return "-"
    return f"{measured[0] / predicted[0]:.2f}"
