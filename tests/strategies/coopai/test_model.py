"""CoopAI's cost model and search: equal to a plain reading of the formulas, and to exhaustive search."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import InputError
from weft.graph.operators.rows import Rule
from weft.strategies.coopai.geometry import (
    DenseLayer,
    Geometry,
    RowLayer,
    Step,
    Uncut,
    check_rows,
)
from weft.strategies.coopai.model import HEADERS, Speeds, one_device
from weft.strategies.coopai.rows import even_columns
from weft.strategies.coopai.search import best_splits

SPEEDS = Speeds(1e6, 1e6)


@dataclass(frozen=True)
class Conv:
    """A convolution with a pool after it, and the sizes around both."""

    height: int
    width: int  # numbers in a row of the input
    kernel: int
    stride: int
    padding: int
    dilation: int
    pool: int
    step: int
    out_width: int
    flops: float  # per row of the convolution's output

    @property
    def reach(self) -> int:
        return self.dilation * (self.kernel - 1) + 1

    @property
    def convolved(self) -> int:
        return (self.height + 2 * self.padding - self.reach) // self.stride + 1

    @property
    def pooled(self) -> int:
        return (self.convolved - self.pool) // self.step + 1


@dataclass(frozen=True)
class Dense:
    inputs: int
    outputs: int


Net = list[Conv | Dense]


@st.composite
def nets(draw: st.DrawFn, most: int = 6) -> Net:
    net: Net = []
    height, width = draw(st.integers(4, 30)), draw(st.integers(1, 9))
    for _ in range(draw(st.integers(1, most - 1))):
        kernel = draw(st.integers(1, 3))
        conv = Conv(
            height, width, kernel, draw(st.integers(1, 3)), draw(st.integers(0, kernel - 1)),
            draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 2)),
            draw(st.integers(1, 9)), draw(st.integers(1, 999)),
        )  # fmt: skip
        if conv.convolved < 1 or conv.pooled < 1:
            break
        net.append(conv)
        height, width = conv.pooled, conv.out_width
    if not net:
        net = [Conv(height, width, 1, 1, 0, 1, 1, 1, 2, 7.0)]
        height, width = height, 2
    size = height * width
    for _ in range(draw(st.integers(0, most - len(net)))):
        outputs = draw(st.integers(1, 60))
        net.append(Dense(size, outputs))
        size = outputs
    return net


def geometry(net: Net) -> Geometry:
    layers: list[RowLayer | DenseLayer | Uncut] = []
    heights, widths, sizes = {}, {}, {}
    first = net[0]
    assert isinstance(first, Conv)
    heights["v0"], widths["v0"], sizes["v0"] = (
        first.height,
        first.width,
        first.height * first.width,
    )
    for m, layer in enumerate(net, start=1):
        if isinstance(layer, Conv):
            conv = Rule((f"v{m - 1}",), (), layer.stride, layer.padding, layer.reach)
            pool = Rule((f"c{m}",), (), layer.step, 0, layer.pool)
            steps = (
                Step(f"c{m}", (f"v{m - 1}",), conv, layer.flops),
                Step(f"v{m}", (f"c{m}",), pool, 0.0),
            )
            layers.append(RowLayer(steps, layer.flops * layer.convolved, after=False))
            heights |= {f"c{m}": layer.convolved, f"v{m}": layer.pooled}
            widths |= {f"c{m}": 1, f"v{m}": layer.out_width}
            sizes[f"v{m}"] = layer.pooled * layer.out_width
        else:
            before = isinstance(net[m - 2], Conv)
            flops = 2.0 * layer.inputs * layer.outputs
            layers.append(
                DenseLayer(layer.inputs, layer.outputs, flops, f"v{m - 1}" if before else None)
            )
            sizes[f"v{m}"] = layer.outputs
    names = [f"v{m}" for m in range(len(net) + 1)]
    return Geometry(
        "random", tuple(layers), tuple((name,) for name in names), heights, widths, sizes,
        made={name: m - 1 for m, name in enumerate(names)},
        read={name: (m,) for m, name in enumerate(names[:-1])},
    )  # fmt: skip


def even(height: int, k: int) -> list[set[int]]:
    """The remainder's rows go to the last devices."""
    sizes = [height // k + (d >= k - height % k) for d in range(k)]
    ends = [0, *itertools.accumulate(sizes)]
    return [set(range(a, b)) for a, b in itertools.pairwise(ends)]


def under(rows: set[int], stride: int, above: int, reach: int, height: int) -> set[int]:
    """The rows from the first to the last that any window touches."""
    touched = [r * stride - above + n for r in rows for n in range(reach)]
    inside = [r for r in touched if 0 <= r < height]
    return set(range(min(inside), max(inside) + 1)) if inside else set()


def block_seconds(net: Net, i: int, j: int, k: int) -> float:
    """Equations (3) to (5) word for word; inf where layers i..j are no block."""
    convs = [isinstance(layer, Conv) for layer in net[i : j + 1]]
    per_number = 32 * HEADERS * k / SPEEDS.bits_per_s
    if convs == [False]:
        layer = net[i]
        assert isinstance(layer, Dense)
        flops = 2 * layer.inputs * layer.outputs / k
        numbers = min(layer.inputs + layer.outputs / k, layer.inputs / k + layer.outputs)
        return flops / SPEEDS.flops_per_s + numbers * per_number
    if convs == [False, False]:
        one, two = net[i], net[j]
        assert isinstance(one, Dense)
        assert isinstance(two, Dense)
        flops = 2 * (one.inputs * one.outputs + two.inputs * two.outputs) / k
        return flops / SPEEDS.flops_per_s + (one.inputs + two.outputs) * per_number
    if not convs[0] or not all(convs[:-1]):
        return math.inf
    dense = net[j] if not convs[-1] else None
    last = j if dense is None else j - 1
    final, first = net[last], net[i]
    assert isinstance(final, Conv)
    assert isinstance(first, Conv)
    made, needs, flops_of = even(final.pooled, k), [], []
    for d in range(k):
        rows, flops = made[d], 0.0
        for layer in reversed(net[i : last + 1]):
            assert isinstance(layer, Conv)
            convolved = under(rows, layer.step, 0, layer.pool, layer.convolved)
            flops += layer.flops * len(convolved)
            rows = under(convolved, layer.stride, layer.padding, layer.reach, layer.height)
        needs.append(rows)
        flops_of.append(flops)
    own = even(first.height, k) if i else [set()] * k
    seconds = []
    for d in range(k):
        others = set().union(*(needs[other] for other in range(k) if other != d))
        numbers: float = (len(needs[d] - own[d]) + len(own[d] & others)) * first.width
        flops = flops_of[d]
        if dense is not None:
            assert isinstance(dense, Dense)
            numbers += dense.outputs
            flops += 2 * len(made[d]) * final.out_width * dense.outputs
        elif j == len(net) - 1 or isinstance(net[j + 1], Dense):
            numbers += len(made[d]) * final.out_width
        seconds.append(flops / SPEEDS.flops_per_s + numbers * per_number)
    return max(seconds)


def exhaustive(net: Net, k: int, single: bool) -> float:
    """Every way to cut the layers into blocks."""
    found = []
    for cuts in itertools.product([False, True], repeat=len(net) - 1):
        if single and not all(cuts):
            continue
        ends = [m for m, cut in enumerate(cuts) if cut] + [len(net) - 1]
        begins = [0, *(end + 1 for end in ends[:-1])]
        found.append(sum(block_seconds(net, i, j, k) for i, j in zip(begins, ends, strict=True)))
    return min(found)


@settings(deadline=None, max_examples=60)
@given(net=nets(), single=st.booleans())
def test_the_search_equals_exhaustive_search(net: Net, single: bool) -> None:
    splits = best_splits(geometry(net), SPEEDS, 5, single=single)
    assert [split.devices for split in splits] == [1, 2, 3, 4, 5]
    for split in splits[1:]:
        assert split.seconds == pytest.approx(exhaustive(net, split.devices, single))
        assert [b.layers[0] for b in split.blocks] == [
            0,
            *(b.layers[1] + 1 for b in split.blocks[:-1]),
        ]
        again = sum(block_seconds(net, *block.layers, split.devices) for block in split.blocks)
        assert again == pytest.approx(split.seconds), "the blocks are not those of the time"


@given(net=nets())
@settings(deadline=None, max_examples=30)
def test_multi_layer_blocks_are_never_worse_than_single_layers(net: Net) -> None:
    multi = best_splits(geometry(net), SPEEDS, 4)
    single = best_splits(geometry(net), SPEEDS, 4, single=True)
    for a, b in zip(multi, single, strict=True):
        assert a.seconds <= b.seconds * (1 + 1e-9)
        assert all(block.layers[0] == block.layers[1] for block in b.blocks) or a.devices == 1


def test_one_device_pays_for_input_output_and_the_map_before_the_first_dense_layer() -> None:
    net: Net = [Conv(8, 3, 3, 1, 1, 1, 2, 2, 5, 100.0), Dense(20, 7)]
    compute, transfer = one_device(geometry(net), SPEEDS)
    assert compute == pytest.approx((8 * 100 + 2 * 20 * 7) / 1e6)
    assert transfer == pytest.approx((8 * 3 + 7 + 20) * 32 * HEADERS / 1e6)


@given(height=st.integers(1, 40), most=st.integers(2, 9))
@settings(deadline=None, max_examples=30)
def test_shares_are_even_and_the_rest_goes_to_the_last(height: int, most: int) -> None:
    columns = even_columns(most)
    first, end = columns.shares(height)
    for k in range(2, most + 1):
        sizes = (end - first)[columns.of(k - 2)].tolist()
        assert sizes == [len(rows) for rows in even(height, k)]
        assert first[columns.of(k - 2)][0] == 0
        assert end[columns.of(k - 2)][-1] == height


def test_layers_that_nothing_can_cut_are_a_block_for_one_device() -> None:
    net: Net = [Conv(8, 3, 3, 1, 1, 1, 1, 1, 5, 100.0), Conv(8, 5, 3, 1, 1, 1, 1, 1, 2, 50.0)]
    whole = geometry(net)
    mixed = Geometry(
        "mixed", (whole.layers[0], Uncut(999.0)), whole.cuts, whole.heights, whole.widths,
        {**whole.sizes, "v1": 40, "v2": 16}, whole.made, whole.read,
    )  # fmt: skip
    two = best_splits(mixed, SPEEDS, 2)[1]
    assert [(b.layers, b.mode) for b in two.blocks] == [((0, 0), "rows"), ((1, 1), "whole")]


def test_a_network_without_rows_is_refused_with_the_reason() -> None:
    bare = Geometry("mlp", (DenseLayer(4, 2, 16.0, None),), (("a",), ("b",)), {}, {}, {}, {}, {})
    with pytest.raises(InputError, match="mlp has no layer that can be cut by rows"):
        check_rows(bare)
