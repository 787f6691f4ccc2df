"""Plans of classes: who holds what, who is near whom, and what is refused."""

from __future__ import annotations

import dataclasses
import itertools

import msgspec
import pytest

from weft.errors import InputError
from weft.fleet.fleet import Device, Fleet, Link
from weft.plans.plan import Part, Plan
from weft.plans.profile import DeviceTimes, LayerCost, Profile
from weft.plans.task import Task
from weft.report.tables import plan_table, render
from weft.simulate.price import candidate_worth
from weft.strategies.decoupled.decide import most_classes
from weft.strategies.decoupled.parts import parts_of
from weft.strategies.decoupled.strategy import decoupled, decoupled_plus, fedavg
from weft.strategies.decoupled.topology import FOUR_OF_FIVE, by_speed

LAYERS = tuple(LayerCost(f"conv{n}", 40_000, 4000, 1e6, 4000) for n in range(5))


def task(*speeds: float, memory_mb: dict[int, float] | None = None, **options: str) -> Task:
    """Peers p0, p1, ... in a row; a layer takes a second divided by the peer's speed."""
    names = [f"p{i}" for i in range(len(speeds))]
    memory = memory_mb or {}
    devices = tuple(Device(n, memory_mb=memory.get(i)) for i, n in enumerate(names))
    links = tuple(Link(pair, 8.0, 8.0) for pair in itertools.pairwise(names))
    head = LayerCost("fc", 400, 40, 1e3, 40)  # ten logits
    profile = Profile(
        "cnn5", 12288, (*LAYERS, head),
        {n: DeviceTimes((1 / s,) * 6, (2 / s,) * 6, (0.0,) * 6)
         for n, s in zip(names, speeds, strict=True)},
    )  # fmt: skip
    return Task(profile, Fleet(devices, links), 8, "train", "p0", lambda plan: 0.0, options)


def test_four_devices_and_ten_classes_are_the_paper_s_setting() -> None:
    plan = decoupled(task(1, 1, 1, 1))
    assert [shard.part.classes for shard in plan.shards] == list(FOUR_OF_FIVE)
    assert all(shard.layers == (0, 5) for shard in plan.shards)
    assert plan.decisions["neighbours"] == {
        "p0": ["p1", "p3"], "p1": ["p0", "p2"], "p2": ["p1", "p3"], "p3": ["p0", "p2"],
    }  # fmt: skip
    assert plan.decisions["shared"] == "ring"
    assert "classes 9, 0, 1, 2, 3" in render(plan_table(plan))


def test_a_peer_computes_its_share_of_the_decoupled_layers() -> None:
    plan = decoupled(task(1, 1, 1, 1, filters="20"))
    # two shared layers, five classes at a fifth of the first decoupled one, a fifth of that later
    expected = 24 * (2 + 5 * 0.2 + 2 * 5 * 0.04 + 5 * 0.2 / 10)
    assert plan.decisions["step_s"]["p0"] == pytest.approx(expected)
    assert fedavg(task(1, 1, 1, 1)).decisions["step_s"]["p0"] == pytest.approx(24 * 6)


def test_layers_may_keep_different_shares_of_their_filters() -> None:
    plan = decoupled(task(1, 1, 1, 1, filters="20,50,10"))
    expected = 24 * (2 + 5 * 0.2 + 5 * 0.2 * 0.5 + 5 * 0.5 * 0.1 + 5 * 0.1 / 10)
    assert plan.decisions["step_s"]["p0"] == pytest.approx(expected)
    assert plan.decisions["filters_percent"] == [20, 50, 10]
    assert decoupled(task(1, 1, 1, 1)).decisions["filters_percent"] == [10, 10, 10]
    # late layers read only a class's own filters: they cost little, and decoupled+ has more there
    plus = decoupled_plus(task(1, 1, 1, 1, prefer="accuracy"))
    assert plus.decisions["filters_percent"] == [10, 19, 19]
    assert [len(held) for held in plus.decisions["sets"].values()] == [8, 8, 8, 8]


def test_options_choose_classes_topology_and_exchange() -> None:
    plan = decoupled(
        task(
            1,
            1,
            1,
            classes="0,1,2,3/3,4,5,6/6,7,8,9,0",
            topology="0-1,1-2",
            rounds="3",
            data="split",
        )
    )
    assert plan.decisions["sets"]["p2"] == [6, 7, 8, 9, 0]
    assert plan.decisions["neighbours"]["p1"] == ["p0", "p2"]
    assert plan.decisions["rounds"] == 3
    assert plan.decisions["data"] == "split"
    pairs = decoupled(task(*[1.0] * 10, overlap="1"))
    assert [shard.part for shard in pairs.shards][9] == Part(classes=(9, 0))


