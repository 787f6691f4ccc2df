"""The pinned versions are all there is: whoever searches them for known weaknesses has searched everything.

`make lint` runs this file, off-line. The search itself asks a public list over the network: docs/release.md.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from weft.errors import InputError

ROOT = Path(__file__).resolve().parents[1]
PIN = re.compile(
    r"([A-Za-z0-9._-]+)==([0-9][0-9A-Za-z.+!]*)( ; python_version [<>=]+ \"[0-9.]+\")?"
)
NOT_HERE = {"tensorboard", "pip", "setuptools"}


def pinned() -> dict[str, str]:
    """Name -> version. A line that pins nothing exactly is an error."""
    pins = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            match = PIN.fullmatch(line)
            if match is None:
                raise InputError(f"constraints.txt: {line!r} pins no exact version")
            pins[canonicalize_name(match[1])] = match[2]
    return pins


def needed() -> set[str]:
    """Everything that is installed here for Weft and its extras, and what that needs."""
    wanted: set[str] = set()
    waiting = [(Requirement(line), "all") for line in requires("weft") or ()]
    while waiting:
        requirement, extra = waiting.pop()
        name = canonicalize_name(requirement.name)
        extras = sorted(requirement.extras) or [""]
        marker = requirement.marker
        if extra != "all" and marker is not None and not marker.evaluate({"extra": extra}):
            continue
        try:
            lines = requires(name) or ()
        except PackageNotFoundError:  # for another system, or an extra that is not installed
            continue
        if name not in wanted:
            wanted.add(name)
            waiting += [(Requirement(line), each) for line in lines for each in extras]
    return wanted


def test_every_line_pins_one_exact_version() -> None:
    assert len(pinned()) > 80


def test_whatever_weft_needs_here_is_pinned() -> None:
    missing = needed() - pinned().keys() - NOT_HERE
    assert missing == set(), f"constraints.txt does not pin {', '.join(sorted(missing))}"


@pytest.mark.parametrize("option", ["--no-deps", "--disable-pip", "--strict"])
def test_the_search_for_known_weaknesses_cannot_pass_without_having_searched(option: str) -> None:
    """Seen: without --strict, and without a way to the list, `pip-audit` ended with 0 and "no known
    vulnerabilities"; without --disable-pip it asked for a local version (+cpu) that no list has."""
    page = (ROOT / "docs" / "release.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"`(pip-audit -r [^`]+)`", page)
    assert option in command.split()


def test_the_oldest_versions_of_the_release_check_are_those_of_pyproject() -> None:
    page = (ROOT / "docs" / "release.md").read_text(encoding="utf-8")
    named = dict(re.findall(r"([a-z-]+)==([0-9.]+?)(?:\.0)*(?=\s)", page))
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    allowed = dict(re.findall(r'"([a-z-]+)>=([0-9.]+?)(?:\.0)*[";]', text))
    assert len(named) > 8
    assert {name: allowed.get(name) for name in named} == named
