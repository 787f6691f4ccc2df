"""The result of a run as words."""

from __future__ import annotations

from weft.report.results import event_words


def test_an_event_without_a_reason_is_told_by_what_it_is_about() -> None:
    """The table of a swarm or of peers that had lost a device failed once: such events have no `why`."""
    lost = {"step": 3, "kind": "device_lost", "at_s": 0.5, "device": "n2", "silent_s": 0.1}
    assert event_words(lost) == "device_lost: device n2, silent_s 0.1"
    assert event_words({**lost, "why": "n2 is gone"}) == "device_lost: n2 is gone"
