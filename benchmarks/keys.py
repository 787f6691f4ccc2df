"""What keys cost: seconds at a run's start, and CPU time of a hop (both ends), with and without.

Interleaved, medians. Start: a command opens its session, hears of a node, and has its answer. Hop: tensors
from one session to another on this machine, through the fabric, as between two devices.

python benchmarks/keys.py
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from contextlib import ExitStack

from weft.runtime.keys.invite import take_invite
from weft.runtime.keys.owner import invite, new_fleet
from weft.runtime.node.node import Node
from weft.runtime.wire import messages as msg
from weft.runtime.wire.crew import Crew
from weft.runtime.wire.fabric import Fabric
from weft.runtime.wire.frames import Header
from weft.runtime.wire.links.channel import OutLink, Roads
from weft.runtime.wire.reach import reach
from weft.runtime.wire.seal import (
    REPORT,
    RunSecret,
    check_seal,
    header_is_sealed,
    seal_header,
    sealed,
    split_header,
)
from weft.runtime.wire.session import Endpoints, door_hosts, free_endpoint, open_session

ROUNDS = 7
OPEN, CLOSED = "bench-open", "bench-keys"


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        os.environ["XDG_CONFIG_HOME"] = home
        folder = new_fleet(CLOSED)
        for name in ("a", "b"):
            take_invite(invite(folder, name), name)
        seal_cost()
        start_cost()
        for size, count in ((1_000, 2000), (50_000, 1000), (1_000_000, 150)):
            hop_cost(size, count)


def seal_cost() -> None:
    key, header = RunSecret().tensors, bytes(180)
    rounds = 20_000
    begin = time.process_time()
    for _ in range(rounds):
        header_is_sealed(key, *split_header(seal_header(key, header)))
    print(f"seal of a tensor header, made and checked: {per(begin, rounds):.1f} us")
    begin = time.process_time()
    for _ in range(rounds):
        check_seal(key, REPORT, header, sealed(key, REPORT, header, 1))
    print(f"seal of a report of 180 bytes, made and checked: {per(begin, rounds):.1f} us")


def per(begin: float, rounds: int) -> float:
    return (time.process_time() - begin) / rounds * 1e6


def ends(group: str) -> tuple[Endpoints, Endpoints]:
    """Of a node a, and of a node b that joins it."""
    where = free_endpoint().removeprefix("tcp/")
    first = reach(group, name="a", listen=(where,))
    return first, reach(group, name="b", listen=("127.0.0.1:0",), join=(where,))


def start_cost() -> None:
    took: dict[str, list[float]] = {OPEN: [], CLOSED: []}
    with ExitStack() as stack:
        nodes = {group: ends(group)[0] for group in took}
        stop = threading.Event()
        for group, endpoints in nodes.items():
            node = stack.enter_context(Node("a", endpoints, group))
            threading.Thread(target=node.serve, args=(stop,), daemon=True).start()
        for _ in range(ROUNDS):
            for group, endpoints in nodes.items():
                begin = time.monotonic()
                where = (endpoints.listen[0],)
                with Crew(reach(group, join=where), group) as crew:
                    crew.wait_for(("a",), 30.0)
                    crew.ask("a", msg.Hello(), 30.0)
                    took[group].append(time.monotonic() - begin)
        stop.set()
    plain, keys = (statistics.median(took[group]) for group in (OPEN, CLOSED))
    print(f"start: {plain:.3f} s without keys, {keys:.3f} s with: {keys - plain:+.3f} s")


def hop_cost(size: int, count: int) -> None:
    took: dict[str, list[float]] = {OPEN: [], CLOSED: []}
    with ExitStack() as stack:
        pairs = {}
        for group in took:
            first, second = ends(group)
            receiver, sender = (
                Fabric(stack.enter_context(open_session(e)), group, name, None, door_hosts(e),
                       e.keys is not None)
                for name, e in (("a", first), ("b", second))
            )  # fmt: skip
            key = RunSecret().tensors
            receiver.begin("run", Roads(), record=False, key=key)
            sender.begin("run", Roads((OutLink("a", "b>a"),)), record=False, key=key)
            sender.wait_for_neighbours(30.0)
            pairs[group] = (sender, receiver)
        payload = os.urandom(size)
        for number in range(ROUNDS):
            for group, (sender, receiver) in pairs.items():
                begin = time.process_time()
                for step in range(count):
                    place = number * count + step
                    sender.send(Header("run", 0, place, "act", 0, 0, "b", "a", size), payload)
                    receiver.mailbox.take((0, place, "act", 0, 0, 0), 60.0, lambda: "a message")
                took[group].append((time.process_time() - begin) / count)
        for sender, receiver in pairs.values():
            sender.close()
            receiver.close()
    plain, keys = (statistics.median(took[group]) * 1e3 for group in (OPEN, CLOSED))
    print(
        f"hop of {size:>9,} bytes: {plain:.3f} ms of CPU at both ends without keys, "
        f"{keys:.3f} ms with: {100 * (keys / plain - 1):+.0f}%"
    )


if __name__ == "__main__":
    main()
