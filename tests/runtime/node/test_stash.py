"""Versions of weights that minibatches in flight have met: named, limited, and taken up again."""

from __future__ import annotations

import torch
from torch import nn

from weft.graph.capture.module import capture, state_of
from weft.graph.execute import Runner
from weft.graph.optimizers.versions import limited, split_versions
from weft.runtime.node.stash import Stash


def made(count: int) -> tuple[Runner, Stash]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    graph = capture(module, torch.zeros(2, 1, 5, 5))
    runner = Runner(graph.segment(0, len(graph.layers) - 1), state_of(module))
    return runner, Stash(runner, count)


def change(runner: Runner, by: float) -> None:
    with torch.no_grad():
        for tensor in runner.state.values():
            tensor.add_(by)


def test_versions_in_flight_are_taken_up_by_another_stash() -> None:
    runner, stash = made(3)
    for step in (7, 8):
        stash.at(step)
        change(runner, 1)
    memory = {**stash.pending(6), "0.weight/exp_avg": torch.zeros(1)}
    versions, rest = split_versions(memory)
    assert sorted(versions) == [7, 8]
    assert rest.keys() == {"0.weight/exp_avg"}

    other_runner, other = made(3)
    change(other_runner, 50)
    other.restore(versions)
    for step in (7, 8):
        for name, info in runner.segment.state.items():
            if info.trainable:
                mine, theirs = stash.at(step).state[name], other.at(step).state[name]
                assert torch.equal(mine, theirs), (step, name)
    name = next(n for n, info in runner.segment.state.items() if info.trainable)
    assert torch.equal(other.at(9).state[name], other_runner.state[name])  # nobody has met it


def test_a_copy_has_the_buffers_that_the_next_minibatch_has_met() -> None:
    runner, stash = made(3)
    (name,) = (n for n in runner.segment.state if n.endswith("running_mean"))
    before = runner.state[name].clone()
    stash.at(7)
    change(runner, 1)
    assert torch.equal(stash.met(7)[name], before)
    assert not stash.met(8)  # it has not begun
    stash.end(7)
    assert not stash.met(7)


def test_a_device_that_is_fewer_minibatches_ahead_gets_fewer_versions() -> None:
    memory = {f"w/version@{n}": torch.tensor(float(n)) for n in (12, 9, 10, 11)}
    memory["w/version@"] = memory["w/exp_avg"] = torch.zeros(1)
    assert limited(memory, 2).keys() == {"w/version@9", "w/version@10", "w/version@", "w/exp_avg"}
    assert limited(memory, 0).keys() == {"w/version@", "w/exp_avg"}


def test_a_version_of_another_cut_does_not_count() -> None:
    _, stash = made(3)
    stash.restore({7: {"0.weight": torch.zeros(2, 1, 3, 3)}})  # the bias is missing
    assert not stash.pending(6)
