"""Files that somebody else wrote: an absurd one is refused with exit code 2, in words, before any work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from weft.cli import app

FLEET = '[[device]]\nname = "pi"\ngflops = 1.0\ndata = true\n'
TRAIN = "train lenet5 --data mnist5k --steps 1 --local --fleet {fleet}"
USES = {
    "plan": "simulate {file}",
    "plan that is run": TRAIN.replace("--fleet {fleet}", "--plan {file}"),
    "fleet": "plan lenet5 --strategy all-device --fleet {file}",
    "profile": "plan lenet5 --strategy all-device --fleet {fleet} --profile {file}",
    "trace": TRAIN + " --strategy all-device --trace {file}",
    "replay": TRAIN.replace("--fleet {fleet}", "--replay {file}"),
    "input": "infer lenet5 --strategy all-device --local --fleet {fleet} --input {file}",
    "weights": "infer lenet5 --strategy all-device --local --fleet {fleet} --weights {file}",
}


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


CONTENTS: dict[str, Callable[[Path], object]] = {
    "a terabyte of nothing": sparse,
    "deeply nested": lambda path: path.write_text("[" * 200_000),
    "deeply nested objects": lambda path: path.write_text('{"a":' * 200_000),
    "a huge number": lambda path: path.write_text('{"batch": 1' + "0" * 5000 + "}"),
    "no text": lambda path: path.write_bytes(b"\xff\xfe\x00" * 1000),
    "nothing": lambda path: path.write_bytes(b""),
    "a false head": lambda path: path.write_bytes((1 << 62).to_bytes(8, "little") + b"{}"),
    "a folder": lambda path: path.mkdir(),
}


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("use", USES)
def test_an_absurd_file_is_refused_in_words(tmp_path: Path, use: str, content: str) -> None:
    file, fleet = tmp_path / "file.json", tmp_path / "fleet.toml"
    fleet.write_text(FLEET)
    CONTENTS[content](file)
    result = CliRunner().invoke(app, USES[use].format(file=file, fleet=fleet).split())
    assert result.exit_code == 2, result.output
    assert "file.json" in result.output.replace("\n", "")
    assert "Traceback" not in result.output


@pytest.mark.parametrize("content", CONTENTS)
def test_an_absurd_folder_is_not_resumed(tmp_path: Path, content: str) -> None:
    fleet, out = tmp_path / "fleet.toml", tmp_path / "out"
    fleet.write_text(FLEET)
    for place in (out, out / "last"):
        place.mkdir()
        CONTENTS[content](place / "run.json")
    line = TRAIN.format(fleet=fleet) + f" --strategy all-device --out {out} --resume"
    result = CliRunner().invoke(app, line.split())
    assert result.exit_code == 2, result.output
    assert "run.json" in result.output.replace("\n", "")
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "line", ["weft1:", "weft1:" + "A" * (1 << 21), "weft1:eJw", "weft1:" + "/" * 4000, "[" * 9999]
)
def test_an_absurd_invitation_is_refused_in_words(line: str) -> None:
    result = CliRunner().invoke(app, ["node", "--name", "pi", "--invite", line])
    assert result.exit_code == 2, result.output
