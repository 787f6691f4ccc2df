"""A short form of the loom: draws of one seed, all of which hold; and the loom itself can fail."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from weft.fleet.fleet import Device, Fleet
from weft.loom import checks
from weft.loom.checks import examine
from weft.loom.draw import Draw, as_text, draw, draw_run, from_text
from weft.loom.networks import Net
from weft.loom.planned import Planned
from weft.loom.settings import choices
from weft.loom.weave import examine_whole, reason_class, weave
from weft.plans import registry

DRAWS = 30
QUICK = ("all-device", "all-edge", "chain", "jointdnn+", "edgemove+", "fedavg")
ROOT = Path(__file__).parents[2]


def test_what_must_hold_of_every_plan_holds_of_a_short_weave() -> None:
    report = weave(seed=11, draws=DRAWS)
    assert not report.violations, report.table()
    assert report.counts["draws"] == DRAWS
    assert report.counts["planned and simulated"] >= DRAWS // 3


@pytest.mark.parametrize("name", registry.names())
def test_every_option_of_every_strategy_has_values(name: str) -> None:
    """`draw` raises LookupError for an option that it does not know."""
    seen: set[str] = set()
    for index in range(60):
        seen |= set(draw(3, index, (name,)).options)
    assert seen == set(registry.get(name).options)


def test_a_draw_is_repeated_by_its_number_and_by_its_text() -> None:
    for index in range(20):
        for make in (draw, draw_run):
            one = make(5, index)
            assert make(5, index) == one
            assert from_text(as_text(one)) == one
    assert len({as_text(draw(5, index)) for index in range(20)}) == 20


@pytest.mark.proof
def test_plans_do_not_depend_on_the_order_of_hashes() -> None:
    """Two processes whose sets are in another order make the same plans."""
    digests = set()
    for hash_seed in ("1", "2"):
        code = (
            "from weft.loom.weave import weave;"
            f"print(weave(seed=4, draws=4, only={QUICK!r}).digest)"
        )
        found = subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        )  # fmt: skip
        digests.add(found.stdout)
    assert len(digests) == 1


ALONE = Draw(
    net=Net("profile", 3, 7),
    fleet=Fleet((Device("pi", gflops=1.0), Device("nuc", gflops=2.0))),
    strategy="all-device",
    batch=8,
    options={"route": "min"},
)


def test_a_violation_is_found_shrunk_and_printed_as_a_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def too_many(it: Planned) -> Iterator[str]:
        if it.draw.batch >= 5:
            yield f"batch {it.draw.batch}"

    assert not examine(ALONE).violations
    monkeypatch.setitem(checks.CHECKS, "size", too_many)
    report = weave(seed=6, draws=12, only=("all-device",))
    assert report.violations["size (all-device)"] >= 2
    small = report.failures[0]
    assert 5 <= small.draw.batch <= 9  # halved and counted down as far as it still fails
    assert small.draw.options == {}
    assert len(small.draw.fleet.names) == 1
    assert small.command in report.table()
    again = small.command.partition("--draw '")[2].rstrip("'")
    assert [v.check for v in examine(from_text(again)).violations] == ["size"]


def test_another_exception_than_weft_s_own_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(task: object) -> object:
        raise KeyError("nobody")

    chosen = registry.get("all-device")
    changed = registry.Strategy(**{**vars(chosen), "decide": broken})
    monkeypatch.setitem(registry.STRATEGIES, "all-device", changed)
    (violation,) = examine(ALONE).violations
    assert violation.check == "exception"
    assert "KeyError: 'nobody'" in violation.says


def test_a_refusal_is_no_violation_and_equal_reasons_count_together() -> None:
    outcome = examine(msgspec.structs.replace(ALONE, strategy="all-edge"))
    assert "needs a device of tier 'edge'" in outcome.refused
    assert not outcome.violations
    assert reason_class("device d1 needs 3.5 MB") == reason_class("device d7 needs 0.25 MB")


def test_listed_values_are_read_from_the_help() -> None:
    assert choices("min | store_and_forward: what several links cost") == (
        "min",
        "store_and_forward",
    )
    assert choices("how many devices take part") == ()


def real(strategy: str, mode: str, **changes: object) -> Draw:
    """The first draw of a strategy that is run in a mode, without a fault."""
    for index in range(100):
        one = draw_run(2, index, (strategy,))
        if one.mode == mode and not one.kill and not one.feature:
            return msgspec.structs.replace(one, **changes)
    raise AssertionError("no such draw")


@pytest.mark.parametrize(("strategy", "mode"), [("chain", "train"), ("all-edge", "infer")])
def test_a_real_run_holds_too(strategy: str, mode: str) -> None:
    outcome = examine_whole(real(strategy, mode))
    assert outcome.ran, outcome.refused
    assert not outcome.violations
