"""Faults are data: a script reads like what happens, goes through JSON, and is checked against a fleet."""

from __future__ import annotations

import pytest

from weft.errors import InputError
from weft.fleet.faults import ANY, COORDINATOR, LOST, During, Fault, Faults, Kind, check
from weft.fleet.fleet import Device, Fleet, Link

FLEET = Fleet(
    (Device("pi", data=True), Device("nuc", "edge"), Device("cloud", "cloud")),
    (Link(("pi", "nuc"), 10.0, 10.0), Link(("nuc", "cloud"), 10.0, 10.0)),
)
SCRIPT = (
    Faults(seed=7)
    .kill("nuc", step=40)
    .silence("pi", step=60, for_s=3)
    .restart("nuc", after_s=2)
    .cut("pi", "nuc", step=80, for_s=2)
    .slow("cloud", x=8)
    .fill_disk()
    .kill(COORDINATOR, step=90)
    .kill(during=During.recovery)
    .restart()
)


def test_a_script_is_the_same_after_json() -> None:
    assert Faults.from_json(SCRIPT.to_json()) == SCRIPT
    assert '"kind":"fill_disk"' in SCRIPT.to_json()


def test_a_script_grows_and_the_shorter_one_stays() -> None:
    short = Faults().kill("nuc", step=1)
    assert short.silence("nuc", step=2).fault[0] == short.fault[0]
    assert len(short.fault) == 1
    assert short.fault[0] == Fault(Kind.kill, "nuc", step=1)
    assert (Faults().kill().fault[0].device, Faults().restart().fault[0].device) == (ANY, LOST)


def test_a_script_that_fits_the_fleet_is_taken() -> None:
    check(SCRIPT, FLEET)


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (Faults().kill("box", step=1), "'box' is unknown; there are pi, nuc, cloud"),
        (Faults().silence(COORDINATOR, step=1), "unknown"),
        (Faults().cut("pi", "cloud", step=1), "no link between pi and cloud"),
        (Faults().restart("nuc"), "nuc is not killed before it"),
        (Faults().kill("pi").restart("nuc"), "killed before: pi"),
        (Faults().kill("nuc", step=-1), "step -1"),
        (Faults().silence("nuc", for_s=0), "for_s 0"),
        (Faults().slow("nuc", x=0.5), "x 0.5"),
        (Faults().kill("nuc", after_s=float("nan")), "after_s nan"),
    ],
)
def test_a_script_that_cannot_happen_is_refused_in_words(script: Faults, says: str) -> None:
    with pytest.raises(InputError, match=says):
        check(script, FLEET)


@pytest.mark.parametrize("text", ["", "[]", '{"fault":[{"kind":"melt"}]}', '{"faults":[]}'])
def test_what_is_no_script_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="not a script of faults"):
        Faults.from_json(text)
