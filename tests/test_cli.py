"""The command line keeps its promises: documents on stdout, messages on stderr, exit codes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from weft.cli import app
from weft.commands.app import Terminated, say
from weft.commands.running import progress_bar
from weft.errors import LostDevice
from weft.runtime.run.results import Step

FLEET = """
[[device]]
name = "pi"
gflops = 0.9
memory_mb = 1024
data = true
[[device]]
name = "nuc"
tier = "edge"
gflops = 7.5
[[device]]
name = "cloud"
tier = "cloud"
gflops = 40.0
[[link]]
between = ["pi", "nuc"]
mbps = 5.0
latency_ms = 2.0
[[link]]
between = ["nuc", "cloud"]
mbps = 3.0
"""


def times(speed: float) -> dict[str, list[float]]:
    forward = [0.004 / speed, 0.006 / speed, 0.001 / speed]
    return {
        "forward_s": forward,
        "backward_s": [2 * t for t in forward],
        "update_s": [0.001 / speed] * 3,
    }


PROFILE = {
    "model": "three",
    "input_bytes": 49152,
    "layers": [
        {"name": "conv1", "param_bytes": 139776, "output_bytes": 19360},
        {"name": "conv2", "param_bytes": 1229824, "output_bytes": 8652},
        {"name": "fc3", "param_bytes": 40000, "output_bytes": 40},
    ],
    "devices": {"pi": times(1), "nuc": times(8), "cloud": times(50)},
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a fleet and a profile; paths in the tests are relative to it."""
    (tmp_path / "fleet.toml").write_text(FLEET)
    (tmp_path / "profile.json").write_text(json.dumps(PROFILE))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def weft(line: str) -> Result:
    return CliRunner().invoke(app, line.split(), prog_name="weft")


def document(line: str) -> Any:
    """The one JSON document that a command prints on stdout."""
    result = weft(line)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


PLAN = "plan three --fleet fleet.toml --profile profile.json --batch 64"


def test_models_and_strategies_are_listed_one_line_each() -> None:
    for command in ("models", "strategies"):
        listed = document(f"{command} --json")[command]
        text = weft(command).stdout
        for entry in listed:
            assert entry["summary"]
            assert entry["name"] in text


def test_features_are_listed_for_every_strategy() -> None:
    table = document("strategies --features --json")
    known = {entry["name"] for entry in document("strategies --json")["strategies"]}
    assert {row["strategy"] for row in table["rows"]} == known
    for row in table["rows"]:
        assert list(row["cells"]) == table["features"]
    text = weft("strategies --features").stdout
    assert ["a", "device", "dies"][-1] in text
    assert "peers keep to their own clocks" in " ".join(text.split())


def test_a_strategy_of_a_file_is_planned_and_compared(folder: Path) -> None:
    (folder / "own.py").write_text(
        "from weft.plans.registry import get\n"
        "def at_home(task):\n    return get('all-device').decide(task)\n"
    )
    assert document(f"{PLAN} -s own.py:at_home --json")["strategy"] == "at_home"
    line = (
        "compare three -f fleet.toml -p profile.json --strategies own.py:at_home,all-cloud --json"
    )
    assert {row["strategy"] for row in document(line)["rows"]} == {"at_home", "all-cloud"}
    result = weft(f"{PLAN} -s own.py:elsewhere")
    assert result.exit_code == 2


def test_plan_json_has_the_documented_shape(folder: Path) -> None:
    plan = document(f"{PLAN} --strategy chain --json")
    assert (plan["strategy"], plan["model"], plan["batch"]) == ("chain", "three", 64)
    assert set(plan["predicted"]) == {"step_s", "compute_s", "transfer_bytes", "memory_bytes"}
    assert plan["predicted"]["step_s"] > 0
    assert plan["planning_s"] > 0
    assert isinstance(plan["decisions"], dict)
    covered = [n for s in plan["shards"] for n in range(s["layers"][0], s["layers"][1] + 1)]
    assert covered == [0, 1, 2]
    assert all(set(shard) == {"device", "layers", "part"} for shard in plan["shards"])


def test_an_inference_plan_predicts_a_latency_instead_of_a_step(folder: Path) -> None:
    plan = document(f"{PLAN} --strategy all-cloud --mode infer --json")
    assert "latency_s" in plan["predicted"]
    assert "step_s" not in plan["predicted"]


def test_a_plan_is_for_32_samples_to_train_and_one_to_infer_if_not_said(folder: Path) -> None:
    line = "plan three -f fleet.toml -p profile.json -s all-device --json"
    assert document(line)["batch"] == 32
    assert document(f"{line} --mode infer")["batch"] == 1


