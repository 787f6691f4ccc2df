"""Attacks of a stranger on one open node: each is refused or bounded, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import torch
import zenoh
from safetensors.torch import save

from tests.runtime.floods import FLOODS, MB, Attacker
from weft.errors import InputError, WeftError
from weft.graph.network import Node, Ref, Segment, State, Value
from weft.graph.optimizers.optimizer import Optimizer
from weft.runtime.emulate.local import LocalFleet
from weft.runtime.wire import messages as msg
from weft.runtime.wire import topics
from weft.runtime.wire.answers import Answers
from weft.runtime.wire.crew import Crew
from weft.runtime.wire.frames import Header, pack_header
from weft.runtime.wire.links.channel import OutLink, Roads
from weft.runtime.wire.seal import Numbers, seal_header
from weft.runtime.wire.session import Endpoints

LONG_S = 60.0  # for answers: no test waits for luck


class Stranger:
    """Somebody who can reach the node v1 and knows nothing but its name."""

    def __init__(self, local: LocalFleet, crew: Crew) -> None:
        self.local, self.crew = local, crew
        self.pid = local.processes["v1"].pid
        self.numbers = Numbers()

    def ask(self, command: msg.Command) -> list[msg.Reply]:
        return self.crew.ask("v1", command, LONG_S)

    def assign(self, **fields: Any) -> None:
        self.ask(assigned(**fields))

    def put(self, number: int, size: int = 0, payload: bytes = b"", **fields: Any) -> None:
        """Sealed with the key of a run that it made itself."""
        key = self.crew.secret("stranger").tensors
        header = Header("stranger", 0, number, "act", 0, 0, "me", "v1", size, ())
        header = msgspec.structs.replace(header, **{"count": self.numbers.next(), **fields})
        self.crew.session.put(
            topics.data(self.local.group, "v1", "me", "stranger"),
            payload,
            attachment=seal_header(key, pack_header(header)),
            congestion_control=zenoh.CongestionControl.BLOCK,
        )

    def ask_echo(self, data: bytes) -> None:
        nobody: Any = zenoh.handlers.Callback(lambda _: None)
        key = topics.echo(self.local.group, "v1")
        self.crew.session.get(key, nobody, payload=msg.pack(msg.Echo(data)), timeout=5.0)

    def busy(self) -> bool:
        """Asked on the same way as messages: when this is answered, they have arrived."""
        (welcome,) = self.ask(msg.Hello())
        assert isinstance(welcome, msg.Welcome)
        return welcome.busy

    def memory(self) -> int:
        with open(f"/proc/{self.pid}/status") as status:
            return int(status.read().split("VmRSS:")[1].split()[0]) * 1024

    def most_memory(self) -> int:
        with open(f"/proc/{self.pid}/status") as status:
            return int(status.read().split("VmHWM:")[1].split()[0]) * 1024

    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/task"))

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))


def assigned(**fields: Any) -> msg.Assign:
    wanted: dict[str, Any] = {
        "run": "stranger", "version": 0, "mode": "train", "batch": 1, "layers": 1, "code": (),
        "segments": (), "inputs": ("x",), "optimizer": Optimizer(), "roads": Roads(), **fields,
    }  # fmt: skip
    return msg.Assign(msg.Job(**wanted))


@pytest.fixture(scope="module")
def open_node() -> Iterator[LocalFleet]:
    with LocalFleet(("v1",)) as local:
        local.crew.wait_for(("v1",), 180.0)
        yield local


@pytest.fixture
def stranger(open_node: LocalFleet) -> Iterator[Stranger]:
    reach = Endpoints(join=(open_node.endpoint,), listen=("tcp/127.0.0.1:0",))
    with Crew(reach, open_node.group) as crew:
        crew.wait_for(("v1",), LONG_S)
        somebody = Stranger(open_node, crew)
        yield somebody
        somebody.ask(msg.End("stranger"))
        assert not somebody.busy()


def links(count: int) -> Roads:
    return Roads(links=tuple(OutLink(f"x{i}", "c", bytes_per_s=1.0) for i in range(count)))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"roads": links(500)}, "500 links"),
        ({"deadline_s": 1e9}, "deadline"),
        ({"deadline_s": float("nan")}, "deadline"),
        ({"deadline_s": -1.0}, "deadline"),
        ({"run": ""}, "run"),
        ({"run": "**"}, "run"),
        ({"roads": Roads(links=(OutLink("**", "c"),))}, "neighbour"),
        ({"roads": Roads(next_hop={"x": "../*"})}, "next hop"),
        ({"segments": (Segment(0, 0, [], {}, {}, {"w": State((1 << 50,), "float32")}),)}, "weights"),
        ({"segments": (Segment(0, 0, [Node("y", "aten.ones.default", [[300_000_000]])], {},
                               {"y": Value((1,), "float32")}, {}),)}, "elements"),
    ],
)  # fmt: skip
def test_a_job_beyond_the_limits_is_refused_before_anything_is_taken(
    stranger: Stranger, fields: dict[str, Any], words: str
) -> None:
    threads = stranger.threads()
    with pytest.raises(InputError, match=words):
        stranger.assign(**fields)
    assert not stranger.busy()
    assert stranger.threads() == threads


def test_who_knows_a_run_s_name_can_neither_read_nor_end_it(stranger: Stranger) -> None:
    """Seen: `hello` told the run, and with it a stranger took all weights and ended it."""
    owner = stranger.local.crew
    owner.ask("v1", assigned(run="victim"), LONG_S)
    for command in (
        msg.GetState("victim"), msg.GetTimeline("victim"), msg.Where("victim"), msg.Prepare("victim"),
        msg.Weights("victim", b""), msg.Cancel("victim", "no"), msg.End("victim"),
        assigned(run="victim"),
    ):  # fmt: skip
        with pytest.raises(WeftError, match="does not carry the key of the run"):
            stranger.ask(command)
    with pytest.raises(WeftError, match="is busy with another run"):
        stranger.assign()
    assert stranger.busy()
    assert owner.ask("v1", msg.Cancel("victim", "the owner says so"), LONG_S) == [msg.Done()]
    assert owner.ask("v1", msg.End("victim"), LONG_S) == [msg.Done()]


def test_a_command_that_was_overheard_cannot_be_given_again(stranger: Stranger) -> None:
    owner = stranger.local.crew
    owner.ask("v1", assigned(run="victim"), LONG_S)
    payload, seal = owner._sealed("v1", msg.Cancel("victim", "once"), Answers())
    words = []
    for session in (owner.session, stranger.crew.session, stranger.crew.session):
        key = topics.control(stranger.local.group, "v1")
        (reply,) = session.get(key, payload=payload, attachment=seal, timeout=LONG_S)
        words.append(reply.err.payload.to_bytes() if reply.ok is None else b"done")
    assert words[0] == b"done"
    assert all(b"it is a replay" in text for text in words[1:])
    owner.ask("v1", msg.End("victim"), LONG_S)


def test_optimizer_memory_for_no_shard_is_refused(stranger: Stranger) -> None:
    stranger.assign()
    large = save({"junk": torch.zeros(8 * MB)})
    before = stranger.most_memory()
    for run in ("stranger", "nobody's"):  # refused before it is copied
        with pytest.raises(InputError, match="bytes of weights"):
            stranger.ask(msg.Weights(run, large, optimizer=True))
    assert stranger.most_memory() - before < 80 * MB
    small = save({"junk/exp_avg": torch.zeros(4)})
    with pytest.raises(InputError, match="belongs to no shard"):
        stranger.ask(msg.Weights("stranger", small, optimizer=True))


@pytest.mark.parametrize("idle", [True, False])
@pytest.mark.parametrize("flood", FLOODS, ids=lambda flood: flood.__name__)
def test_messages_without_end_fill_no_memory_and_leave_no_thread(
    stranger: Stranger, flood: Callable[[Attacker], None], idle: bool
) -> None:
    """At an idle node, and at one that works for the stranger: anybody may give an open node a run."""
    before, threads, files = stranger.memory(), stranger.threads(), stranger.descriptors()
    if not idle:
        stranger.assign()
    flood(stranger)
    assert stranger.busy() != idle
    assert stranger.memory() - before < 100 * MB
    stranger.ask(msg.End("stranger"))
    assert stranger.threads() - threads < 8
    assert stranger.descriptors() - files < 8


def test_a_large_test_network_or_result_is_refused(stranger: Stranger) -> None:
    stranger.assign()
    before = stranger.most_memory()
    weights = Segment(0, 0, [], {}, {}, {"w": State((200_000_000,), "float32")})
    column = Node("a", "aten.ones.default", [[200_000, 1]])
    row = Node("b", "aten.ones.default", [[1, 200_000]])
    product = Node("y", "aten.matmul.default", [Ref("a"), Ref("b")])
    ones = Node("y", "aten.ones.default", [[100_000_000]])
    for segment in (
        weights,
        Segment(0, 0, [ones], {}, {"y": Value((1,), "float32")}, {}),
        Segment(0, 0, [column, row, product], {}, {"y": Value((1,), "float32")}, {}),
    ):
        with pytest.raises(InputError, match="bytes"):
            stranger.ask(msg.TestNetwork("stranger", segment, 1))
    assert stranger.most_memory() - before < 100 * MB


def test_junk_writes_few_lines_to_the_log(stranger: Stranger) -> None:
    log = stranger.local.log("v1")
    before = log.stat().st_size
    for _ in range(2000):
        stranger.crew.session.put(topics.data(stranger.local.group, "v1", "me", "r"), b"junk")
    for _ in range(50):
        with pytest.raises(WeftError):
            stranger.crew.ask("v1", Junk(), LONG_S)  # type: ignore[arg-type]
    assert log.stat().st_size - before < 20_000


class Junk(msg.Hello, frozen=True, tag="junk"):  # type: ignore[misc, call-arg]
    """A command that no node knows."""


def test_hello_and_end_are_answered_while_a_command_waits(stranger: Stranger) -> None:
    """`prepare` waits an hour for a neighbour that nobody is."""
    stranger.assign(deadline_s=3600.0, roads=Roads(links=(OutLink("nobody", "c"),)))
    refused = in_background(lambda: stranger.ask(msg.Prepare("stranger")))
    assert stranger.busy()
    (done,) = stranger.ask(msg.End("stranger"))
    assert isinstance(done, msg.Done)
    assert isinstance(refused(), WeftError)
    assert not stranger.busy()


def in_background(do: Callable[[], object]) -> Callable[[], object]:
    """Does it in a thread. What is returned waits for its result, or for its error."""
    results: list[object] = []

    def work() -> None:
        try:
            results.append(do())
        except WeftError as error:
            results.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()

    def result() -> object:
        thread.join(LONG_S)
        return results[0]

    return result


def test_sigterm_ends_a_node_whose_command_waits(open_node: LocalFleet) -> None:
    """The last test of this file: the node is gone afterwards."""
    somebody = Stranger(open_node, open_node.crew)
    somebody.assign(deadline_s=3600.0, roads=Roads(links=(OutLink("nobody", "c"),)))
    in_background(lambda: somebody.ask(msg.Prepare("stranger")))
    while not somebody.busy():
        time.sleep(0.01)
    process = open_node.processes["v1"]
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=LONG_S) == 0
