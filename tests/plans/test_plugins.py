"""Strategies from outside: of an installed package and of a file that the user names."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from weft.errors import InputError
from weft.plans import plugins
from weft.plans.registry import STRATEGIES, get, make_plan, names
from weft.plans.task import Task

PLAIN = '''
from strategy_neighbour import FIRST
from weft.plans.plan import Plan, Shard

def mine(task):
    """Everything where the data is."""
    last = len(task.profile.layers) - 1
    return Plan(
        strategy="", model=task.profile.model, batch=task.batch, mode=task.mode,
        shards=(Shard(task.source, (FIRST, last)),), source=task.source, fleet=task.fleet,
        profile=task.profile,
    )
'''
DECORATED = (
    PLAIN
    + """
from weft.plans.registry import strategy

@strategy("by-hand", "everything here, twice as careful", options={"care": "how much"}, replan=False)
def careful(task):
    return mine(task)

def broken(task):
    raise RuntimeError("no idea")

def vague(task):
    return "somewhere"

number = 5
"""
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "strategy_neighbour.py").write_text("FIRST = 0\n")
    (tmp_path / "own.py").write_text(DECORATED)
    return tmp_path / "own.py"


def test_a_function_of_a_file_is_a_strategy(file: Path, make_task: Callable[..., Task]) -> None:
    record = get(f"{file}:mine")
    assert (record.name, record.summary) == ("mine", "Everything where the data is.")
    plan = make_plan(f"{file}:mine", make_task())
    assert (plan.strategy, plan.devices) == ("mine", ("pi",))
    assert get("mine") is record  # as the plan calls it from now on
    assert "mine" not in names()


def test_a_file_may_register_options_and_abilities(
    file: Path, make_task: Callable[..., Task]
) -> None:
    for name in ("careful", "by-hand"):
        record = get(f"{file}:{name}")
        assert record.name == "by-hand"
        assert "care" in record.options
        assert not record.replan
    assert make_plan(f"{file}:careful", make_task(care="much")).strategy == "by-hand"
    assert "by-hand" not in STRATEGIES


def test_a_changed_file_is_read_again(file: Path) -> None:
    first = get(f"{file}:mine")
    assert get(f"{file}:mine") is first
    file.write_text(DECORATED.replace("Everything where", "All of it where"))
    assert get(f"{file}:mine").summary == "All of it where the data is."


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", r"own\.py has no function 'nothing'; it has: by-hand"),
        ("number", r"own\.py has no function 'number'"),
        ("broken", r"own\.py:broken line 21 raised RuntimeError: no idea"),
        ("vague", "vague gave a str; it must return a weft"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(
    file: Path, make_task: Callable[..., Task], name: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        make_plan(f"{file}:{name}", make_task())


def test_a_file_that_is_not_there_or_takes_a_known_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such file"):
        get(str(tmp_path / "none.py:mine"))
    (tmp_path / "taken.py").write_text("def chain(task): ...\n")
    with pytest.raises(InputError, match="called 'chain', as another strategy is"):
        get(str(tmp_path / "taken.py:chain"))


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with two strategies, one of which cannot be imported, installed for one test."""
    (tmp_path / "strategy_neighbour.py").write_text("FIRST = 0\n")
    (tmp_path / "weft_more.py").write_text(PLAIN)
    folder = tmp_path / "weft_more-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: weft-more\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(
        "[weft.strategies]\nfrom-package = weft_more:mine\nbad = weft_more:missing\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    known = dict(STRATEGIES)
    plugins.load_plugins.cache_clear()
    yield tmp_path
    plugins.load_plugins.cache_clear()
    STRATEGIES.clear()
    STRATEGIES.update(known)
    for module in ("weft_more", "strategy_neighbour"):
        sys.modules.pop(module, None)


def test_a_package_adds_strategies_and_a_broken_one_is_only_named(
    installed: Path, make_task: Callable[..., Task]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        get("chain")  # what comes with Weft is found without looking at packages
    with pytest.warns(
        UserWarning, match=r"strategy bad of an installed package \(weft_more:missing\)"
    ):
        record = get("from-package")
    assert record.summary == "Everything where the data is."
    assert "from-package" in names()
    assert "bad" not in names()
    assert make_plan("from-package", make_task()).devices == ("pi",)
