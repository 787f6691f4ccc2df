"""Commands print what is documented: one JSON document on stdout or a table, messages on stderr."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.commands.line import FLEET, PLAN, document, weft


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
