"""Rounds of sliced inference: the strips put together are the whole network's output."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from weft.errors import InputError
from weft.graph.capture import capture
from weft.graph.execute import Runner
from weft.graph.network import Graph
from weft.graph.sequence import in_sequence
from weft.graph.sliced_state import sliced_state
from weft.models import load
from weft.plan.plan import Part, Shard
from weft.plan.rounds import Round, Strip, Turn
from weft.plan.slicing import Block, even, proportional, rounds_of, shards_of, turn_segment

Network = tuple[Graph, dict[str, Tensor], Tensor, Tensor]  # with its state, an input, the output


def network(module: nn.Module, *shape: int, samples: int = 2) -> Network:
    torch.manual_seed(1)
    module.eval()
    for name, tensor in module.state_dict().items():
        if "running" in name:  # as after training: each channel its own
            tensor.copy_(torch.rand_like(tensor) + 0.5)
    x = torch.randn(samples, *shape)
    with torch.no_grad():
        output = module(x)
    return in_sequence(capture(module, x)), dict(module.state_dict()), x, output


def run_rounds(
    graph: Graph, state: dict[str, Tensor], x: Tensor, rounds: tuple[Round, ...]
) -> dict[str, list[tuple[Strip, Tensor]]]:
    """All rounds in one process. A turn reads exactly its strips of what was given before."""
    source = graph.inputs[0]
    given: dict[str, list[tuple[Strip, Tensor]]] = {
        source: [(Strip(source, 0, x.shape[2] if x.ndim == 4 else x.shape[1], 0), x)]
    }
    for each in rounds:
        fresh: dict[str, list[tuple[Strip, Tensor]]] = {}
        for number, turn in each.numbered.items():
            if number == 1 or number == len(each.turns) + 2:  # the gateway waits for all
                given |= fresh
                fresh = {}
            segment = turn_segment(graph, each, number)
            assert (segment.first, segment.last, segment.part) == (*each.layers, number)
            assert set(segment.inputs) == {strip.value for strip in turn.takes}
            assert set(segment.outputs) == {strip.value for strip in turn.gives}
            inputs = {strip.value: fetched(given, strip) for strip in turn.takes}
            for name, value in segment.inputs.items():
                assert inputs[name].shape[1:] == value.shape[1:]
            own = sliced_state(segment, state)
            assert {n: tuple(t.shape) for n, t in own.items()} == {
                n: s.shape for n, s in segment.state.items()
            }
            if number != 1 and number != len(each.turns) + 2:
                assert turn.state_bytes == sum(s.bytes for s in segment.state.values()), (turn, list(segment.state))
            with torch.no_grad():
                made = Runner(segment, own).forward(inputs)
            for strip in turn.gives:
                tensor = made[strip.value]
                assert tensor.shape[1:] == segment.outputs[strip.value].shape[1:]
                assert strip.size == tensor[0].numel() * 4
                fresh.setdefault(strip.value, []).append((strip, tensor))
            if number == 1:
                given, fresh = given | fresh, {}
        if each.sums:
            given |= fresh
        given |= fresh
    return given


def fetched(given: dict[str, list[tuple[Strip, Tensor]]], wanted: Strip) -> Tensor:
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
    graph, state, x, output = net
    parts = run_rounds(graph, state, x, rounds)[graph.output]
    dim = 2 if output.ndim == 4 else 1
    whole = joined(parts, 0, output.shape[dim], dim)
    torch.testing.assert_close(whole, output, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(whole, output, rtol=1e-4, atol=1e-4 * float(output.abs().max()))


def devices(count: int) -> list[str]:
    return [f"r{n}" for n in range(1, count + 1)]


def chain_of(draw: st.DrawFn) -> tuple[nn.Module, int]:
    """Convolutions and pools of any kind; what is left of the height is at least one."""
    height = start = draw(st.integers(7, 23))
    parts: list[nn.Module] = []
    channels = 2
    for _ in range(draw(st.integers(1, 4))):
        kernel = draw(st.integers(1, 4))
        dilation = draw(st.integers(1, 2))
        padding, stride = draw(st.integers(0, 3)), draw(st.integers(1, 3))
        out = (height + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
        if out < 1:
            break
        made = draw(st.sampled_from([2, 4]))
        groups = draw(st.sampled_from([1, 2]))
        parts.append(nn.Conv2d(channels, made, kernel, stride, padding, dilation, groups))
        parts += draw(st.sampled_from([[], [nn.ReLU()], [nn.BatchNorm2d(made), nn.Tanh()]]))
        channels, height = made, out
        pool, left = pool_of(draw, height)
        if pool is not None:
            parts.append(pool)
            height = left
    return nn.Sequential(*parts) if parts else nn.Sequential(nn.Conv2d(2, 2, 1)), start


def pool_of(draw: st.DrawFn, height: int) -> tuple[nn.Module | None, int]:
    kind = draw(st.sampled_from(["none", "max", "average", "average", "divided"]))
    kernel, stride = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    padding = draw(st.integers(0, kernel // 2))
    ceil = draw(st.booleans())
    spread = draw(st.integers(1, 2)) if kind == "max" else 1
    reach = spread * (kernel - 1) + 1
    if kind == "none" or height + 2 * padding < reach:
        return None, height
    if kind == "max":
        pool: nn.Module = nn.MaxPool2d(kernel, stride, padding, spread, ceil_mode=ceil)
    else:
        divisor = 3 if kind == "divided" else None
        counts = draw(st.booleans())
        pool = nn.AvgPool2d(kernel, stride, padding, ceil, counts, divisor)
    return pool, pool(torch.zeros(1, 1, height, height)).shape[2]


def blocks_of(draw: st.DrawFn, graph: Graph, count: int) -> list[Block]:
    cuts = [0, *draw(st.sets(st.integers(1, max(len(graph.layers) - 1, 1)))), len(graph.layers)]
    blocks = []
    for first, after in itertools.pairwise(sorted(set(cuts))):
        shares: tuple[int, ...] = ()
        if draw(st.booleans()):
            shares = tuple(draw(st.integers(0, 5)) for _ in range(count))
            shares = shares if sum(shares) else ()
        blocks.append(Block((first, after - 1), "rows", shares))
    return blocks


@settings(deadline=None, max_examples=80, derandomize=True)
@given(st.data())
def test_strips_of_any_chain_of_convolutions_and_pools_join_to_the_whole_output(
    data: st.DataObject,
) -> None:
    module, height = chain_of(data.draw)
    net = network(module, 2, height, height - 1)
    graph = net[0]
    low = min(graph.values[layer.nodes[-1].name].shape[2] for layer in graph.layers)
    count = data.draw(st.integers(1, min(low, 6)))
    blocks = blocks_of(data.draw, graph, count)
    overlap, halves = data.draw(st.booleans()), data.draw(st.sampled_from([0.0, 0.5]))
    check(net, rounds_of(graph, blocks, devices(count), "gw", overlap, halves))