def test_a_plan_of_classes_survives_its_file(tmp_path: object) -> None:
    plan = decoupled(task(1, 1, 1, 1))
    again = msgspec.json.decode(msgspec.json.encode(plan), type=Plan)
    assert again.shards == plan.shards
    assert again.decisions == plan.decisions


def test_decoupled_plus_gives_slow_peers_fewer_classes() -> None:
    plan = decoupled_plus(task(10, 10, 10, 1, prefer="accuracy"))
    sizes = [len(shard.part.classes or ()) for shard in plan.shards]
    assert sizes[3] == 1
    assert min(sizes[:3]) >= 6
    assert {c for shard in plan.shards for c in shard.part.classes or ()} == set(range(10))
    assert plan.decisions["asynchronous"]
    assert plan.decisions["exchange_codec"] == "int8"


def test_decoupled_plus_has_no_more_peers_than_classes_and_takes_the_fastest() -> None:
    """All devices got a class: with 1 class and 8 devices a run took 27 times as long as the paper's."""
    speeds = [1.0, *[10.0] * 10, 2.0]
    plan = decoupled_plus(task(*speeds, prefer="accuracy"))
    assert [shard.device for shard in plan.shards] == [f"p{i}" for i in range(1, 11)]
    assert len(decoupled(task(*speeds)).shards) == 10
    row = ",".join(f"{i}-{i + 1}" for i in range(11))  # links by number mean every device
    assert len(decoupled_plus(task(*speeds, topology=row, prefer="accuracy")).shards) == 12


def test_decoupled_plus_respects_memory() -> None:
    small = task(1, 1, 1, 1, memory_mb={1: 0.4, 2: 0.1}, prefer="accuracy")
    parts = parts_of(small, plus=True)
    assert most_classes(small, "p2", parts) == 0
    limit = most_classes(small, "p1", parts)
    assert 0 < limit < 10
    plan = decoupled_plus(small)
    held = {shard.device: shard.part.classes or () for shard in plan.shards}
    assert "p2" not in held
    assert len(held["p1"]) <= limit
    with pytest.raises(InputError, match="no device has the memory"):
        decoupled_plus(task(1, memory_mb={0: 0.01}))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"overlap": "1"}, "10 peers, but only 4 devices"),
        ({"classes": "0,1/2,3"}, "without an owner"),
        ({"topology": "0-1"}, "not one graph"),
        ({"topology": "star"}, "ring, mesh"),
        ({"data": "some"}, "replicate, split"),
        ({"filters": "0"}, "filters=0"),
        ({"filters": "10,19"}, "filters=10,19 is not allowed; .* or 3 with commas"),
        ({"filters": "10,x,19"}, "filters=10,x,19"),
        ({"last": "9"}, "last=9"),
    ],
)
def test_what_cannot_be_right_is_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        decoupled(task(1, 1, 1, 1, **options))


@pytest.mark.parametrize("copies", [1.0, 2.0, 3.2])
def test_sets_by_speed_hold_every_class_and_neighbours_overlap(copies: float) -> None:
    sets = by_speed(10, [1.0] * 4, copies=copies)
    assert sum(map(len, sets)) >= 10 * copies - 2
    if copies > 1:
        assert all(set(sets[p]) & set(sets[(p + 1) % 4]) for p in range(4))


def test_limits_that_leave_a_class_over_are_refused() -> None:
    with pytest.raises(InputError, match="finds no owner"):
        by_speed(10, [1.0, 1.0], [3, 3])


def test_decoupled_plus_takes_no_longer_than_its_rivals_unless_accuracy_is_preferred() -> None:
    """Computing takes all the time here, and more classes for a peer made a minibatch twice as long."""
    asked = dataclasses.replace(task(1, 1, 1, 1), price=candidate_worth)
    plus, accurate = decoupled_plus(asked), decoupled_plus(task(1, 1, 1, 1, prefer="accuracy"))
    limit = min(asked.price(decoupled(asked)), asked.price(fedavg(asked)))
    assert asked.price(plus) <= limit < asked.price(accurate)
    assert plus.peers is not None
    assert plus.peers.late == "newest"
    with pytest.raises(InputError, match="prefer"):
        decoupled_plus(task(1, 1, prefer="speed"))
