"""docs/extend.md: its files are written as they stand, its commands are run as they stand."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import weft
from weft import cli
from weft.commands.app import app
from weft.errors import LostDevice
from weft.plans import registry
from weft.runtime.emulate.local import LocalFleet

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = BLOCK.findall((ROOT / "docs" / "extend.md").read_text(encoding="utf-8"))
assert cli.main  # importing the command line has registered every command
COMMANDS = [line for kind, text in BLOCKS if kind == "sh" for line in text.splitlines()]


def inserted(place: str) -> list[str]:
    """The lines that the page adds to a file of Weft."""
    text = next(t for _, t in BLOCKS if t.startswith(f"# in {place},"))
    return [line for line in text.splitlines() if not line.startswith("#")]


def command(words: str) -> str:
    return next(line for line in COMMANDS if line.startswith(words))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Somebody's own folder, with every file of the page that is not one of Weft's."""
    here = tmp_path_factory.mktemp("newcomer")
    for _, text in BLOCKS:
        first, _, rest = text.partition("\n")
        name = first.removeprefix("# file: ")
        if name != first and not name.startswith("src/"):
            (here / name).write_text(rest, encoding="utf-8")
    return here


@pytest.fixture
def say(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """What a command of the page prints, typed in that folder."""
    monkeypatch.chdir(folder)

    def typed(line: str) -> str:
        words = shlex.split(line)
        assert words[0] == "weft"
        done = CliRunner().invoke(app, words[1:])
        assert done.exit_code == 0, (done.output, done.exception)
        return done.stdout

    return typed


def test_a_strategy_in_a_file_is_compared_planned_and_simulated(say: Callable[[str], str]) -> None:
    table = say(command("weft compare"))
    assert "even" in table
    assert "chain" in table
    assert "pi, nuc, cloud" in table
    assert "even" in say(command("weft plan lenet5 --fleet fleet.toml --strategy even"))
    assert "nuc" in say(command("weft simulate"))


def test_a_strategy_with_options_imports_its_neighbour(say: Callable[[str], str]) -> None:
    line = command("weft plan lenet5 --fleet fleet.toml --strategy pieces")
    plan = json.loads(say(f"{line} --json"))
    assert plan["strategy"] == "pieces"
    assert "4 micro-batches" in say(line)


def test_a_strategy_a_network_and_a_data_set_from_files_are_trained(
    say: Callable[[str], str],
) -> None:
    ran = json.loads(say(command("weft train my_net.py")))
    assert ran["strategy"] == "even"
    assert ran["steps"] == 40
    assert ran["final_loss"] < 0.7  # two classes: it has learned something


@pytest.fixture
def kill_when(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, int]], Callable[..., None]]:
    """`kill_when({"nuc": 10})` is an on_progress that kills nuc when ten minibatches are done."""
    opened: list[LocalFleet] = []
    enter = LocalFleet.__enter__

    def entered(self: LocalFleet) -> LocalFleet:
        opened.append(self)
        return enter(self)

    monkeypatch.setattr(LocalFleet, "__enter__", entered)

    def make(moments: dict[str, int]) -> Callable[..., None]:
        left = dict(moments)

        def on_progress(step: Any) -> None:
            for device in [d for d, moment in left.items() if step.done >= moment]:
                del left[device]
                opened[-1].kill(device)

        return on_progress

    return make


def trained(folder: Path, strategy: str, on_progress: Callable[..., None] | None) -> Any:
    """The page's network and data, small and exact, on three processes."""
    torch.manual_seed(0)
    return weft.train(
        run_of(folder / "my_net.py")["build"]()[0], run_of(folder / "my_data.py")["rings"](),
        nn.CrossEntropyLoss(), fleet=weft.Fleet.load(folder / "fleet.toml"),
        strategy=f"{folder}/{strategy}.py:{strategy}", steps=400, batch=16, local=True,
        keep_every=5, on_progress=on_progress,
    )  # fmt: skip


def run_of(path: Path) -> dict[str, Any]:
    import runpy

    return runpy.run_path(str(path))


@pytest.mark.proof
def test_a_killed_device_leaves_the_result_as_it_would_have_been(
    folder: Path, kill_when: Callable[..., Callable[..., None]]
) -> None:
    quiet = trained(folder, "even", None)
    assert quiet.plan.devices == ("pi", "nuc", "cloud")
    hurt = trained(folder, "even", kill_when({"nuc": 20}))
    kinds = [event["kind"] for event in hurt.events]
    assert "device_lost" in kinds
    assert "recovered" in kinds
    assert hurt.plan.strategy == "even"  # the same strategy planned for those who are left
    assert hurt.plan.devices == ("pi", "cloud")
    assert len(hurt.losses) == 400
    for name, tensor in quiet.model.state_dict().items():
        torch.testing.assert_close(hurt.model.state_dict()[name], tensor, rtol=0, atol=1e-5)


def test_a_recovery_of_ones_own_stops_at_the_second_loss(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    kill_when: Callable[..., Callable[..., None]],
) -> None:
    monkeypatch.syspath_prepend(str(folder))
    assert registry.get(f"{folder}/careful.py:careful").recovery == "at_most_one:AtMostOne"
    with pytest.raises(LostDevice, match="cloud is gone"):
        trained(folder, "careful", kill_when({"nuc": 20, "cloud": 150}))


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of Weft with the codec and the operator of the page."""
    source = tmp_path_factory.mktemp("weft") / "src"
    shutil.copytree(
        ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
    )
    name, text = next(
        (first.removeprefix("# file: "), rest)
        for first, _, rest in (t.partition("\n") for _, t in BLOCKS)
        if first.startswith("# file: src/")
    )
    (source.parent / name).write_text(text, encoding="utf-8")
    line, member = inserted("src/weft/codecs/registry.py")
    put_in(source / "weft/codecs/registry.py", "from weft.codecs.base", line + "\n", before=True)
    put_in(source / "weft/codecs/registry.py", "for codec in (", member + " ")
    (record,) = inserted("src/weft/graph/operators/table.py")
    put_in(source / "weft/graph/operators/table.py", "_RECORDS: tuple[Operator, ...] = (", record)
    return source


def put_in(file: Path, place: str, text: str, before: bool = False) -> None:
    whole = file.read_text(encoding="utf-8")
    assert whole.count(place) == 1
    file.write_text(whole.replace(place, text + place if before else place + text), "utf-8")


def test_a_codec_and_an_operator_are_added_and_really_run(folder: Path, extended: Path) -> None:
    words = shlex.split(command("weft train i0_net.py"))
    cache = {"XDG_CACHE_HOME": str(extended.parent / "cache")}
    done = subprocess.run(
        [sys.executable, "-m", "weft", *words[1:]],
        cwd=folder, env={**os.environ, **cache, "PYTHONPATH": str(extended)},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ran = json.loads(done.stdout)
    assert ran["steps"] == 20
    assert ran["final_loss"] < 1.0


def test_without_its_record_the_operator_is_refused_by_name(folder: Path) -> None:
    net, example = run_of(folder / "i0_net.py")["build"]()
    with pytest.raises(weft.InputError, match="i0"):
        weft.capture(net, example)
