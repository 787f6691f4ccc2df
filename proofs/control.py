"""Control is never blocked: `hello`, `end` and SIGTERM within a second, whatever else goes on at the node.

Each case is a storm: something that keeps the node busy. What a bad device of the run does comes from a
process of its own. Meanwhile the owner asks `hello` again and again, and at last ends the run. Then the node
gets another run and a SIGTERM. The times are wall-clock times: other work on this machine counts too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import zenoh
from safetensors.torch import save

from proofs.case import Case, check, digest_of, source_digest
from weft.errors import WeftError
from weft.graph.network import Node, Ref, Segment, State, Value
from weft.graph.optimizers.optimizer import Optimizer
from weft.program import instructions as ins
from weft.runtime.emulate.local import LocalFleet
from weft.runtime.wire import messages as msg
from weft.runtime.wire import topics
from weft.runtime.wire.carrier.line import Line
from weft.runtime.wire.carrier.opening import LineOpener
from weft.runtime.wire.frames import Header, pack_header
from weft.runtime.wire.links.channel import OutLink, Roads
from weft.runtime.wire.seal import Numbers, seal_header
from weft.runtime.wire.session import Endpoints, open_session

LIMIT_S = 1.0
CASE_S = 240.0
STORM_S = 5.0
WARM_S = 3.0  # in which a storm begins
LONG_S = 120.0
RUN = "storm"
WIDE = 1500  # of a matrix whose product takes long


class Owner:
    """One node with a run, and its owner."""

    def __init__(self, local: LocalFleet) -> None:
        self.local, self.crew = local, local.crew
        self.over = threading.Event()

    def ask(self, command: msg.Command) -> list[msg.Reply]:
        return self.crew.ask("v1", command, LONG_S)


class Bad:
    """A device of the run that has turned bad, in a process of its own."""

    def __init__(self, session: Any, endpoint: str, group: str, key: bytes) -> None:
        self.session, self.endpoint, self.group, self.key = session, endpoint, group, key
        self.over = threading.Event()  # never: the process is ended
        self._numbers = Numbers()

    def header(self, size: int = 0, **fields: Any) -> bytes:
        plain = {"run": RUN, "version": 0, "step": 0, "kind": "act", "at": 0, "micro": 0,
                 "source": "pi", "dest": "v1", "bytes": size, "count": self._numbers.next()}  # fmt: skip
        return seal_header(self.key, pack_header(Header(**{**plain, **fields})))

    def line(self) -> Line:
        """A line to the node, as soon as it has the run."""
        opener = LineOpener(self.session, self.group, "pi", RUN, self.key)
        while True:
            try:
                return opener.one("v1")
            except WeftError:
                time.sleep(0.05)


def be_bad(storm: str, endpoint: str, group: str, key: bytes) -> None:
    """What the process of a bad device does."""
    with open_session(Endpoints(join=(endpoint,), listen=("tcp/127.0.0.1:0",))) as session:
        BAD[storm](Bad(session, endpoint, group, key))


def quiet(storm: Owner) -> None:
    storm.over.wait()


def waiting(storm: Owner) -> None:
    """A command that waits an hour for a neighbour that nobody is."""
    with contextlib.suppress(WeftError):
        storm.ask(msg.Prepare(RUN))


def computing(storm: Owner) -> None:
    """Minibatches of large products."""
    storm.ask(msg.Assign(job(Roads())))
    storm.ask(msg.Weights(RUN, save({"w": torch.zeros(WIDE, WIDE)})))
    storm.ask(msg.Prepare(RUN))
    storm.ask(msg.Run(RUN, 0, 100_000))
    storm.over.wait()


def many_weights(storm: Owner) -> None:
    pieces = save({"w": torch.zeros(WIDE, WIDE)})
    while not storm.over.is_set():
        with contextlib.suppress(WeftError):
            storm.ask(msg.Weights(RUN, pieces))


def echoes(storm: Bad) -> None:
    """As a member of the fleet may, without end."""
    questions(storm, topics.echo(storm.group, "v1"), msg.pack(msg.Echo(bytes(100))))


def tickets(storm: Bad) -> None:
    questions(storm, topics.door(storm.group, "v1", "pi"), bytes(50))


def questions(storm: Bad, key: str, payload: bytes) -> None:
    nobody: Any = zenoh.handlers.Callback(lambda _: None, indirect=False)
    while not storm.over.is_set():
        for _ in range(1000):
            storm.session.get(key, nobody, payload=payload, timeout=1.0)
        time.sleep(0.2)


def headers(storm: Bad) -> None:
    """Small messages without a seal."""
    key = topics.data(storm.group, "v1", "pi", RUN)
    while not storm.over.is_set():
        for _ in range(1000):
            storm.session.put(key, b"", attachment=b"x" * 100)
        time.sleep(0.1)


def large_tensors(storm: Bad) -> None:
    """Genuine ones, on a line; nobody asks for them."""
    payload = bytes(4 << 20)
    while not storm.over.is_set():
        line = storm.line()
        with contextlib.suppress(WeftError):  # the run has ended
            for step in range(10_000):
                rest = line.send(storm.header(len(payload), step=step), [payload])
                line.finish(rest, storm.over)
        line.close()


def connections(storm: Bad) -> None:
    """To the port for tensors, as many as somebody can open; each says a little."""
    line = storm.line()
    where = line._socket.getpeername()[:2]
    kept: list[socket.socket] = []
    while not storm.over.is_set():
        with contextlib.suppress(OSError):
            kept.append(socket.create_connection(where, 1.0))
            kept[-1].send(b"weft")
        if len(kept) > 200:
            kept.pop(0).close()
    for connection in [*kept, line]:
        connection.close()


def half_open(storm: Bad) -> None:
    """Connections to Zenoh's port that never begin a handshake."""
    host, _, port = storm.endpoint.partition("/")[2].rpartition(":")
    with contextlib.ExitStack() as stack:
        for _ in range(60):
            with contextlib.suppress(OSError):
                stack.enter_context(socket.create_connection((host, int(port)), 1.0))
        storm.over.wait()


