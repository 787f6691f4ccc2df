"""Channels of one sender on a shared medium."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from weft.runtime.emulate.shaping import clock_name
from weft.runtime.wire.channel import Channel, Ledger, OutLink
from weft.runtime.wire.frames import Header
from weft.runtime.wire.session import Endpoints, free_endpoint, open_session


def test_a_medium_carries_messages_in_the_order_in_which_they_are_ready(tmp_path: Path) -> None:
    """Two messages for one neighbour, then one for another: the second does not wait for the third,
    though each neighbour has a queue of its own. The simulator counts in this order."""
    session = open_session(Endpoints(listen=(free_endpoint(),)))
    ledger = Ledger("gw")
    shared = clock_name("air")
    channels = {
        name: Channel(
            session, f"test-medium/{name}", OutLink(name, "air", 1e5, 0.0, shared), ledger,
            lambda _: False, record=True, scratch=tmp_path,
        )
        for name in ("a", "b")
    }  # fmt: skip
    payload = bytes(3000)  # 30 ms
    for at, name in enumerate(("a", "a", "b", "a")):
        header = Header("run", 1, 0, "down", at, 0, "gw", name, len(payload))
        channels[name].put(header, payload)
    while len(ledger.transfers) < 4:
        assert all(channel._thread.is_alive() for channel in channels.values())
        channels["a"]._thread.join(0.01)
    for channel in channels.values():
        channel.stop()
    session.close()
    spans = sorted(ledger.transfers, key=lambda span: span.start)
    assert [span.label for span in spans] == ["down0>a", "down1>a", "down2>b", "down3>a"]
    assert all(x.end <= y.start + 1e-9 for x, y in pairwise(spans))
