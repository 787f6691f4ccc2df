"""Numbers with units for people: `1.23 s`, `45.6 ms`, `1.5 MB`."""

from __future__ import annotations

from weft.plans.plan import Part, Plan, Shard


def seconds(value: float) -> str:
    """Three significant digits with the unit that fits; powers of 1000, as for bits on a link."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if value * factor >= 0.9995:  # below this, three digits still show less than 1.00
            return f"{digits(value * factor)} {unit}"
    return f"{digits(value * 1e9)} ns" if value > 0 else "0 s"


def size(value: float) -> str:
    """Bytes with their unit, in powers of 1000, as for links."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= factor * 0.9995:
            return f"{digits(value / factor)} {unit}"
    return f"{value:.0f} B"


def count(value: float) -> str:
    """Operations or parameters: 1.24 G, 44.4 k."""
    for unit, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= factor * 0.9995:
            return f"{digits(value / factor)} {unit}"
    return f"{value:.0f}"


def digits(value: float) -> str:
    """Three significant digits, never in exponent form: 0.0123, 1.23, 45.6, 789, 12346."""
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}" if value >= 0.1 else f"{value:.3g}"


def layer_range(plan: Plan, shard: Shard) -> str:
    """`conv1 to fc2 (0-4)`; numbers only if the profile has no names."""
    first, last = shard.layers
    if first == last:
        return f"{layer_name(plan, first)} ({first})"
    return f"{layer_name(plan, first)} to {layer_name(plan, last)} ({first}-{last})"


def layer_name(plan: Plan, index: int) -> str:
    """The name of a layer, or its number if it has none."""
    layers = plan.profile.layers
    return layers[index].name if index < len(layers) else f"layer {index}"


def part_words(part: Part, batch: int) -> str:
    """The part of its layers that a shard computes, in a few words: `80 samples (0:80)`, `rows 0:56`."""
    words: list[str] = []
    if part.samples is not None and (part.samples, part.offset) != (batch, 0):
        words.append(f"{part.samples} samples ({part.offset}:{part.offset + part.samples})")
    if part.rows is not None:
        words.append(f"rows {part.rows[0]}:{part.rows[1]}")
    if part.outputs is not None:
        words.append(f"outputs {part.outputs[0]}:{part.outputs[1]}")
    if part.inputs is not None:
        words.append(f"inputs {part.inputs[0]}:{part.inputs[1]}")
    if part.units is not None:
        words.append(f"{len(part.units)} units")
    if part.classes is not None:
        names = [str(c) for c in part.classes]
        words.append("classes " + (", ".join(names) if len(names) <= 8 else f"({len(names)})"))
    return ", ".join(words) or ("all" if batch == 1 else f"all {batch} samples")
