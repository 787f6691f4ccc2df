"""Rounds of sliced inference: the strips put together are the whole network's output."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from weft.errors import InputError
from weft.graph.capture.module import capture
from weft.graph.execute import Runner
from weft.graph.network import Graph, refs
from weft.graph.sequence import in_sequence
from weft.graph.split.divide import kind_of
from weft.graph.split.state import sliced_state
from weft.plans.plan import Part, Shard
from weft.plans.rounds import Round, RoundMode, Strip, Turn
from weft.program.segments import turn_segment
from weft.strategies.coopai.block_turns import even, proportional
from weft.strategies.coopai.slicing import Block, rounds_of, shards_of
from weft.zoo.loading import load

pytestmark = pytest.mark.usefixtures("one_thread")

Given = dict[str, list[tuple[Strip, Tensor]]]
Network = tuple[Graph, dict[str, Tensor], Tensor, Tensor]  # with its state, an input, the output


def network(module: nn.Module, *shape: int) -> Network:
    module.eval()
    torch.manual_seed(1)
    for name, tensor in module.state_dict().items():
        if "running" in name:  # as after training: each channel its own
            tensor.copy_(torch.rand_like(tensor) + 0.5)
    x = torch.randn(2, *shape)
    with torch.no_grad():
        output = module(x)
    return in_sequence(capture(module, x)), dict(module.state_dict()), x, output


def run_rounds(net: Network, rounds: tuple[Round, ...]) -> Given:
    """All rounds in one process. A turn reads exactly its strips of what was given before it."""
    graph, x = net[0], net[2]
    source = graph.inputs[0]
    given: Given = {source: [(Strip(source, 0, x.shape[2 if x.ndim == 4 else 1], 0), x)]}
    for each in rounds:
        before, after = [1], [len(each.turns) + 2]
        for group in (before, range(2, len(each.turns) + 2), after):
            fresh: Given = {}
            for number in group:
                if number in each.numbered:
                    run_turn(net, each, number, given, fresh)
            given |= fresh  # the turns of a round do not see each other's strips
    return given


def run_turn(net: Network, each: Round, number: int, given: Given, fresh: Given) -> None:
    turn = each.numbered[number]
    segment = turn_segment(net[0], each, number)
    assert (segment.first, segment.last, segment.part) == (*each.layers, number)
    assert [strip.value for strip in turn.takes] == list(segment.inputs)
    assert [strip.value for strip in turn.gives] == list(segment.outputs)
    assert len(turn.work) == each.layers[1] - each.layers[0] + 1
    inputs = {strip.value: fetched(given, strip) for strip in turn.takes}
    state = sliced_state(segment, net[1])
    assert {n: tuple(t.shape) for n, t in state.items()} == {
        n: s.shape for n, s in segment.state.items()
    }
    assert turn.state_bytes == sum(s.bytes for s in segment.state.values())
    with torch.no_grad():
        made = Runner(segment, state).forward(inputs)
    for strip in (*turn.takes, *turn.gives):
        tensor = (inputs | made)[strip.value]
        value = (segment.inputs | segment.outputs)[strip.value]
        assert tensor.shape[1:] == value.shape[1:]
        assert strip.size == value.bytes
    for strip in turn.gives:
        fresh.setdefault(strip.value, []).append((strip, made[strip.value]))


def fetched(given: Given, wanted: Strip) -> Tensor:
    """A strip of what was given; parts of a sum are added."""
    parts = given[wanted.value]
    if wanted.value.endswith(":sum"):
        return torch.stack([tensor for _, tensor in parts]).sum(0)
    return joined(parts, wanted.first, wanted.last, wanted.dim)


def joined(parts: list[tuple[Strip, Tensor]], first: int, last: int, dim: int) -> Tensor:
    parts = sorted(parts, key=lambda part: part[0].first)
    for (one, _), (two, _) in itertools.pairwise(parts):
        assert one.last == two.first, "strips must lie side by side"
    start = parts[0][0].first
    assert start <= first < last <= parts[-1][0].last
    return torch.cat([tensor for _, tensor in parts], dim).narrow(dim, first - start, last - first)


def check(net: Network, rounds: tuple[Round, ...]) -> None:
    graph, _, _, output = net
    parts = run_rounds(net, rounds)[graph.output]
    dim = 2 if output.ndim == 4 else 1
    whole = joined(parts, 0, output.shape[dim], dim)
    torch.testing.assert_close(whole, output, rtol=1e-4, atol=1e-4 * float(output.abs().max()))


def devices(count: int) -> list[str]:
    return [f"r{n}" for n in range(1, count + 1)]


def cut_anywhere(draw: st.DrawFn, first: int, last: int) -> list[tuple[int, int]]:
    """Layers first..last in runs of any length."""
    cuts = draw(st.sets(st.integers(first + 1, last))) if first < last else set()
    return [(a, b - 1) for a, b in itertools.pairwise([first, *sorted(cuts), last + 1])]


def any_shares(draw: st.DrawFn, count: int) -> tuple[int, ...]:
    shares = tuple(draw(st.integers(0, 5)) for _ in range(count))
    return shares if sum(shares) and draw(st.booleans()) else ()


@settings(deadline=None, max_examples=120, derandomize=True)
@given(st.data())
def test_strips_of_any_chain_of_convolutions_and_pools_join_to_the_whole_output(
    any_chain: Callable[[], Any], graph_of: Callable[..., Graph], data: st.DataObject
) -> None:
    module, x = data.draw(any_chain())
    with torch.no_grad():
        graph, output = graph_of(module, x), module(x)
    low = min(graph.values[layer.nodes[-1].name].shape[2] for layer in graph.layers)
    count = data.draw(st.integers(1, min(low, 10)))
    runs = cut_anywhere(data.draw, 0, len(graph.layers) - 1)
    blocks = [Block(run, "rows", any_shares(data.draw, count)) for run in runs]
    overlap, halves = data.draw(st.booleans()), data.draw(st.sampled_from([0.0, 0.5]))
    rounds = rounds_of(graph, blocks, devices(count), "gw", overlap, halves)
    check((graph, dict(module.state_dict()), x, output), rounds)


def tail_blocks(draw: st.DrawFn, first: int, last: int, count: int) -> list[Block]:
    """Fully connected layers first..last, each in any mode."""
    blocks: list[Block] = []
    while first <= last:
        modes: list[RoundMode] = ["model", "data", "whole", *(["hybrid"] if first < last else [])]
        mode = draw(st.sampled_from(modes))
        after = first + 1 + (mode == "hybrid")
        blocks.append(Block((first, after - 1), mode, any_shares(draw, count)))
        first = after
    return blocks


@settings(deadline=None, max_examples=80, derandomize=True)
@given(st.data())
def test_fully_connected_layers_in_any_mode_give_the_whole_output(
    graph_of: Callable[..., Graph], data: st.DataObject
) -> None:
    draw = data.draw
    bias, channels = draw(st.booleans()), 3
    torch.manual_seed(draw(st.integers(0, 3)))
    module = nn.Sequential(
        nn.Conv2d(2, channels, 3, padding=1), nn.ReLU(), nn.Conv2d(channels, channels, 3, 2, 1),
        nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(), nn.Linear(3 * 5 * 3, 11, bias), nn.ReLU(),
        nn.Dropout(), nn.Linear(11, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Linear(12, 9, bias),
        nn.Softmax(1),
    ).eval()  # fmt: skip
    x = torch.randn(2, 2, 20, 12)
    with torch.no_grad():
        graph, output = graph_of(module, x), module(x)
    count = draw(st.integers(1, 5))
    if draw(st.booleans()):
        run = (draw(st.integers(0, 1)), 2)
        blocks = [Block((0, 0), "rows")] if run[0] else []
        blocks.append(Block(run, "rows+data", any_shares(draw, count)))
    else:
        blocks = [Block(run, "rows") for run in cut_anywhere(draw, 0, 1)]
        blocks += tail_blocks(draw, 2, 2, count)
    blocks += tail_blocks(draw, 3, 4, count)
    rounds = rounds_of(graph, blocks, devices(count), "gw", draw(st.booleans()))
    check((graph, dict(module.state_dict()), x, output), rounds)
    for each in rounds:
        for layer in range(each.layers[0], each.layers[1] + 1):
            share = sum(turn.work[layer - each.layers[0]] for turn in each.turns)
            assert share > 1 - 1e-9  # halos are computed twice, nothing is left out
            if layer > 1:
                assert share == pytest.approx(1)


# Small inputs, but more than one row at the end; the large ones for fewer numbers of devices.
ZOO = {
    "alexnet": ((3, 127, 63), range(1, 11)),
    "vgg16": ((3, 96, 32), (1, 2, 5, 10)),
    "yolov2": ((3, 160, 32), (1, 4, 10)),
    "resnet18": ((3, 96, 33), range(1, 11)),
    "googlenet": ((3, 96, 32), (1, 3, 10)),
}


@pytest.mark.parametrize("name", ZOO)
def test_the_zoo_networks_give_the_same_output_for_any_number_of_devices(name: str) -> None:
    shape, counts = ZOO[name]
    net = network(load(name, shape, 10)[0], *shape)
    graph = net[0]
    count = len(graph.layers)
    units = next((n for n in range(count) if kind_of(graph, n) == "units"), count)
    for k in counts:
        size = (k - 1) % 4 + 1  # layers per block
        blocks = [
            Block((n, min(n + size, units) - 1), "rows", spread(graph, min(n + size, units), k))
            for n in range(0, units, size)
        ]
        blocks += [Block((n, n), "model" if k % 2 else "data") for n in range(units, count)]
        check(net, rounds_of(graph, blocks, devices(k), "gw", overlap=k % 3 == 0))


def spread(graph: Graph, after: int, count: int) -> tuple[int, ...]:
    """Even shares; where a map has fewer rows than there are devices, the first ones get none."""
    nodes = [node for layer in graph.layers[:after] for node in layer.nodes]
    rows = next(
        v.shape[2] for n in reversed(nodes) if (v := graph.values[n.name]).shape[2:3] > (1,)
    )
    return tuple(last - first for first, last in even(rows, count))


def branches(*shape: int) -> Network:
    class Branches(nn.Module):
        """Two strides, a skip over three layers, a constant, a map that is read much later."""

        def __init__(self) -> None:
            super().__init__()
            self.stem, self.one = nn.Conv2d(2, 4, 3, 1, 1), nn.Conv2d(4, 4, 3, 2, 1)
            self.short = nn.Conv2d(4, 4, 1, 2)
            self.two, self.three = nn.Conv2d(4, 4, 3, 1, 1), nn.Conv2d(4, 4, 1)
            self.scale, self.last = nn.Parameter(torch.rand(4, 1, 1)), nn.Conv2d(8, 2, 3, 1, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.stem(x)) * torch.full((1,), 0.5)
            y = self.three(self.two(self.one(x))) * self.scale + self.short(x)
            x = nn.functional.avg_pool2d(x, 3, 2, 1, count_include_pad=False)
            result: Tensor = self.last(torch.cat([x, y], 1))
            return result

    return network(Branches(), *shape)


def test_values_that_pass_a_round_untouched_are_no_matter_of_it() -> None:
    net = branches(2, 13, 9)
    graph = net[0]
    blocks = [Block((n, n), "rows") for n in range(len(graph.layers))]
    rounds = rounds_of(graph, blocks, devices(3), "gw")
    check(net, rounds)
    check(net, rounds_of(graph, blocks, devices(3), "gw", overlap=True))
    for each, layer in zip(rounds, graph.layers, strict=True):
        made = {node.name for node in layer.nodes}
        read = {name for node in layer.nodes for name in refs(node)} - made - set(graph.state)
        for turn in each.turns:
            assert {strip.value for strip in turn.takes} == read
            assert {strip.value for strip in turn.gives} <= made
    assert max(len(names) for names in graph.cuts) > 1


def test_even_rows_and_the_remainder_to_the_last() -> None:
    assert even(7, 3) == [(0, 2), (2, 4), (4, 7)]
    assert even(6, 4) == [(0, 1), (1, 2), (2, 4), (4, 6)]
    assert proportional(6, (2, 4)) == [(0, 2), (2, 6)]
    assert proportional(3, (2, 4)) == [(0, 1), (1, 3)]
    assert proportional(5, (0, 1, 0, 1)) == [(0, 0), (0, 3), (3, 3), (3, 5)]


def small(graph_of: Callable[..., Graph]) -> Graph:
    module = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1),
        nn.Flatten(), nn.Linear(2 * 8 * 4, 6), nn.Linear(6, 4),
    )  # fmt: skip
    return graph_of(module, torch.zeros(2, 1, 8, 4))


def test_two_devices_take_their_neighbours_rows(graph_of: Callable[..., Graph]) -> None:
    graph = small(graph_of)
    blocks = [Block((0, 1), "rows"), Block((2, 3), "rows+data"), Block((4, 4), "model")]
    first, second, third = rounds_of(graph, blocks, ["a", "b"], "gw")
    # the picture in weft.plans.rounds
    assert [(t.takes[0].first, t.takes[0].last) for t in first.turns] == [(0, 6), (2, 8)]
    assert [(t.gives[0].first, t.gives[0].last) for t in first.turns] == [(0, 4), (4, 8)]
    assert [t.work for t in first.turns] == [(5 / 8, 4 / 8)] * 2
    assert second.sums
    assert [t.places for t in second.turns] == [(0, 4), (4, 8)]
    assert [t.takes[0].last - t.takes[0].first for t in second.turns] == [5, 5]
    assert [(s.value, s.size) for s in second.turns[0].gives] == [("n4:sum", 24)]
    assert second.after is not None
    assert [s.value for s in second.after.takes] == ["n4:sum"]
    assert second.after.work == (0.0, 0.0)
    assert third.turns[0].takes == (Strip("n4", 0, 6, 4, 1),)
    assert shards_of((first, second, third)) == (
        Shard("a", (0, 1), Part(rows=(0, 4))), Shard("b", (0, 1), Part(rows=(4, 8))),
        Shard("a", (2, 3), Part(rows=(0, 4))), Shard("b", (2, 3), Part(rows=(4, 8))),
        Shard("a", (4, 4), Part(outputs=(0, 2))), Shard("b", (4, 4), Part(outputs=(2, 4))),
    )  # fmt: skip


def test_with_overlap_the_inner_rows_come_first_and_need_nobody(
    graph_of: Callable[..., Graph],
) -> None:
    blocks = [Block((n, n), "rows") for n in range(3)]
    blocks += [Block((3, 3), "data"), Block((4, 4), "data")]
    rounds = rounds_of(small(graph_of), blocks, ["a", "b"], "gw", overlap=True)

    def rows(turn: Turn) -> tuple[int, int, int, int]:
        (take,), (give,) = turn.takes, turn.gives
        return take.first, take.last, give.first, give.last

    assert [rows(t) for t in rounds[0].turns] == [(0, 5, 0, 4), (3, 8, 4, 8)]
    assert [t.device for t in rounds[1].turns] == ["a", "a", "b", "b"]
    assert [rows(t) for t in rounds[1].turns] == [
        (0, 4, 0, 3), (2, 5, 3, 4), (4, 8, 5, 8), (3, 6, 4, 5),
    ]  # fmt: skip
    assert shards_of(rounds)[2].part == Part(rows=(0, 4))
    some = rounds_of(small(graph_of), blocks, ["a", "b"], "gw", [False, False, True, True, True])
    assert [len(each.turns) for each in some] == [2, 2, 4, 2, 2]


def test_the_first_round_goes_by_halves_if_that_costs_little(
    graph_of: Callable[..., Graph],
) -> None:
    graph = small(graph_of)
    rest: list[Block] = [Block((2, 2), "rows"), Block((3, 4), "hybrid")]
    cheap = rounds_of(graph, [Block((0, 1), "rows"), *rest], ["a"], "gw", True, halves=0.2)
    assert [t.gives[0].first for t in cheap[0].turns] == [0, 4]
    dear = rounds_of(graph, [Block((0, 1), "rows"), *rest], ["a"], "gw", True, halves=0.1)
    assert len(dear[0].turns) == 1


def test_one_device_has_whole_layers(graph_of: Callable[..., Graph]) -> None:
    blocks = [Block((0, 2), "rows"), Block((3, 4), "whole")]
    rounds = rounds_of(small(graph_of), blocks, ["a"], "gw")
    assert shards_of(rounds) == (Shard("a", (0, 2)), Shard("a", (3, 4)))
    blocks[1] = Block((3, 4), "whole", (0, 1))
    assert rounds_of(small(graph_of), blocks, ["a", "b"], "gw")[1].turns[0].device == "b"


def test_a_device_without_share_has_no_turn(graph_of: Callable[..., Graph]) -> None:
    blocks = [Block((0, 2), "rows", (3, 0, 5)), Block((3, 3), "model", (0, 6, 0))]
    blocks.append(Block((4, 4), "model"))
    rounds = rounds_of(small(graph_of), blocks, ["a", "b", "c"], "gw")
    assert [[t.device for t in each.turns] for each in rounds[:2]] == [["a", "c"], ["b"]]


@pytest.mark.parametrize(
    ("blocks", "count", "words"),
    [
        ([Block((0, 4), "whole")], 0, "name at least one"),
        ([Block((0, 2), "rows"), Block((3, 4), "hybrid")], 9, "9 devices for 8 rows of layer layer2: "
         "use at most 8"),
        ([Block((0, 2), "rows"), Block((3, 4), "hybrid")], 7, "7 devices for 6 outputs of layer"),
        ([Block((0, 2), "rows")], 2, "end at layer 3 of 5"),
        ([Block((0, 1), "rows"), Block((3, 4), "hybrid")], 2, "without gap"),
        ([Block((0, 2), "rows", (1, 1, 1)), Block((3, 4), "hybrid")], 2, "one number for each"),
        ([Block((0, 2), "rows", (0, 0)), Block((3, 4), "hybrid")], 2, "one number for each"),
    ],
)  # fmt: skip
def test_what_cannot_be_shared_out_is_refused_with_a_way_out(
    blocks: list[Block], count: int, words: str, graph_of: Callable[..., Graph]
) -> None:
    with pytest.raises(InputError, match=words):
        rounds_of(small(graph_of), blocks, devices(count), "gw")


def test_rounds_are_plain_data(graph_of: Callable[..., Graph]) -> None:
    rounds = rounds_of(
        small(graph_of), [Block((0, 3), "rows+data"), Block((4, 4), "data")], ["a", "b"], "g"
    )
    assert msgspec.json.decode(msgspec.json.encode(rounds), type=tuple[Round, ...]) == rounds