def test_without_json_a_plan_is_a_table(folder: Path) -> None:
    result = weft(f"{PLAN} --strategy all-cloud")
    assert result.exit_code == 0
    assert "all-cloud: three, batch 64" in result.stdout
    assert "conv1 to fc3 (0-2)" in result.stdout


def test_compare_json_has_the_documented_shape_best_first(folder: Path) -> None:
    found = document("compare three -f fleet.toml -p profile.json --batch 64 --json")
    assert (found["model"], found["batch"]) == ("three", 64)
    rows = found["rows"]
    assert {"chain", "all-device", "all-edge", "all-cloud"} <= {row["strategy"] for row in rows}
    possible = [row for row in rows if row["valid"]]
    assert all(row["why_not"] for row in rows[len(possible) :]), "the impossible come last"
    steps = [row["step_s"] for row in possible]
    assert steps == sorted(steps)
    assert all(row["why_not"] is None for row in possible)
    best = found["best"]
    assert set(best) >= {"strategy", "seconds", "against_one_machine", "why"}
    one_s = best["seconds"] * best["against_one_machine"]
    for row in possible:
        assert row["speedup"] == pytest.approx(one_s / row["step_s"])
        assert row["exact"] is (row["differs"] is None)
    alone = min(
        row["step_s"]
        for row in possible
        if row["strategy"] in ("all-device", "all-edge", "all-cloud")
    )
    assert alone == pytest.approx(one_s, rel=0.051)  # the source is taken if it is about as fast


def test_compare_names_what_is_impossible_and_why_below_the_table(folder: Path) -> None:
    small = FLEET.replace("memory_mb = 1024", "memory_mb = 4")
    (folder / "fleet.toml").write_text(small)
    line = "compare three -f fleet.toml -p profile.json --strategies all-device,all-cloud"
    *_, last = document(f"{line} --json")["rows"]
    assert (last["strategy"], last["valid"]) == ("all-device", False)
    assert last["step_s"] is None
    assert last["speedup"] is None
    assert "device pi needs" in last["why_not"]
    table, below = weft(line).stdout.split("not for this fleet: ")
    assert below.startswith("all-device (device pi needs")
    assert "all-cloud" in table
    assert "all-device" not in table


