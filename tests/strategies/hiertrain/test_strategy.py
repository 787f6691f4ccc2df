"""HierTrain's plan is the optimum of its paper's model: nothing in the whole search space is faster."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from weft.cli import app
from weft.errors import InputError
from weft.fleet.fleet import Device, Fleet, Link
from weft.fleet.parse import dump_fleet
from weft.plans.derive import save_profile
from weft.plans.plan import Part, Plan, Shard
from weft.plans.profile import DeviceTimes, LayerCost, Profile
from weft.plans.registry import make_plan
from weft.plans.task import Task
from weft.strategies.hiertrain.model import Cells
from weft.strategies.hiertrain.search import fastest_split
from weft.strategies.hiertrain.strategy import role_shards

WORKERS = ("pi", "nuc", "cloud")
# Every (b_o, b_s, b_l) of a batch, as three columns.
Shares = tuple[np.ndarray, np.ndarray, np.ndarray]


def simplex(batch: int) -> Shares:
    b_o, b_s = (axis.ravel() for axis in np.indices((batch + 1, batch + 1)))
    inside = b_o + b_s <= batch
    return b_o[inside], b_s[inside], batch - b_o[inside] - b_s[inside]


def paper_seconds(
    task: Task, roles: tuple[str, str, str], m_s: int, m_l: int, shares: Shares
) -> np.ndarray:
    """T as the paper writes it, in bits and bits per second; infinite where m = 0 but b > 0."""
    profile, batch, n = task.profile, task.batch, len(task.profile.layers)
    b_o, b_s, b_l = shares

    def bits_per_s(a: str, b: str) -> float:
        rates = [8 * hop.bytes_per_s for hop in task.fleet.route(a, b)]
        if task.options.get("route", "min") == "min":
            return min(rates)
        return 1 / sum(1 / rate for rate in rates)

    def enter(j: str) -> float:
        return 0.0 if j == task.source else 8 * profile.input_bytes / bits_per_s(task.source, j)

    def forward(j: str, a: int, b: int) -> float:
        times = profile.devices[j]
        return sum(times.forward_s[a:b]) + sum(times.forward_call_s[a:b]) / batch

    def backward(j: str, a: int, b: int) -> float:
        times = profile.devices[j]
        return sum(times.backward_s[a:b]) + sum(times.backward_call_s[a:b]) / batch

    def update(j: str, m: int) -> float:
        return sum(profile.devices[j].update_s[:m])

    def output(m: int) -> float:
        return 8 * profile.layers[m - 1].output_bytes if m else 0.0

    def exchange(j: str, m: int) -> float:
        bits = 8 * sum(layer.param_bytes for layer in profile.layers[:m])
        return bits / bits_per_s(j, o) + bits / bits_per_s(o, j)

    o, s, l = roles  # noqa: E741 - the paper's letter
    total = np.maximum.reduce(
        [
            (enter(o) + forward(o, 0, m_s)) * b_o,
            (enter(s) + forward(s, 0, m_s) + output(m_s) / bits_per_s(s, o)) * b_s,
            (enter(l) + forward(l, 0, m_s)) * b_l,
        ]
    )
    total = total + np.maximum.reduce(
        [
            backward(o, 0, m_s) * b_o,
            (backward(s, 0, m_s) + output(m_s) / bits_per_s(o, s)) * b_s,
            backward(l, 0, m_s) * b_l,
        ]
    )
    total = total + np.maximum(
        forward(o, m_s, m_l) * (b_o + b_s),
        (forward(l, m_s, m_l) + output(m_l) / bits_per_s(l, o)) * b_l,
    )
    total = total + np.maximum(
        backward(o, m_s, m_l) * (b_o + b_s),
        (backward(l, m_s, m_l) + output(m_l) / bits_per_s(o, l)) * b_l,
    )
    total = total + batch * (forward(o, m_l, n) + backward(o, m_l, n))
    total = total + max(update(o, n), update(s, m_s), update(l, m_l))
    total = total + max(exchange(s, m_s), exchange(l, m_l))
    empty = (b_s > 0 if m_s == 0 else False) | (b_l > 0 if m_l == 0 else False)
    return np.where(empty, np.inf, total)


def brute_force(task: Task) -> float:
    """The least T over all roles, all m_s <= m_l and the whole integer simplex."""
    shares = simplex(task.batch)
    layers = len(task.profile.layers)
    return min(
        float(paper_seconds(task, roles, m_s, m_l, shares).min())
        for roles in itertools.permutations(WORKERS)
        for m_s, m_l in itertools.combinations_with_replacement(range(layers + 1), 2)
    )


def check(task: Task) -> Plan:
    """The plan, after: its decisions are allowed, say their own T, and no others are faster."""
    plan = make_plan("hiertrain", task)
    found = plan.decisions
    roles = tuple(found["roles"][role] for role in "osl")
    assert sorted(roles) == sorted(WORKERS)
    assert 0 <= found["m_s"] <= found["m_l"] <= len(task.profile.layers)
    shares = tuple(np.array([found[key]]) for key in ("b_o", "b_s", "b_l"))
    assert all(share >= 0 for share in shares)
    assert sum(shares) == task.batch
    (own,) = paper_seconds(task, roles, found["m_s"], found["m_l"], shares)  # type: ignore[arg-type]
    assert found["model_s"] == pytest.approx(own, rel=1e-12, abs=0)
    assert own == pytest.approx(brute_force(task), rel=1e-12, abs=0)
    return plan


# Many equal and extreme values: ties, free layers, free links, slopes far apart.
SECONDS = st.sampled_from([0.0, 0.0, 1.0, 1.0, 2.0, 3.0, 1e-9, 1e6]) | st.floats(0, 5)
BYTES = st.sampled_from([0, 0, 1, 1000, 10**9]) | st.integers(0, 5000)
MBPS = st.sampled_from([0.008, 0.008, 1e-6, 1e6]) | st.floats(1e-3, 0.2)
LAYER = st.builds(LayerCost, st.just("layer"), BYTES, BYTES)


@st.composite
def tasks(draw: st.DrawFn) -> Task:
    layers = draw(st.integers(1, 6))
    row = st.tuples(*[SECONDS] * layers)
    calls = st.just(()) | row
    times = st.builds(DeviceTimes, row, row, row, calls, calls)
    if draw(st.booleans()):  # equal devices
        devices = dict.fromkeys(WORKERS, draw(times))
    else:
        devices = {name: draw(times) for name in WORKERS}
    links = [Link(pair, draw(MBPS), draw(MBPS)) for pair in itertools.pairwise(WORKERS)]
    if draw(st.booleans()):
        links.append(Link(("pi", "cloud"), draw(MBPS), draw(MBPS)))
    costs = tuple(draw(LAYER) for _ in range(layers))
    return Task(
        profile=Profile("random", draw(BYTES), costs, devices),
        fleet=Fleet(three_devices(), tuple(links)),
        batch=draw(st.integers(1, 12)),
        mode="train",
        source="pi",
        price=lambda plan: 0.0,
        options={"route": draw(st.sampled_from(["min", "store_and_forward"]))},
    )


def three_devices() -> tuple[Device, ...]:
    return Device("pi"), Device("nuc", "edge"), Device("cloud", "cloud")


@settings(max_examples=300, deadline=None)
@given(task=tasks())
def test_it_equals_brute_force_over_roles_layers_and_samples(task: Task) -> None:
    plan = check(task)
    assert plan.route == task.options["route"]


def large_task(seed: int, route: str) -> Task:
    """34 layers whose cuts shrink with depth, on devices whose speeds are not far apart."""
    random = np.random.default_rng(seed)
    layers = 34

    def row(scale: float) -> tuple[float, ...]:
        return tuple((scale * random.uniform(0.2, 1.8, layers)).tolist())

    costs = tuple(
        LayerCost("layer", int(random.integers(0, 50_000)), int(random.integers(1, 200_000) / m))
        for m in range(1, layers + 1)
    )
    devices = {
        name: DeviceTimes(row(0.02 / speed), row(0.04 / speed), row(0.001 / speed))
        for name, speed in zip(WORKERS, random.uniform(1, 8, 3), strict=True)
    }
    links = (Link(("pi", "nuc"), 5, 4), Link(("nuc", "cloud"), *random.uniform(1, 9, 2)))
    fleet = Fleet(three_devices(), links)
    profile = Profile("large", 12_288, costs, devices)
    return Task(profile, fleet, 128, "train", "pi", lambda plan: 0.0, {"route": route})


@pytest.mark.parametrize(
    ("seed", "route"), [(1, "min"), (2, "store_and_forward"), (3, "store_and_forward")]
)
def test_it_equals_brute_force_on_34_layers_and_128_samples(seed: int, route: str) -> None:
    check(large_task(seed, route))


def alike_cells(seed: int) -> Cells:
    """Cells that are nearly the same, with slopes of one size: hard to round, hard to drop."""
    random = np.random.default_rng(seed)
    count, spread = int(random.integers(1, 200)), random.choice([0.0, 1e-3, 0.1, 0.5])

    def slopes(rows: int) -> np.ndarray:
        middle = random.uniform(0.0, 2.0, (rows, 1)) * (random.random((rows, 1)) < 0.9)
        return np.asarray(middle * random.uniform(1 - spread, 1 + spread, (rows, count)))

    return Cells(
        batch=int(random.integers(1, 24)),
        roles=np.zeros((3, count), dtype=np.int64),
        m_s=np.ones(count, dtype=np.int64),
        m_l=np.ones(count, dtype=np.int64),
        const=slopes(1)[0],
        first=slopes(6),
        rest=slopes(4),
    )


@pytest.mark.parametrize("block", range(8))
def test_the_search_is_exact_where_cells_are_alike(block: int) -> None:
    for seed in range(100 * block, 100 * block + 100):
        cells = alike_cells(seed)
        found = fastest_split(cells)
        every = cells.seconds(*(share[:, None] for share in simplex(cells.batch)))
        assert found.seconds == pytest.approx(every.min(), rel=1e-12, abs=0), seed
        shares = (np.array([float(b)]) for b in (found.b_o, found.b_s, found.b_l))
        assert found.seconds == pytest.approx(cells.seconds(*shares)[found.cell]), seed


def splits(layers: int) -> Iterator[tuple[int, int, tuple[int, int, int]]]:
    for m_s, m_l in itertools.combinations_with_replacement(range(layers + 1), 2):
        for b_o, b_s, b_l in zip(*(column.tolist() for column in simplex(3)), strict=True):
            if not (b_s and m_s == 0) and not (b_l and m_l == 0):
                yield m_s, m_l, (b_o, b_s, b_l)


def test_the_shards_cover_every_layer_of_every_sample_once() -> None:
    layers = 3
    for m_s, m_l, shares in splits(layers):
        done = np.zeros((layers, 3), dtype=int)
        for shard in role_shards(layers, ("o", "s", "l"), m_s, m_l, shares):
            assert shard.part.samples
            first, last = shard.layers
            begin = shard.part.offset
            done[first : last + 1, begin : begin + shard.part.samples] += 1
        assert (done == 1).all(), (m_s, m_l, shares)


def test_the_samples_of_s_come_first_then_those_of_o_then_those_of_l() -> None:
    assert role_shards(5, ("cloud", "pi", "nuc"), 1, 3, (40, 80, 8)) == (
        Shard("pi", (0, 0), Part(80, 0)),
        Shard("cloud", (1, 4), Part(80, 0)),
        Shard("cloud", (0, 4), Part(40, 80)),
        Shard("nuc", (0, 2), Part(8, 120)),
        Shard("cloud", (3, 4), Part(8, 120)),
    )


def test_a_worker_with_all_layers_needs_nobody_to_finish() -> None:
    assert role_shards(2, ("cloud", "pi", "nuc"), 0, 2, (3, 0, 5)) == (
        Shard("cloud", (0, 1), Part(3, 0)),
        Shard("nuc", (0, 1), Part(5, 3)),
    )


def test_where_links_cost_nothing_equal_devices_share_the_batch(
    make_task: Callable[..., Task],
) -> None:
    fleet = Fleet(
        three_devices(), (Link(("pi", "nuc"), 1e9, 1e9), Link(("nuc", "cloud"), 1e9, 1e9))
    )
    plan = make_plan("hiertrain", make_task(fleet=fleet, batch=9, speeds=dict.fromkeys(WORKERS, 1)))
    assert {plan.decisions[key] for key in ("b_o", "b_s", "b_l")} == {3}
    assert plan.decisions["m_s"] == 4


def test_where_links_are_dead_everything_stays_on_the_device(
    make_task: Callable[..., Task],
) -> None:
    fleet = Fleet(
        three_devices(), (Link(("pi", "nuc"), 1e-6, 1e-6), Link(("nuc", "cloud"), 1e-6, 1e-6))
    )
    plan = make_plan("hiertrain", make_task(fleet=fleet))
    assert plan.shards == (Shard("pi", (0, 3), Part(8, 0)),)


def test_a_codec_makes_what_crosses_a_cut_smaller(make_task: Callable[..., Task]) -> None:
    seconds = []
    for codec in ("none", "fp16", "int8"):
        task = make_task(batch=64, codec=codec)
        # Many bytes per sample, few weights: a cut pays, the samples themselves do not.
        profile = msgspec.structs.replace(
            task.profile,
            input_bytes=4_000_000,
            layers=(LayerCost("layer", 1000, 400_000),) * 4,
        )
        plan = make_plan("hiertrain", dataclasses.replace(task, profile=profile))
        assert plan.codec == codec
        seconds.append(plan.decisions["model_s"])
    assert seconds[0] > seconds[1] > seconds[2]


def test_it_trains_only(make_task: Callable[..., Task]) -> None:
    with pytest.raises(InputError, match="hiertrain is for train, not for infer"):
        make_plan("hiertrain", make_task(mode="infer"))


def test_the_data_must_not_be_on_the_edge_or_cloud_worker(make_task: Callable[..., Task]) -> None:
    with pytest.raises(InputError, match=r"nuc \(tier 'edge'\) holds the data"):
        make_plan("hiertrain", make_task(source="nuc"))


def brute_force_of_two(task: Task) -> float:
    """The least T where nobody is s: m_s = 0 and b_s = 0."""
    none = np.zeros(task.batch + 1, dtype=np.int64)
    b_o = np.arange(task.batch + 1)
    return min(
        float(paper_seconds(task, (o, l, l), 0, m_l, (b_o, none, task.batch - b_o)).min())
        for o, l in itertools.permutations(task.fleet.names)  # noqa: E741
        for m_l in range(len(task.profile.layers) + 1)
    )


@pytest.mark.parametrize("other", ["nuc", "cloud"])
@settings(max_examples=100, deadline=None)
@given(task=tasks())
def test_two_machines_are_the_case_where_nobody_is_s(other: str, task: Task) -> None:
    fleet = task.fleet.within(("pi", other))
    if not fleet.link:
        fleet = msgspec.structs.replace(fleet, link=(Link(("pi", other), 1, 2),))
    times = {name: task.profile.devices[name] for name in fleet.names}
    profile = msgspec.structs.replace(task.profile, devices=times)
    two = dataclasses.replace(task, fleet=fleet, profile=profile)
    decided = make_plan("hiertrain", two).decisions
    assert sorted(decided["roles"].values()) == sorted(fleet.names)
    assert (decided["m_s"], decided["b_s"]) == (0, 0)
    assert decided["model_s"] == pytest.approx(brute_force_of_two(two), rel=1e-12, abs=0)


def test_a_fleet_of_devices_alone_is_refused(make_task: Callable[..., Task]) -> None:
    fleet = Fleet((Device("pi"), Device("pj")), (Link(("pi", "pj"), 1, 1),))
    for name in ("hiertrain", "hiertrain+"):
        with pytest.raises(InputError, match="needs a device of tier 'edge' or 'cloud'"):
            make_plan(name, make_task(fleet=fleet))


def test_the_fastest_of_each_tier_in_reach_take_part(make_task: Callable[..., Task]) -> None:
    extra = (Device("slow", "cloud"), Device("far", "edge"))
    links = (Link(("pi", "nuc"), 9, 9), Link(("nuc", "cloud"), 9, 9), Link(("nuc", "slow"), 9, 9))
    task = make_task(fleet=Fleet((*three_devices(), *extra), links), speeds={"far": 99})
    assert set(make_plan("hiertrain", task).decisions["roles"].values()) == set(WORKERS)


@pytest.mark.parametrize("route", ["min", "store_and_forward"])
def test_the_command_plans_from_a_profile_file(
    make_task: Callable[..., Task], tmp_path: Path, route: str
) -> None:
    task = make_task(batch=16, route=route)
    save_profile(task.profile, tmp_path / "p.json")
    (tmp_path / "f.toml").write_text(dump_fleet(task.fleet))
    says = ["plan", "even", "--profile", str(tmp_path / "p.json"), "--batch", "16", "--json"]
    says += ["--fleet", str(tmp_path / "f.toml"), "--strategy", "hiertrain"]
    done = CliRunner().invoke(app, [*says, "--set", f"route={route}"])
    assert done.exit_code == 0, done.stderr
    printed = json.loads(done.stdout)
    named = dataclasses.replace(task, profile=msgspec.structs.replace(task.profile, model="even"))
    assert printed["decisions"] == make_plan("hiertrain", named).decisions
    assert printed["predicted"]["step_s"] > 0