OWN: dict[str, Callable[[Owner], None]] = {
    storm.__name__: storm for storm in (quiet, waiting, computing, many_weights)
}
BAD: dict[str, Callable[[Bad], None]] = {
    storm.__name__: storm
    for storm in (echoes, tickets, headers, large_tensors, connections, half_open)
}


def cases() -> list[Case]:
    digest = digest_of(source_digest(), files=[Path(__file__)])
    return [
        Case("control", storm.replace("_", " "), partial(prove, storm), CASE_S, digest)
        for storm in (*OWN, *BAD)
    ]


def prove(storm: str) -> str:
    hello, end, signal_s = measure(storm)
    words = f"hello within {hello:.2f} s, end {end:.2f} s, SIGTERM {signal_s:.2f} s"
    check(max(hello, end, signal_s) <= LIMIT_S, words)
    return words


def measure(storm: str) -> tuple[float, float, float]:
    """(the longest `hello`, `end`, SIGTERM), in seconds."""
    with LocalFleet(("v1",)) as local:
        local.crew.wait_for(("v1",), LONG_S)
        with raging(local, storm) as owner:
            hello, until = 0.0, time.monotonic() + STORM_S
            while time.monotonic() < until:
                hello = max(hello, timed(lambda: owner.ask(msg.Hello())))
                time.sleep(0.02)
            end = timed(lambda: owner.ask(msg.End(RUN)))
        with raging(local, storm):
            time.sleep(WARM_S)
            process = local.processes["v1"]
            signal_s = timed(lambda: ended(process))
    return hello, end, signal_s


def ended(process: Any) -> None:
    os.kill(process.pid, signal.SIGTERM)
    check(process.wait(timeout=LONG_S) == 0, "the node did not end cleanly")


@contextlib.contextmanager
def raging(local: LocalFleet, storm: str) -> Iterator[Owner]:
    """The node has a run, and the storm is on."""
    owner = Owner(local)
    owner.ask(msg.Assign(job(Roads((OutLink("nobody", "c"),)))))
    if storm in OWN:
        threading.Thread(target=OWN[storm], args=(owner,), daemon=True).start()
        try:
            yield owner
        finally:
            owner.over.set()
        return
    key = local.crew.secret(RUN).tensors
    words = repr((storm, local.endpoint, local.group, key))
    code = f"import sys; sys.path[:0] = {sys.path!r}; from proofs.control import be_bad; be_bad(*{words})"
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        time.sleep(WARM_S)
        yield owner
    finally:
        alive = process.poll() is None
        process.kill()
        process.wait()
        check(alive, "the bad device ended")


def timed(do: Callable[[], object]) -> float:
    began = time.monotonic()
    do()
    return time.monotonic() - began


def job(roads: Roads) -> msg.Job:
    product = Node("y", "aten.linear.default", [Ref("x"), Ref("w")])
    value = Value((1, WIDE), "float32")
    weights = {"w": State((WIDE, WIDE), "float32")}
    segment = Segment(0, 0, [product], {"x": value}, {"y": value}, weights)
    return msg.Job(
        run=RUN, version=0, mode="train", batch=1, layers=1, segments=(segment,),
        code=(ins.Squares(ins.Tensor("gnorm", 0), ()),), inputs=("x",), optimizer=Optimizer(), roads=roads,
        deadline_s=3600.0,
    )  # fmt: skip
