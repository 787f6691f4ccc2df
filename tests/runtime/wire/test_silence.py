"""A device whose heartbeats stop is silent; one that gets no CPU time, or is not listened to, is not."""

from __future__ import annotations

from weft.runtime.wire.silence import BEAT_S, Silence

FLEET = ("pi", "nuc", "cloud")


def listen(silence: Silence, begin: float, ticks: int, beating: tuple[str, ...]) -> list[str]:
    """Ticks on time; these devices are heard before each."""
    fallen = []
    for tick in range(ticks):
        now = begin + tick * BEAT_S
        for device in beating:
            silence.heard(device, now)
        fallen += silence.tick(now, FLEET)
    return fallen


def test_a_device_that_stops_is_silent_after_patience_and_the_others_are_not() -> None:
    silence = Silence(1.0)
    assert listen(silence, 0.0, 10, FLEET) == []
    assert listen(silence, 2.0, 5, ("pi", "nuc")) == []
    assert listen(silence, 3.0, 3, ("pi", "nuc")) == ["cloud"]
    assert silence.silent == {"cloud"}
    assert silence.heard("cloud", 4.0)
    assert silence.silent == set()


def test_a_listener_that_was_starved_blames_nobody() -> None:
    silence = Silence(1.0)
    listen(silence, 0.0, 10, FLEET)
    silence.heard("pi", 60.0)  # the heartbeats of a minute lie in the queue: pi's is read first
    assert silence.tick(60.0, FLEET) == []


def test_when_nobody_is_heard_nobody_is_blamed() -> None:
    silence = Silence(1.0)
    listen(silence, 0.0, 10, FLEET)
    assert listen(silence, 2.0, 100, ()) == []


def test_a_single_device_is_noticed_without_a_witness() -> None:
    silence = Silence(1.0)
    listen(silence, 0.0, 10, ("pi",))
    assert listen(silence, 2.0, 8, ()) == ["pi"]


def test_irregular_heartbeats_of_others_give_everybody_more_time() -> None:
    silence = Silence(1.0)
    listen(silence, 0.0, 10, FLEET)
    silence.heard("pi", 2.6)  # 0.8 s after the one before: the machine is busy
    assert silence.limit > 3.9
    assert listen(silence, 2.8, 15, ("pi", "nuc")) == []


def test_more_time_ends_before_the_connection_would_be_closed() -> None:
    """One gap of 2 s gave a stopped device 10 s, and Zenoh closes a connection after 10 s: it was called
    gone."""
    silence = Silence(1.0)
    listen(silence, 0.0, 10, FLEET)
    silence.heard("pi", 4.0)
    assert 2.0 < silence.limit < 8.0
    assert Silence(20.0).limit == 20.0  # what the user asks for holds


def test_a_device_that_is_stopped_before_its_first_heartbeat_is_silent_too() -> None:
    """It was not watched before its first heartbeat: after 10 s Zenoh closed its connection, it was called
    gone, and it kept a copy of the run for a minute, because it took the coordinator for dead."""
    silence = Silence(1.0)
    for device in FLEET:
        silence.expect(device, 0.0)
    assert listen(silence, 0.0, 25, ("pi", "nuc")) == []  # a node that starts up gets more time
    assert listen(silence, 5.0, 10, ("pi", "nuc")) == ["cloud"]
    assert silence.heard("cloud", 8.0)


def test_a_device_that_was_only_expected_does_not_hide_the_silence_of_the_single_other_one() -> (
    None
):
    silence = Silence(1.0)
    silence.expect("stranger", 0.0)
    listen(silence, 0.0, 10, ("pi",))
    assert listen(silence, 2.0, 8, ()) == ["pi"]


def test_late_ticks_do_not_keep_a_stopped_device_until_zenoh_closes_its_connection() -> None:
    """On a machine with a tick a second, the 6 s that irregular heartbeats give took 15 s by the clock: a
    stopped device was called gone, and took its coordinator for dead."""
    silence = Silence(1.0)
    listen(silence, 0.0, 10, FLEET)
    silence.heard("pi", 4.0)
    fallen_at = {}
    for now in range(5, 20):
        silence.heard("pi", now)
        silence.heard("nuc", now)
        fallen_at |= dict.fromkeys(silence.tick(now, FLEET), now)
    last_heard = 9 * BEAT_S
    assert fallen_at.keys() == {"cloud"}
    assert 8.0 < fallen_at["cloud"] - last_heard < 10.0


def test_only_watched_devices_fall_silent_and_a_dead_one_is_forgotten() -> None:
    silence = Silence(1.0)
    listen(silence, 0.0, 10, FLEET)
    silence.forget("cloud")
    fallen = []
    for tick in range(20):
        silence.heard("pi", 2.0 + tick * BEAT_S)
        fallen += silence.tick(2.0 + tick * BEAT_S, {"cloud"})
    assert fallen == []