def test_compare_fails_when_no_strategy_is_possible(folder: Path) -> None:
    (folder / "fleet.toml").write_text(FLEET.replace("memory_mb = 1024", "memory_mb = 0.5"))
    result = weft("compare three -f fleet.toml -p profile.json --strategies all-device --json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["rows"][0]["valid"] is False
    assert "error: no strategy is possible" in result.stderr


@pytest.mark.proof
def test_a_compared_option_reaches_the_strategies_that_know_it(folder: Path) -> None:
    line = "compare three -f fleet.toml -p profile.json --batch 64 --json"
    plain, halved = document(line), document(f"{line} --set codec=fp16")
    step = {row["strategy"]: row["step_s"] for row in plain["rows"]}
    for row in halved["rows"]:
        if row["strategy"] == "jalad":  # is 8 bits by definition
            assert "int8" in row["why_not"]
            continue
        if step[row["strategy"]] is None:  # impossible on this fleet, with any codec
            continue
        assert row["valid"]
        if (
            row["strategy"] == "hiertrain+"
        ):  # has 8 bits where no codec is named, and then takes this one
            assert row["step_s"] >= step[row["strategy"]]
            continue
        assert row["step_s"] <= step[row["strategy"]] * (1 + 1e-9)


def test_a_saved_plan_can_be_simulated_drawn_and_traced(folder: Path) -> None:
    assert weft(f"{PLAN} -s chain -o plan.json --draw plan.png").exit_code == 0
    simulated = document("simulate plan.json --steps 5 --gantt g.png --trace t.json --json")
    planned = json.loads((folder / "plan.json").read_bytes())
    assert simulated["steps"] == 5
    assert simulated["step_s"] == pytest.approx(planned["predicted"]["step_s"])
    assert json.loads((folder / "t.json").read_bytes())["traceEvents"]
    for picture in ("g.png", "plan.png"):
        assert (folder / picture).read_bytes().startswith(b"\x89PNG")
    assert "predicted" in weft("simulate plan.json").stdout


def test_notes_about_written_files_go_to_stderr(folder: Path) -> None:
    result = weft(f"{PLAN} -s chain -o plan.json --json")
    json.loads(result.stdout)
    assert "wrote plan.json" in result.stderr


def test_profiles_are_derived_and_joined_device_by_device(folder: Path) -> None:
    derive = "profile lenet5 --gflops {} --device {} -o lenet5.json {} --json"
    document(derive.format(0.9, "pi", ""))
    document(derive.format(7.5, "nuc", "--add"))
    both = document(derive.format(40, "cloud", "--add"))
    assert list(both["devices"]) == ["pi", "nuc", "cloud"]
    assert both["layers"][0]["name"] == "conv1"
    slow, fast = (both["devices"][name]["forward_s"][0] for name in ("pi", "cloud"))
    assert slow / fast == pytest.approx(40 / 0.9)
    derived = document("plan lenet5 -f fleet.toml -s chain --json")
    given = document("plan lenet5 -f fleet.toml -s chain --profile lenet5.json --json")
    assert given["predicted"]["step_s"] == pytest.approx(derived["predicted"]["step_s"])


def test_a_profile_is_measured_on_this_machine() -> None:
    found = document("profile mlp --batch 4 --json")
    assert list(found["devices"]) == ["here"]
    here = found["devices"]["here"]
    assert len(here["forward_s"]) == len(found["layers"])
    assert sum(here["forward_s"]) + sum(here["forward_call_s"]) > 0


def test_the_users_own_network_is_planned_by_its_file_name(folder: Path) -> None:
    (folder / "net.py").write_text(
        "from torch import nn\n"
        "def build():\n"
        "    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))\n"
    )
    plan = document("plan net.py:build -f fleet.toml -s all-device --input-shape 8 --json")
    assert plan["model"] == "net"
    assert plan["shards"][0]["layers"] == [0, 1]


BAD = [
    ("plan lenet6 -f fleet.toml -s chain", "did you mean lenet5"),
    ("plan lenet5 -f fleet.toml -s chian", "did you mean chain"),
    ("plan lenet5 -f none.toml -s chain", "none.toml: No such file"),
    ("plan none.py:build -f fleet.toml -s chain", "none.py: there is no such file"),
    ("plan lenet5 -f fleet.toml -s chain --input-shape 1xx28", "'1xx28' is not a shape"),
    ("plan lenet5 -f fleet.toml -s chain --input-shape 0x28x28", "is not a shape"),
    (f"{PLAN} -s chain --batch 0", "batch 0 is not allowed"),
    (f"{PLAN} -s chain --batch -3", "batch -3 is not allowed"),
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


@pytest.mark.parametrize(
    ("raised", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (Terminated(), 143, "terminated\n"),
        (LostDevice("pi", "device pi is silent"), 1, "error: device pi is silent\n"),
    ],
)
def test_however_a_command_ends_its_last_words_are_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, raised: BaseException, code: int, message: str
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise raised

    monkeypatch.setattr("weft.planning.decide.decide", fail)
    result = weft(f"{PLAN} -s chain")
    assert (result.exit_code, result.stderr, result.stdout) == (code, message, "")


@pytest.mark.parametrize(
    "command", ["models", "strategies", "profile", "plan", "compare", "simulate"]
)
def test_every_command_has_help_with_an_example_and_json(command: str) -> None:
    result = weft(f"{command} --help")
    assert result.exit_code == 0
    assert f"weft {command}" in result.stdout
    assert "Example:" in result.stdout
    assert "--json" in result.stdout


def test_the_real_command_works_as_a_process_without_importing_torch(folder: Path) -> None:
    code = (
        "import sys; from weft.cli import app\n"
        "try: app()\n"
        "finally: print('torch' in sys.modules, file=sys.stderr)\n"
    )
    line = [sys.executable, "-c", code, *f"{PLAN} -s chain --json".split()]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["model"] == "three"
    assert done.stderr.strip() == "False"


def test_help_imports_no_planner() -> None:
    script = (
        "import sys, weft.cli; heavy = {'torch', 'numpy', 'weft.api', 'weft.plans.registry'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("columns", [80, None])
def test_the_bar_shows_how_far_a_run_is_in_any_terminal(
    columns: int | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In 80 columns, and in a file, it ended with `60…`: the count and the time were cut."""
    if columns is not None:
        monkeypatch.setenv("FORCE_COLOR", "1")  # as in a terminal
        monkeypatch.setenv("COLUMNS", str(columns))
    with progress_bar(1000) as on_progress:
        on_progress(Step(1000, 1000, 0.413, 104.0, 0.101, 64))
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
    assert "1000/1000" in text
    assert "predicted 101 ms" in text
    assert "…" not in text


def test_another_device_s_words_do_not_command_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Seen: an error that a node sends was printed as it came."""
    say("nuc: \x1b]0;title\x07 \x9b2J\r gone\nlast line\t.")
    assert capsys.readouterr().err == "nuc: \\x1b]0;title\\x07 \\x9b2J\\r gone\nlast line\t.\n"
