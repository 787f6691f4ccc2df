"""Draws a plan: devices as rows, layers as columns, arrows for messages between devices."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from weft.plans.plan import Plan, Shard
from weft.program.instructions import Send
from weft.program.lower.lower import lower
from weft.report.canvas import FAINT, INK, sheet
from weft.report.words import part_words, seconds, size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TIERS = {"device": "#2f9e63", "edge": "#2f6fde", "cloud": "#8a63d2"}
ARROW = "#3e4c59"
LETTER = 0.085  # inches, of a block's text
MANY_LAYERS = 30  # above this, columns carry numbers instead of names
MANY_ARROWS = 24  # above this, arrows would hide the blocks; the lower panel still has the bytes


@dataclass
class Flow:
    """The bytes that cross one cut from one device to another in a step, and that come back."""

    source: str
    dest: str
    at: int  # the cut: 0 the samples, the number of layers the answer
    forward: int = 0  # bytes
    backward: int = 0


def flows(plan: Plan) -> list[Flow]:
    """The plan's messages, summed over all micro-batches. Labels and weights are left out."""
    by_cut: dict[tuple[str, str, int], Flow] = {}
    for device, code in lower(plan).code.items():
        for send in code:
            if not isinstance(send, Send) or send.tensor.kind not in ("act", "grad"):
                continue
            back = send.tensor.kind == "grad"
            source, dest = (send.dest, device) if back else (device, send.dest)
            key = (source, dest, send.tensor.at)
            flow = by_cut.setdefault(key, Flow(*key))
            if back:
                flow.backward += send.bytes
            else:
                flow.forward += send.bytes
    return list(by_cut.values())


def draw_plan(plan: Plan, path: str | Path) -> None:
    """Draws which device holds which layers, and what crosses which cut."""
    rows = {name: index for index, name in enumerate(plan.devices)}
    columns = max(len(plan.profile.layers), *(s.layers[1] + 1 for s in plan.shards), 1)
    channels = plan.predicted.transfer_bytes if plan.predicted else {}
    channels = {name: moved for name, moved in channels.items() if moved}
    heights = [0.9 + 1.0 * len(rows), *([0.75 + 0.36 * len(channels)] if channels else [])]
    width = min(20.0, 4.5 + max(7.0, 0.75 * columns))
    with sheet(Path(path), width, 1.4 + sum(heights), heights) as axes:
        grid(axes[0], plan, rows, columns)
        for shard in plan.shards:
            draw_block(axes[0], plan, shard, rows[shard.device], (width - 3) / columns)
        arrows = flows(plan)
        for flow in arrows if len(arrows) <= MANY_ARROWS else []:
            draw_flow(axes[0], plan, flow, rows, columns)
        legend(axes[0], plan, arrows)
        if channels:
            draw_channels(axes[1], plan, channels)


