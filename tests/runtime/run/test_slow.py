"""Who holds up a run, by what each device says it waits for."""

from __future__ import annotations

import pytest

from weft.runtime.run import slow
from weft.runtime.run.slow import Resting, end_of


@pytest.mark.parametrize(
    ("waits_for", "suspects"),
    [
        ({"pi": "nuc", "nuc": "cloud", "cloud": ""}, ["cloud"]),  # it computes, or hangs
        ({"cloud": "nuc", "nuc": "pi", "pi": "nuc"}, ["nuc", "pi"]),  # the link between them is cut
        ({"pi": "@coordinator", "nuc": "pi"}, []),  # the samples are late: no device is to blame
        ({"pi": "", "nuc": ""}, []),  # nobody waits
        ({"pi": "gone"}, []),  # who does not answer is noticed in another way
    ],
)
def test_words_lead_to_who_holds_up_the_others(
    waits_for: dict[str, str], suspects: list[str]
) -> None:
    assert end_of(waits_for) == suspects


def test_a_slow_device_rests_longer_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(slow.time, "monotonic", lambda: now)
    resting = Resting()
    resting.add("nuc")
    assert resting.rested({"nuc", "box"}) == {"box"}
    now += 31.0
    assert resting.rested({"nuc"}) == {"nuc"}
    resting.add("nuc")
    now += 31.0
    assert resting.rested({"nuc"}) == set()
