"""The simulator follows the part of a script that it can: slower devices and cut links."""

from __future__ import annotations

import math

import pytest

from weft.errors import InputError
from weft.fleet.faults import Faults
from weft.fleet.fleet import Device, Fleet, Link, Medium
from weft.planning.decide import decide
from weft.planning.task import make_task
from weft.plans.profile import DeviceTimes, LayerCost, Profile
from weft.program.lower.lower import lower
from weft.program.program import Program
from weft.simulate.simulate import simulate
from weft.simulate.troubled import simulate_with
from weft.simulate.windows import Windows


def program(fleet: Fleet | None = None) -> Program:
    """Two devices with one layer each; a step is 4 s of computing and 2 s on the link."""
    names = ("pi", "nuc")
    profile = Profile(
        "two", 1, tuple(LayerCost(f"l{k}", 1, 1_000_000) for k in range(2)),
        {name: DeviceTimes((1.0, 1.0), (1.0, 1.0), (0.0, 0.0)) for name in names},
    )  # fmt: skip
    devices = (Device("pi", data=True), Device("nuc", "edge"))
    link = fleet or Fleet(devices, (Link(names, 8.0, 8.0),))
    task = make_task(profile, link, batch=1, mode="train", options={"micro_batches": "1"})
    plan = decide("chain", task)
    return lower(plan)


def two_stages() -> Program:
    import msgspec

    from weft.plans.plan import Shard

    whole = program()
    shards = (Shard("pi", (0, 0)), Shard("nuc", (1, 1)))
    return lower(msgspec.structs.replace(whole.plan, shards=shards))


def test_without_faults_nothing_changes() -> None:
    assert simulate_with(two_stages(), Faults(), 4) == simulate(two_stages(), 4)


def test_a_slow_device_makes_later_steps_longer_and_no_earlier_one() -> None:
    plain = simulate(two_stages(), 6).step_ends
    slowed = simulate_with(two_stages(), Faults().slow("nuc", x=3, step=2), 6).step_ends
    assert slowed[:3] == plain[:3]
    assert slowed[5] - slowed[4] == pytest.approx(plain[5] - plain[4] + 2 * 2.0)


def test_a_cut_delays_all_that_comes_after_it() -> None:
    plain = simulate(two_stages(), 6).step_ends
    cut = simulate_with(two_stages(), Faults().cut("pi", "nuc", step=2, for_s=10), 6).step_ends
    assert cut[2] == plain[2]
    assert cut[5] == pytest.approx(plain[5] + 10, abs=1.1)  # computing goes on meanwhile


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (Faults().kill("nuc", step=1), "cannot be simulated"),
        (Faults().silence("nuc", step=1), "cannot be simulated"),
        (Faults().slow(x=2), "needs a name"),
        (Faults().slow("nuc", x=2, step=99), "step 99"),
        (Faults().cut("pi", "nuc", step=1), "give for_s"),
    ],
)
def test_what_cannot_be_simulated_is_refused_in_words(script: Faults, says: str) -> None:
    with pytest.raises(InputError, match=says):
        simulate_with(two_stages(), script, 6)


def test_two_members_of_a_medium_cannot_be_cut_alone() -> None:
    devices = (Device("pi", data=True), Device("nuc", "edge"))
    fleet = Fleet(devices, medium=(Medium("wifi", "nuc", ("pi",), 8.0),))
    with pytest.raises(InputError, match="share a medium"):
        simulate_with(program(fleet), Faults().cut("pi", "nuc", step=1, for_s=1), 3)


def test_windows_count_only_the_time_inside_them() -> None:
    windows = Windows({0: [(2.0, 6.0, 4.0)]}, {0: [(1.0, 3.0), (4.0, math.inf)]})
    assert windows.compute_s(0, 0.0, 2.0) == 2.0
    assert windows.compute_s(0, 1.0, 2.0) == 1.0 + 4.0
    assert windows.compute_s(0, 1.0, 3.0) == 1.0 + 4.0 + 1.0
    assert windows.compute_s(0, 6.0, 1.0) == windows.compute_s(1, 3.0, 1.0) == 1.0
    assert windows.left_s(0, 0.5, 1.0) == 3.5
    assert windows.left_s(0, 3.0, 1.0) == 4.0
    assert windows.left_s(0, 3.5, 1.0) == math.inf
    assert windows.left_s(1, 0.0, 9.0) == 9.0
