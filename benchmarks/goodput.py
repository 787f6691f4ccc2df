"""Goodput of a shaped 50 Mbps link, for messages from 10 kB to 4 MB, as a share of its rate.

Two node processes; the payload bytes that arrived, over the time from the first message's sending to the
last one's arrival (the sender always has the next message ready).
"""

from __future__ import annotations

import threading
import time

import msgspec

from weft.runtime.wire.fabric import Fabric
from weft.runtime.wire.frames import Header
from weft.runtime.wire.links.channel import OutLink, Roads
from weft.runtime.wire.session import Endpoints, free_endpoint, open_session

MBPS = 50.0


def goodput(size: int, seconds: float) -> float:
    """The share of the rate that messages of one size reach."""
    rate = MBPS * 1e6 / 8
    count = max(8, int(seconds * rate / size))
    endpoint = free_endpoint()
    receiver_session = open_session(Endpoints(listen=(endpoint,)))
    sender_session = open_session(Endpoints(listen=("tcp/127.0.0.1:0",), join=(endpoint,)))
    sender, receiver = Fabric(sender_session, "g", "a"), Fabric(receiver_session, "g", "b")
    try:
        sender.begin("run", Roads((OutLink("b", "a>b", rate),), {"b": "b"}), record=False)
        receiver.begin("run", Roads(), record=False)
        sender.wait_for_neighbours(10.0)
        begin = time.monotonic()
        thread = threading.Thread(target=_send, args=(sender, size, count))
        thread.start()
        for step in range(count):
            receiver.mailbox.take((0, step, "act", 0, 0, 0), 60.0, lambda: "a message")
        took = time.monotonic() - begin
        thread.join()
    finally:
        sender.close()
        receiver.close()
        sender_session.close()
        receiver_session.close()
    return count * size / took / rate


def _send(fabric: Fabric, size: int, count: int) -> None:
    header = Header("run", 0, 0, "act", 0, 0, "a", "b", size)
    payload = bytes(size)
    for step in range(count):
        fabric.send(msgspec.structs.replace(header, step=step), payload)


def main() -> None:
    print(f"{'message':>10} {'goodput':>9}")
    for size in (10_000, 100_000, 1_000_000, 4_000_000):
        print(f"{size / 1e3:>7.0f} kB {goodput(size, 4.0):>9.1%}", flush=True)


if __name__ == "__main__":
    main()
