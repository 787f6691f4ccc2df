"""The advice: the best exact plan, against the best single machine, in plain words. `auto` takes it."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
from pathlib import Path

import msgspec
import pytest

from weft.errors import InputError, WeftError
from weft.fleet.fleet import Device, Fleet, Link
from weft.planning import advise as advising
from weft.planning.advise import advise, candidates, why_none
from weft.planning.compare import Row, compare
from weft.planning.decide import decide
from weft.planning.exactness import differs
from weft.planning.limit import TooLong, time_limit
from weft.planning.one_place import best_place, one_places, place_of
from weft.planning.task import ask, make_task
from weft.plans import registry
from weft.plans.plan import Plan, Shard
from weft.plans.profile import DeviceTimes, LayerCost, Profile
from weft.plans.task import Task
from weft.report.tables import compare_table, render
from weft.simulate.price import price

NAMES = ("a", "b", "c")
FLEETS = Path(__file__).parents[2] / "examples" / "fleets"


def fleet(mbps: float, memory_mb: float | None = None) -> Fleet:
    devices = tuple(Device(n, memory_mb=memory_mb, data=n == "a") for n in NAMES)
    return Fleet(devices, tuple(Link(p, mbps, mbps) for p in itertools.combinations(NAMES, 2)))


def task(mbps: float = 1e4, message_s: float = 0.0, **fields: float) -> Task:
    layers = tuple(LayerCost(f"layer{n}", 1_000_000, 4000) for n in range(4))
    times = DeviceTimes((1e-3,) * 4, (2e-3,) * 4, (1e-4,) * 4, message_s=message_s)
    profile = Profile("net", 4000, layers, dict.fromkeys(NAMES, times))
    return make_task(profile, fleet(mbps, **fields), batch=16)


def test_a_split_that_pays_is_advised_with_its_gain_over_one_machine() -> None:
    asked = task()
    best = advise(compare(asked, ["chain", "all-device"]), asked)
    assert best is not None
    assert (best.strategy, best.splits) == ("chain", True)
    one = min(p.predicted.seconds for p in one_places(asked) if p.predicted)
    assert best.against_one_machine == pytest.approx(one / best.seconds)
    assert best.against_one_machine > 1.5
    assert "alone" in best.why


def test_speedups_are_over_the_same_single_machine_as_the_advice() -> None:
    """A machine that is fed over a slow link computes while samples arrive. Once this counted as a gain of
    splitting: `chain` had 1.63x for one machine that the advice called the best single one."""
    asked = dataclasses.replace(task(mbps=1.0), fleet=remote_fleet())
    rows = {row.strategy: row for row in compare(asked, ["chain", "all-edge"])}
    best = advise(list(rows.values()), asked)
    assert best is not None
    assert not best.splits
    assert rows["chain"].devices == ("a", "b")  # b computes alone
    assert rows["chain"].speedup == pytest.approx(1.0)


def remote_fleet() -> Fleet:
    """Only b is quick, and the samples are at a."""
    devices = (
        Device("a", gflops=0.01, data=True, memory_mb=1.0),
        Device("b", tier="edge"),
        Device("c"),
    )
    return Fleet(devices, (Link(("a", "b"), 20.0, 20.0),))


def test_a_split_that_does_not_pay_is_called_so() -> None:
    asked = task(message_s=0.05)
    best = advise(compare(asked, ["chain", "all-device"]), asked)
    assert best is not None
    assert best.why.startswith("splitting does not pay: a alone takes")
    assert not best.splits
    assert best.against_one_machine == 1.0
    assert place_of(best.plan) == "a"


def test_one_place_is_a_candidate_even_if_no_compared_strategy_names_it() -> None:
    asked = task(mbps=0.1)
    slow = _by_hand(asked, (Shard("a", (0, 1)), Shard("b", (2, 3))))
    best = advise([_row(slow)], asked)
    assert best is not None
    assert place_of(best.plan) == "a"
    assert "the best split (by hand on a, b)" in best.why


def test_a_small_gain_is_no_reason_to_split() -> None:
    asked = task()
    alone = best_place(one_places(asked), "a")
    assert alone is not None
    assert alone.predicted is not None
    for factor, splits in ((0.97, False), (0.9, True)):
        row = _row(
            _by_hand(asked, (Shard("a", (0, 1)), Shard("b", (2, 3)))),
            alone.predicted.seconds * factor,
        )
        best = advise([row], asked)
        assert best is not None
        assert best.splits is splits


def test_where_no_machine_is_large_enough_the_split_is_advised() -> None:
    asked = task(memory_mb=6.0)
    best = advise(compare(asked, ["chain"]), asked)
    assert best is not None
    assert best.against_one_machine is None
    assert best.why.startswith("no single machine can do net by itself")


def test_a_faster_plan_that_computes_something_else_is_named_and_not_advised() -> None:
    asked = task(message_s=0.05)
    fast = _row(_by_hand(asked, (Shard("a", (0, 1)), Shard("b", (2, 3))), codec="int8"), 1e-3)
    best = advise([*compare(asked, ["all-device"]), fast], asked)
    assert best is not None
    assert place_of(best.plan) == "a"
    assert "by hand would take 1 ms, but not compute the same: codec int8" in best.why


def test_what_a_plan_does_differently_is_said() -> None:
    plan = _by_hand(task(), (Shard("a", (0, 1)), Shard("b", (2, 3))))
    assert differs(plan) == ""
    changed = msgspec.structs.replace(plan, codec="int8", gradient_codec="fp16", stale=2)
    assert differs(changed) == "codec int8, gradients by codec fp16, stale weights"


def test_auto_takes_the_advised_plan() -> None:
    asked = task()
    plan = decide("auto", asked)
    best = advise(compare(asked, candidates(asked)), asked)
    assert best is not None
    assert plan.strategy == "auto"
    assert plan.shards == best.plan.shards
    assert price(plan).seconds == pytest.approx(best.seconds)
    assert place_of(decide("auto", task(message_s=0.05))) == "a"
    assert "auto" not in registry.names()


def test_auto_is_never_slower_than_any_exact_strategy_by_more_than_what_is_not_worth_it() -> None:
    for mbps, message_s in ((30.0, 1e-3), (1e4, 0.0)):
        asked = task(mbps, message_s)
        taken = decide("auto", asked)
        assert taken.predicted is not None
        rows = [row for row in compare(asked, ["chain", "jointdnn+", "all-device"]) if row.exact]
        assert taken.predicted.seconds <= min(row.cost for row in rows) * 1.06


def test_auto_asks_for_plans_without_codecs(monkeypatch: pytest.MonkeyPatch) -> None:
    """hiertrain+ codes messages unless it is told not to; its plan without codecs may be the best one."""
    asked: list[dict[str, str]] = []

    def listening(task: Task) -> Plan:
        asked.append(dict(task.options))
        return _by_hand(task, (Shard("a", (0, 3)),))

    record = dataclasses.replace(registry.get("hiertrain+"), decide=listening)
    monkeypatch.setitem(registry.STRATEGIES, "hiertrain+", record)
    for options, wanted in (({}, "none"), ({"codecs": "all"}, "all")):
        decide("auto", dataclasses.replace(task(), options=options))
        assert asked.pop() == {"codecs": wanted}


def test_auto_hands_options_to_the_strategies_that_know_them() -> None:
    plan = decide("auto", dataclasses.replace(task(), options={"micro_batches": "2"}))
    assert plan.micro_batches in (1, 2)
    with pytest.raises(InputError, match="no option 'speed'"):
        decide("auto", dataclasses.replace(task(), options={"speed": "2"}))


def test_auto_says_where_nothing_fits() -> None:
    with pytest.raises(WeftError, match="no strategy has a plan for net"):
        decide("auto", task(memory_mb=0.5))


def test_where_no_plan_is_exact_the_advice_is_a_reason_in_words() -> None:
    """Two devices have data, and a batch norm sees a part of the minibatch in each plan that there is."""
    fleet = Fleet.load(FLEETS / "two-devices.toml")
    task = ask("resnet18", fleet)
    rows = compare(task, ["all-cloud", "all-edge", "chain"])
    assert advise(rows, task) is None
    words = why_none(rows, task)
    assert "computes what one process computes. all-cloud takes" in words
    assert "differs: batch norms of pieces" in words
    assert "name it: --strategy all-cloud" in words
    assert words in render(compare_table(rows, "", None, words), width=10_000)


def test_one_place_keeps_the_samples_of_a_batch_norm_together() -> None:
    """Once the best single machine cut the minibatch in two, so that samples arrive while it computes. With a
    batch norm that is another mathematics, and `auto` took it without a word."""
    task = ask("resnet8", Fleet.load(FLEETS / "first.toml"), batch=32)
    assert [differs(plan, task.graph) for plan in one_places(task)] == ["", "", ""]
    best = advise(compare(task, ["all-cloud"]), task)
    assert best is not None
    assert not differs(best.plan, task.graph)
    assert not differs(decide("auto", task), task.graph)


def test_a_strategy_that_thinks_too_long_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(asked: Task) -> Plan:
        while True:
            with_errors_caught()

    def quick(asked: Task) -> Plan:
        return _by_hand(asked, (Shard("a", (0, 3)),))

    for name, function in (("all-device", endless), ("chain", quick)):
        record = dataclasses.replace(registry.get(name), decide=function)
        monkeypatch.setitem(registry.STRATEGIES, name, record)
    begun: list[tuple[str, int, int]] = []
    names = ["all-device", "chain"]
    rows = compare(task(), names, limit_s=0.2, on_begin=lambda *at: begun.append(at))
    assert begun == [("all-device", 0, 2), ("chain", 1, 2)]
    assert [row.strategy for row in rows if row.valid] == ["chain"]
    why = "it needs more than 0.2 s of computing to plan; --limit gives it more time"
    assert rows[-1].why_not == why


def with_errors_caught() -> None:
    """A planner that goes on after its own errors cannot go on after the limit."""
    with contextlib.suppress(WeftError):
        sum(range(1000))


def test_a_limit_ends_with_its_block() -> None:
    with pytest.raises(TooLong), time_limit(0.05):
        _for_ever()
    with time_limit(0.05):
        pass
    end = time.process_time() + 0.1
    while time.process_time() < end:
        pass  # nothing interrupts it any more


def _for_ever() -> None:
    while True:
        pass


def _by_hand(asked: Task, shards: tuple[Shard, ...], **fields: object) -> Plan:
    return Plan(strategy="by hand", model="net", batch=16, mode="train", shards=shards, source="a",
                fleet=asked.fleet, profile=asked.profile, **fields)  # type: ignore[arg-type] # fmt: skip


def _row(plan: Plan, seconds: float | None = None) -> Row:
    value = price(plan).seconds if seconds is None else seconds
    return Row(
        plan.strategy, "train", value, devices=plan.devices, differs=differs(plan), plan=plan
    )


def test_candidates_compute_what_one_process_computes() -> None:
    for name in advising.candidates(task()):
        record = registry.get(name)
        assert record.exact
        assert record.online is None


@pytest.mark.parametrize("file", ["first", "demo", "three-tier"])
def test_auto_takes_the_plan_that_the_whole_table_advises(file: str) -> None:
    """A strategy that codes its messages has a second row without codecs. The advice missed that plan, which
    `auto` took."""
    asked = ask("lenet5", Fleet.load(FLEETS / f"{file}.toml"), batch=64, mode="train")
    best = advise(compare(asked), asked)
    taken = decide("auto", asked)
    assert best is not None
    assert taken.predicted is not None
    assert best.seconds == pytest.approx(taken.predicted.seconds)
    assert best.plan.devices == taken.devices
