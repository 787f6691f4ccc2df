"""Energy, money and memory: one fleet on which each objective chooses another plan, right by brute force."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import pytest

from weft.errors import InputError
from weft.fleet.fleet import Fleet
from weft.fleet.parse import dump_fleet, parse_fleet
from weft.planning.advise import advise
from weft.planning.compare import compare
from weft.planning.decide import decide
from weft.planning.task import make_task
from weft.plans.derive import derive_times
from weft.plans.plan import Objective, Plan
from weft.plans.profile import LayerCost, Profile
from weft.plans.task import Task
from weft.simulate.objective import worth
from weft.simulate.price import price
from weft.strategies.common.stages import layer_plan

FLEET = Fleet.load(Path(__file__).parents[2] / "examples" / "fleets" / "three-objectives.toml")
LAYERS = tuple(
    LayerCost(f"layer{n}", size, output, flops, saved_bytes=2 * output)
    for n, (size, output, flops) in enumerate(
        (
            (40_000, 200_000, 4e7),
            (400_000, 60_000, 8e7),
            (900_000, 20_000, 6e7),
            (200_000, 4_000, 1e6),
        )
    )
)
PROFILE = Profile("four", 150_000, LAYERS, {
    device.name: derive_times(LAYERS, device.gflops or 1.0) for device in FLEET.devices
})  # fmt: skip
CHOICES: tuple[Objective, ...] = ("time", "energy", "money")


def task(objective: Objective, fleet: Fleet = FLEET) -> Task:
    options = {"micro_batches": 1}
    return make_task(PROFILE, fleet, batch=16, objective=objective, options=options)


def every_plan(asked: Task) -> list[Plan]:
    """All rows of devices with all cuts."""
    plans = []
    for count in range(1, 4):
        for order in itertools.permutations(asked.fleet.names, count):
            for places in itertools.combinations(range(1, 4), count - 1):
                ends = [0, *places, 4]
                lengths = [b - a for a, b in itertools.pairwise(ends)]
                assignment = [d for d, n in zip(order, lengths, strict=True) for _ in range(n)]
                plans.append(layer_plan(asked, "by hand", assignment))
    return plans


def cost(plan: Plan, objective: Objective) -> float:
    return worth(plan, price(plan), objective)


@pytest.mark.parametrize("objective", [*CHOICES, "memory"])
def test_each_objective_is_met_as_brute_force_meets_it(objective: Objective) -> None:
    asked = task(objective)
    chosen = decide("chain", asked)
    least = min(cost(plan, objective) for plan in every_plan(asked))
    assert cost(chosen, objective) == pytest.approx(least)
    assert chosen.objective == objective


def test_time_energy_and_money_choose_three_different_plans() -> None:
    plans = {objective: decide("chain", task(objective)) for objective in CHOICES}
    assert len({plan.shards for plan in plans.values()}) == 3
    for objective, plan in plans.items():
        for other in plans.values():
            assert cost(plan, objective) <= cost(other, objective) * (1 + 1e-9)


def test_a_comparison_ranks_and_advises_by_the_objective() -> None:
    asked = task("energy")
    rows = compare(asked, ["chain", "all-cloud", "all-edge"])
    assert [row.cost for row in rows] == sorted(row.cost for row in rows)
    best = advise(rows, asked)
    assert best is not None
    assert " J" in best.why
    assert cost(best.plan, "energy") == pytest.approx(min(row.cost for row in rows), rel=0.06)


def test_energy_is_watts_while_a_device_works_and_money_is_rent_and_traffic() -> None:
    plan = layer_plan(task("time"), "by hand", ["phone", "phone", "cloud", "cloud"])
    predicted = price(plan)
    busy = predicted.compute_s
    assert cost(plan, "energy") == pytest.approx(4 * busy["phone"] + 250 * busy["cloud"])
    crossing = sum(predicted.transfer_bytes.values())
    rent = 1.5 / 3600 * predicted.seconds
    assert cost(plan, "money") == pytest.approx(rent + 0.1 * crossing / 1e9)
    assert cost(plan, "memory") == max(predicted.memory_bytes.values())


def test_an_objective_that_the_fleet_has_no_numbers_for_is_refused() -> None:
    bare = Fleet(
        tuple(msgspec.structs.replace(d, watts=None, price_per_hour=0.0) for d in FLEET.devices),
        tuple(msgspec.structs.replace(link, price_per_gb=0.0) for link in FLEET.link),
    )
    with pytest.raises(InputError, match=r"\[\[device\]\] phone: watts is missing"):
        task("energy", bare)
    with pytest.raises(InputError, match="the fleet has no prices"):
        task("money", bare)


def test_watts_and_prices_are_written_and_read() -> None:
    assert parse_fleet(dump_fleet(FLEET)) == FLEET
    with pytest.raises(InputError, match="watts = -1 is not allowed"):
        parse_fleet('[[device]]\nname = "a"\nwatts = -1\n')
    with pytest.raises(InputError, match="price_per_gb = true is not allowed"):
        parse_fleet(
            '[[device]]\nname = "a"\n[[device]]\nname = "b"\n[[link]]\nbetween = ["a", "b"]\nmbps = 1\n'
            "price_per_gb = true\n"
        )
