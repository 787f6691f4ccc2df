"""Fuzzing: a real node gets random, mutated, replayed, reordered and truncated messages on all its keys.

    python benchmarks/fuzz.py 1000000        the same with as many messages as one likes

Half of the messages carry the run's key: they come from a device of the run that has turned bad, and reach
what lies behind the seal. Valid messages among them come in any order. The node must not crash, must take no
memory for good, and must still do its work.
"""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
import zenoh
from safetensors.torch import save

from proofs.case import Case, check, digest_of, source_digest
from proofs.fuzz_lines import SENDER, Lines, record
from weft.errors import WeftError
from weft.graph.network import Node, Ref, Segment, State, Value
from weft.graph.optimizers.optimizer import Optimizer
from weft.runtime.emulate.local import LocalFleet
from weft.runtime.wire import messages as msg
from weft.runtime.wire import topics
from weft.runtime.wire.carrier.tickets import ask, greeting
from weft.runtime.wire.frames import BadMessage, Header, pack_header
from weft.runtime.wire.links.channel import OutLink, Roads
from weft.runtime.wire.seal import COMMAND, REPORT, Numbers, seal_header, sealed

RUN = "fuzz"
ROUND = 1000  # messages between two looks at the node
LIMIT_S = 900.0
ANSWER_S = 120.0
MESSAGES = 100_000
MAX_GROWTH = 100 << 20
SEEDS = (1, 2)


def cases() -> list[Case]:
    code = source_digest()
    return [
        Case("fuzz", f"{MESSAGES:,} messages, seed {seed}", partial(prove, seed), LIMIT_S,
             digest_of(code, files=[Path(__file__), Path(__file__).with_name("fuzz_lines.py")]))
        for seed in SEEDS
    ]  # fmt: skip


def prove(seed: int) -> str:
    """The node survives, and takes no memory for good."""
    result = fuzz(MESSAGES, seed)
    check(result.alive, f"the node ended: {result.last_words}")
    check(result.growth < MAX_GROWTH, f"the node grew by {result.growth >> 20} MB")
    return str(result)


@dataclass
class Result:
    """What came of it."""

    messages: int
    alive: bool
    growth: int  # bytes of the node's memory, at the end over the start
    answer_s: float  # the longest that `hello` took
    counts: Counter[str] = field(default_factory=Counter)  # messages by kind
    places: Counter[str] = field(default_factory=Counter)  # messages by where they went
    last_words: str = ""

    def __str__(self) -> str:
        kinds = ", ".join(f"{n:,} {kind}" for kind, n in sorted(self.counts.items()))
        places = ", ".join(f"{n:,} {place}" for place, n in sorted(self.places.items()))
        state = "0 crashes" if self.alive else f"it failed: {self.last_words}"
        return (
            f"{self.messages:,} messages ({kinds}; to {places}): {state}, {self.growth / 2**20:+.0f} MB, "
            f"hello within {self.answer_s:.2f} s"
        )


def fuzz(messages: int, seed: int = 0, progress: Callable[[int], None] | None = None) -> Result:
    """Sends so many messages to a node of its own."""
    with LocalFleet(("v1",)) as local:
        local.crew.wait_for(("v1",), ANSWER_S)
        return _Fuzz(local, random.Random(seed)).run(messages, progress)