def grid(axes: Axes, plan: Plan, rows: dict[str, int], columns: int) -> None:
    """One row for each device, one column for each layer."""
    layers = plan.profile.layers
    few = columns <= MANY_LAYERS and len(layers) >= columns
    names = [layer.name for layer in layers[:columns]] if few else [str(n) for n in range(columns)]
    turn = few and max(map(len, names)) * columns > 70
    axes.set_xticks([n + 0.5 for n in range(columns)], names, fontsize=10)
    if turn:
        for label in axes.get_xticklabels():
            label.set(rotation=35, ha="right", rotation_mode="anchor")
    axes.set_xlabel("layers" if few else "layers, by number")
    axes.set_yticks(range(len(rows)), [row_label(plan, name) for name in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    margin = data_margin(columns)
    axes.set_xlim(-2 * margin, columns + margin)
    for name, row in rows.items():
        axes.barh(row, columns, 0.52, 0, color="#f3f5f7", zorder=0)
        if name in plan.sources:
            axes.plot(-margin, row, marker="o", ms=11, color=INK, zorder=5)
        if name in plan.sources and any(s.device == name and s.layers[0] == 0 for s in plan.shards):
            axes.plot([-margin, 0.07], [row, row], color=ARROW, lw=1.6, zorder=1)
    axes.set_title(plan_title(plan), pad=34)


def data_margin(columns: int) -> float:
    """The distance between the data and the first layer, in layers."""
    return max(0.35, 0.035 * columns)


def plan_title(plan: Plan) -> str:
    """The heading: strategy, network, batch, predicted time."""
    text = f"{plan.strategy}: {plan.model}, batch {plan.batch}"
    if plan.predicted is None:
        return text
    unit = "a step" if plan.mode == "train" else "an answer"
    return f"{text}, {seconds(plan.predicted.seconds)} {unit}"


def row_label(plan: Plan, name: str) -> str:
    """A device's name and how long it computes."""
    busy = plan.predicted.compute_s.get(name, 0.0) if plan.predicted else 0.0
    return f"{name}\ncomputes {seconds(busy)}" if busy else name


def fitting(text: str, inches: float) -> str:
    """The text in one line, or one word per line if that fits better; empty if neither fits."""
    for candidate in (text, text.replace(" ", "\n")):
        if max(map(len, candidate.splitlines())) * LETTER < inches:
            return candidate
    return ""


def draw_block(axes: Axes, plan: Plan, shard: Shard, row: int, inches: float) -> None:
    """`inches`: the width of one layer."""
    from matplotlib.patches import FancyBboxPatch

    first, last = shard.layers
    tier = next((d.tier for d in plan.fleet.devices if d.name == shard.device), "device")
    block = FancyBboxPatch(
        (first + 0.07, row - 0.26), last - first + 0.86, 0.52, zorder=2,
        boxstyle="round,pad=0,rounding_size=0.06", fc=TIERS[tier], ec="none",
    )  # fmt: skip
    axes.add_patch(block)
    for edge in range(first + 1, last + 1):  # the cuts that this plan does not use
        for top in (row - 0.26, row + 0.19):
            axes.plot([edge, edge], [top, top + 0.07], color="white", lw=1, alpha=0.6, zorder=3)
    text = fitting(part_words(shard.part, plan.batch), (last - first + 1) * inches)
    axes.text(
        (first + last + 1) / 2, row, text, ha="center", va="center", color="white", fontsize=9.5,
        zorder=4, clip_on=True, linespacing=1.05,
    )  # fmt: skip


def draw_flow(axes: Axes, plan: Plan, flow: Flow, rows: dict[str, int], columns: int) -> None:
    """An arrow from the cut's end in one row to its start in the other, with its bytes."""
    a, b = rows[flow.source], rows[flow.dest]
    side = 1 if b > a else -1
    margin = data_margin(columns)
    start, end = (flow.at - 0.2, a + 0.27 * side), (flow.at + 0.2, b - 0.27 * side)
    if flow.at == 0:
        start = (-margin, a + 0.1 * side)
    if flow.at == columns:  # the answer goes back to the source
        end = (columns + margin / 2, b)
    axes.annotate(
        "", xy=end, xytext=start, zorder=1,
        arrowprops={"arrowstyle": "<|-|>" if flow.backward else "-|>", "color": ARROW, "lw": 1.6,
                    "shrinkA": 0, "shrinkB": 0, "mutation_scale": 13},
    )  # fmt: skip
    words = size(flow.forward)
    if flow.backward not in (0, flow.forward):
        words += f", back {size(flow.backward)}"
    # Next to the arrow's head; at the sheet's edges, on the side with more room.
    x, y, anchor = end[0] + 0.12, end[1] - 0.13 * side, "left"
    if flow.at == 0:
        x, y, anchor = start[0], end[1] - 0.13 * side, "right"
    if flow.at == columns:
        x, y, anchor = start[0] - 0.1, start[1] + 0.13 * side, "right"
    axes.text(x, y, words, fontsize=9, color=ARROW, ha=anchor, va="center", zorder=7)


def legend(axes: Axes, plan: Plan, arrows: list[Flow]) -> None:
    """What the colours and arrows mean."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    used = {d.tier for d in plan.fleet.devices if d.name in plan.devices}
    handles: list[Patch | Line2D] = [Patch(color=TIERS[t], label=t) for t in TIERS if t in used]
    role = "holds the data" if plan.mode == "train" else "asks"
    handles.append(Line2D([], [], marker="o", ms=8, color=INK, ls="", label=role))
    if any(flow.backward for flow in arrows):
        handles.append(Line2D([], [], color=ARROW, lw=1.6, label="bytes per step, each way"))
    elif arrows:
        handles.append(Line2D([], [], color=ARROW, lw=1.6, label="bytes"))
    axes.legend(
        handles=handles, ncols=len(handles), frameon=False, fontsize=10, loc="lower left",
        bbox_to_anchor=(0.0, 1.0), borderaxespad=0.3, handlelength=1.2, columnspacing=1.4,
    )  # fmt: skip


def draw_channels(axes: Axes, plan: Plan, channels: dict[str, int]) -> None:
    """Bytes that cross each channel in one step."""
    names = sorted(channels, key=lambda name: -channels[name])
    most = channels[names[0]]
    for row, name in enumerate(names):
        axes.barh(row, channels[name], 0.62, color="#9fb3c8", zorder=2)
        axes.text(
            channels[name] + most * 0.008, row, size(channels[name]), va="center", fontsize=9.5
        )
    axes.set_yticks(range(len(names)), [name.replace(">", " → ") for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(0, most * 1.12)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.spines["left"].set(visible=True, color=FAINT)
    unit = "step" if plan.mode == "train" else "answer"
    axes.set_title(f"Bytes on each channel per {unit}", fontsize=11, pad=8)
