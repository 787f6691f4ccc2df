"""Bad input and wrong use end with one line on stderr and exit code 2; work that failed with 1."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.commands.line import FLEET, PLAN, weft

BAD = [
    ("plan lenet6 -f fleet.toml -s chain", "did you mean lenet5"),
    ("plan lenet5 -f fleet.toml -s chian", "did you mean chain"),
    ("plan lenet5 -f none.toml -s chain", "none.toml: No such file"),
    ("plan none.py:build -f fleet.toml -s chain", "none.py: there is no such file"),
    ("plan lenet5 -f fleet.toml -s chain --input-shape 1xx28", "'1xx28' is not a shape"),
    ("plan lenet5 -f fleet.toml -s chain --input-shape 0x28x28", "is not a shape"),
    (f"{PLAN} -s chain --batch 0", "batch 0 is not allowed"),
    (f"{PLAN} -s chain --batch -3", "batch -3 is not allowed"),
    (f"{PLAN} -s hiertrain --batch 99999999999999999999", "it must be at most 1000000"),
    (f"{PLAN} -s chain --set codec", "'codec' is not allowed; write key=value"),
    (f"{PLAN} -s chain --set =fp16", "write key=value"),
    (f"{PLAN} -s chain --set codec=fp99", "codec=fp99 is not allowed"),
    (f"{PLAN} -s chain --set codec=fp16 --set codec=int8", "given twice"),
    (f"{PLAN} -s chain --set speed=9", "no option 'speed'"),
    (f"{PLAN} -s chain -o no/plan.json", "plan file no/plan.json: No such file"),
    (f"{PLAN} -s chain --draw plan.nothing", "'.nothing' is not one of"),
    ("plan three -f fleet.toml -p fleet.toml -s chain", "fleet.toml is not a profile"),
    ("compare three -f fleet.toml -p profile.json --strategies chain,none", "strategy 'none'"),
    ("compare three -f fleet.toml -p profile.json --strategies chain,", "is not a list"),
    ("compare three -f fleet.toml -p profile.json --set speed=9", "none of the compared"),
    ("compare three -f fleet.toml -p profile.json --batch 0", "batch 0 is not allowed"),
    ("simulate none.json", "none.json: No such file"),
    ("simulate profile.json", "profile.json is not a plan"),
    ("profile lenet5 --gflops 0", "gflops 0.0 is not allowed"),
    ("profile lenet5 --gflops 1 --batch 0", "batch 0 is not allowed"),
    ("profile lenet5 --gflops 1 --add", "--add needs the file"),
    ("profile lenet5 --gflops 1 -o profile.json --add", "another network"),
    ("profile lenet5 --gflops 1 --classes 0", "classes 0"),
    ("profile lenet5 --join nonsense", "'tcp/nonsense' is not allowed; it must look like"),
    ("fleet --join nonsense", "'tcp/nonsense' is not allowed; it must look like"),
    ("fleet --group a*b", "--group 'a*b' is not allowed"),  # would be every fleet
    ("demo --steps 0", "--steps 0 is not allowed"),
    ("demo --out fleet.toml", "--out fleet.toml"),
    ("reproduce hiertrain --quick --out fleet.toml/papers", "folder fleet.toml/papers"),
    ("reproduce hiertrian", "did you mean hiertrain? there are"),
    ("plan lenet5 -f fleet.toml -s chian", "did you mean chain? there are"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "message"), BAD)
def test_bad_input_ends_with_one_line_on_stderr_and_exit_code_2(
    folder: Path, line: str, message: str
) -> None:
    result = weft(f"{line} --json")
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "line", ["plan lenet5", "plan", "nothing", "plan --nothing", f"{PLAN} -s chain --mode other",
             f"{PLAN} -s chain --batch many"],
)  # fmt: skip
def test_wrong_use_ends_with_exit_code_2(folder: Path, line: str) -> None:
    result = weft(line)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr
    assert result.stderr.count("\n") == 1, "one line, without boxes"
    assert result.stderr.startswith("error: ")
    assert "--help`" in result.stderr


@pytest.mark.parametrize("line", ["", "keys"])
def test_a_command_without_a_word_shows_its_help(line: str) -> None:
    result = weft(line)
    assert result.exit_code == 2
    assert "Commands" in result.output


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda plan: plan["fleet"]["link"][0].update(up_mbps=-1), "up_mbps"),
        (lambda plan: plan["profile"]["layers"][0].update(output_bytes=-1), "output_bytes"),
        (lambda plan: plan["shards"].pop(), "layers"),
        (lambda plan: plan.update(source="nobody"), "nobody"),
        (lambda plan: plan.update(micro_batches=0), "micro_batches is 0"),
        (lambda plan: plan.update(batch=0), "batch"),
    ],
)
def test_a_plan_file_spoiled_by_hand_is_refused(folder: Path, change: Any, message: str) -> None:
    weft(f"{PLAN} -s all-cloud -o plan.json")
    plan = json.loads((folder / "plan.json").read_bytes())
    change(plan)
    (folder / "plan.json").write_text(json.dumps(plan))
    result = weft("simulate plan.json")
    assert result.exit_code == 2, result.output
    assert message in result.stderr


def test_a_plan_that_does_not_fit_is_work_that_failed(folder: Path) -> None:
    (folder / "fleet.toml").write_text(FLEET.replace("memory_mb = 1024", "memory_mb = 0.5"))
    result = weft(f"{PLAN} -s all-device")
    assert result.exit_code == 1
    assert "error: the plan does not fit: device pi needs" in result.stderr