class _Fuzz:
    """One node and what is sent to it."""

    def __init__(self, local: LocalFleet, rng: random.Random) -> None:
        self.local, self.crew, self.rng = local, local.crew, rng
        secret = self.crew.secret(RUN)
        self.keys, self.tensors = secret.keys("v1"), secret.tensors
        self.numbers = Numbers()
        self.commands = [msg.pack(command) for command in _commands(self.keys)]
        self.headers = [pack_header(header) for header in _headers()]
        self.reports = [msg.pack(report) for report in _reports()]
        self.kept: deque[tuple[str, bytes, bytes]] = deque(maxlen=64)  # to be sent again
        self.questions = [ask(run, SENDER, "v1", self.tensors) for run in (RUN, "", "other")]
        self.lines = Lines(self.crew.session, local.group, RUN, self.tensors)
        self.last_record = b""
        self.counts: Counter[str] = Counter()
        self.places: Counter[str] = Counter()
        self.slowest = 0.0

    def run(self, messages: int, progress: Callable[[int], None] | None = None) -> Result:
        before = 0
        sent = 0
        while sent < messages:
            for _ in range(min(ROUND, messages - sent)):
                self.one()
                sent += 1
            try:
                self.look()
            except WeftError as error:
                return Result(sent, False, 0, self.slowest, self.counts, self.places, str(error))
            if progress is not None:
                progress(sent)
            if not before and sent >= min(messages // 4, 10_000):  # warm: all code has been used
                before = self.memory()
        growth = self.memory() - before
        return Result(sent, True, growth, self.slowest, self.counts, self.places)

    def look(self) -> None:
        """The node answers and does honest work, and all is as at the start."""
        self.local.check()
        began = time.monotonic()
        self.crew.ask("v1", msg.Hello(), ANSWER_S)
        self.slowest = max(self.slowest, time.monotonic() - began)
        self.crew.ask("v1", msg.End(RUN), ANSWER_S)
        self.crew.ask("v1", msg.Assign(_job()), ANSWER_S)
        self.lines.new_run()

    def memory(self) -> int:
        status = Path(f"/proc/{self.local.processes['v1'].pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) * 1024

    def one(self) -> None:
        """One message on one of the keys."""
        if self.kept and self.rng.random() < 0.1:
            self.send("replayed", *self.rng.choice(self.kept))
            return
        key = self.rng.choice(
            ("control", "data", "data", "echo", "report", "answer", "door", "line")
        )
        if key == "line":
            self.on_a_line()
            return
        what, data = self.changed(
            {"control": self.commands, "echo": self.commands, "report": self.reports,
             "door": self.questions}.get(key, self.headers)
        )  # fmt: skip
        genuine = self.rng.random() < 0.5
        self.send(what, *self.addressed(key, data, genuine))

    def on_a_line(self) -> None:
        """A message on a connection for tensors; now and then the greeting of one."""
        if self.rng.random() < 0.1:
            what, data = self.changed([greeting(self.rng.randbytes(16), self.rng.randbytes(32))])
            self.lines.greet(data)
        else:
            header = _renumbered(self.rng.choice(self.headers), self.numbers.next())
            sealed_header = seal_header(self.tensors, header)
            payload = bytes(min(msgspec.msgpack.decode(header, type=Header).bytes, 4096))
            what, data = self.changed([record(sealed_header, payload)])
            if self.rng.random() < 0.1:
                what, data = "replayed", self.last_record
            self.last_record = data
            self.lines.send(data)
        self.counts[what] += 1
        self.places["line"] += 1

    def changed(self, corpus: list[bytes]) -> tuple[str, bytes]:
        """A valid message with something wrong."""
        data = self.rng.choice(corpus)
        match self.rng.randrange(6):
            case 0:
                return "random", self.rng.randbytes(self.rng.randrange(200))
            case 1:
                return "truncated", data[: self.rng.randrange(len(data) + 1)]
            case 2:
                other = self.rng.choice(corpus)
                place = self.rng.randrange(len(data) + 1)
                return "spliced", data[:place] + other[self.rng.randrange(len(other) + 1) :]
            case 3:
                return "valid", data
        changed = bytearray(data)
        for _ in range(self.rng.randint(1, 4)):
            changed[self.rng.randrange(len(changed))] = self.rng.choice(
                (self.rng.randrange(256), 0xFF, 0, 0xCB, 0xCF, 0xD3, 0xDC, 0xDF)
            )
        return "mutated", bytes(changed)

    def addressed(self, key: str, data: bytes, genuine: bool) -> tuple[str, bytes, bytes]:
        """(key, payload, attachment); genuine ones carry the run's key."""
        group, count = self.local.group, self.numbers.next()
        if key in ("control", "echo"):
            topic = topics.control(group, "v1") if key == "control" else topics.echo(group, "v1")
            right = genuine and _of_this_run(data)
            seal = sealed(self.keys.device, COMMAND, data, count) if right else b""
            return topic, data, seal
        if key == "door":
            return topics.door(group, "v1", SENDER), data, b""
        if key == "report":
            seal = sealed(self.keys.device, REPORT, data, count) if genuine else b"x"
            return topics.report(group, RUN, "v1"), data, seal
        payload = self.rng.randbytes(self.rng.choice((0, 4, 16, 4096)))
        if key == "answer":
            seal = sealed(self.keys.device, REPORT, data, count)
            return topics.answer(group, RUN, "v1"), payload, data + (seal if genuine else b"x")
        attachment = seal_header(self.tensors if genuine else b"x", _renumbered(data, count))
        return topics.data(group, "v1", "pi", RUN), payload, attachment

    def send(self, what: str, topic: str, payload: bytes, attachment: bytes) -> None:
        self.counts[what] += 1
        self.places[topic.removeprefix(f"{self.local.group}/").partition("/")[0]] += 1
        self.kept.append((topic, payload, attachment))
        session = self.crew.session
        if any(f"/{key}/" in topic for key in ("control", "echo", "door")):
            nobody: Any = zenoh.handlers.Callback(lambda _: None)
            session.get(topic, nobody, payload=payload, attachment=attachment, timeout=5.0)
        else:
            block = zenoh.CongestionControl.BLOCK
            session.put(topic, payload, attachment=attachment, congestion_control=block)


def _of_this_run(data: bytes) -> bool:
    """Whether a command is not a job of another run, which nobody would end."""
    try:
        command = msg.unpack_command(data)
    except BadMessage:
        return True
    return not isinstance(command, msg.Assign) or command.job.run == RUN


def _renumbered(data: bytes, count: int) -> bytes:
    try:
        header = msgspec.msgpack.decode(data, type=Header)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return data
    return pack_header(msgspec.structs.replace(header, count=count))


def _job(**fields: Any) -> msg.Job:
    linear = Node("y", "aten.linear.default", [Ref("x"), Ref("w")])
    value = Value((1, 4), "float32")
    segment = Segment(0, 0, [linear], {"x": value}, {"y": value}, {"w": State((4, 4), "float32")})
    plain: dict[str, Any] = {
        "run": RUN, "version": 0, "mode": "infer", "batch": 1, "layers": 1, "code": (),
        "segments": (segment,), "inputs": ("x",), "optimizer": Optimizer(), "deadline_s": 0.05,
        "roads": Roads(links=(OutLink("pi", "c"),), next_hop={"pi": "pi", "nuc": "pi"}),
    }  # fmt: skip
    return msg.Job(**{**plain, **fields})


def _commands(keys: Any) -> list[msg.Command]:
    weights = save({"w": torch.zeros(4, 4)})
    network = msg.TestNetwork(RUN, _job().segments[0], 2)
    return [
        msg.Hello(), msg.Echo(b"echo"), msg.Assign(_job(), keys), msg.Weights(RUN, weights),
        msg.Weights(RUN, weights, optimizer=True), msg.Prepare(RUN), msg.Run(RUN, 0, 2),
        msg.GetState(RUN), msg.GetState(RUN, ("w",)), msg.GetTimeline(RUN), msg.Where(RUN),
        msg.GoBack(RUN, 1), network, msg.ProbeServers(RUN, {"pi": msg.Exchange(100, 0.01)}),
        msg.Cancel(RUN, "why"), msg.End(RUN), msg.Assign(_job(mode="train", version=1), keys),
    ]  # fmt: skip


def _headers() -> list[Header]:
    from weft.codecs.tensors import TensorSpec

    spec = TensorSpec("x", "float32", (1, 4), "none")
    return [
        Header(RUN, 0, 0, "act", 0, 0, "pi", "v1", 16, (spec,)),
        Header(RUN, 0, 1, "act", 0, 0, "pi", "v1", 4096, ()),
        Header(RUN, 0, 2, "act", 0, 0, "pi", "v1", 8192, (), piece=0, pieces=2),
        Header(RUN, 0, 3, "probe", 1, 0, "pi", "v1", 4, ()),
        Header(RUN, 0, 3, "probed", 1, 0, "pi", "v1", 4, ()),
        Header(RUN, 0, 4, "feed", 0, 0, "coordinator", "v1", 16, (spec,)),
        Header(RUN, 0, 5, "act", 0, 0, "v1", "pi", 16, (spec,), due=1.0),
        Header(RUN, 0, 6, "act", 0, 0, "pi", "nuc", 0, (), slot=1, attempt=1),
        Header(RUN, 0, 7, "probe", 0, 0, "*", "v1", 0, ()),  # `*` is everybody to the network
        Header(RUN, 0, 8, "act", 0, 0, "pi", "*", 0, ()),
    ]


def _reports() -> list[msg.Report]:
    return [
        msg.Progress("v1", 3, ((1, 0.5),)), msg.Finished("v1", 2), msg.Failed("v1", "broken"),
        msg.ServerProbed("v1", "pi", True), msg.Notice("v1", 1.0),
        msg.Kept("v1", 0, 1, save({"w": torch.zeros(4)})),
    ]  # fmt: skip
