"""The command protocol as a state machine: any command, in any order, of any run, new or replayed.

Hypothesis invents sequences of commands for one real node, and keeps a small model of what the node should
know: whose job it has, and which weights. The node must answer every command, in words where it refuses;
must never do what the model says it cannot; and must be free again after `end`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from safetensors.torch import load, save

from weft.errors import WeftError
from weft.graph.network import Node, Ref, Segment, State, Value
from weft.graph.optimizers.optimizer import Optimizer
from weft.program import instructions as ins
from weft.runtime.emulate.local import LocalFleet
from weft.runtime.wire import messages as msg
from weft.runtime.wire import topics
from weft.runtime.wire.answers import Answers
from weft.runtime.wire.links.channel import Roads

LONG_S = 60.0
RUNS = st.sampled_from(["own", "other"])
STEPS = st.integers(-2, 6)
ODD = (2**63 - 1, -(2**63), 0)


def job(run: str, version: int, mode: str, keep: int) -> msg.Job:
    linear = Node("y", "aten.linear.default", [Ref("x"), Ref("w")])
    value = Value((1, 2), "float32")
    segment = Segment(0, 0, [linear], {"x": value}, {"y": value}, {"w": State((2, 2), "float32")})
    return msg.Job(
        run=run, version=version, mode=mode, batch=1, layers=1, segments=(segment,),  # type: ignore[arg-type]
        code=(ins.Squares(ins.Tensor("gnorm", 0), ()),), inputs=("x",), optimizer=Optimizer(),
        roads=Roads(), deadline_s=5.0, keep_every=(keep,) if keep else (), lineage="line",
    )  # fmt: skip


class Protocol(RuleBasedStateMachine):
    """One node, its owner, and a model of what the node knows."""

    local: LocalFleet  # set by the test
    names = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.crew = self.local.crew
        self.end_of_names = f"-{next(self.names)}"  # each example has runs of its own
        self.run: str | None = None
        self.weights: dict[str, torch.Tensor] = {}
        self.prepared = False
        self.sent: list[tuple[bytes, bytes]] = []  # genuine commands, to be repeated

    def teardown(self) -> None:
        if self.run is not None:
            self.crew.ask("v1", msg.End(self.run), LONG_S)
        assert not self.busy()

    def busy(self) -> bool:
        (welcome,) = self.crew.ask("v1", msg.Hello(), LONG_S)
        assert isinstance(welcome, msg.Welcome)
        return welcome.busy

    def name(self, run: str) -> str:
        return run + self.end_of_names

    def ask(self, command: msg.Command) -> list[msg.Reply] | None:
        """The replies; None if the command was refused, which takes words."""
        try:
            return self.crew.ask("v1", command, LONG_S)
        except WeftError as error:
            words = str(error)
        assert len(words) > 10
        assert "did not answer" not in words
        return None

    @rule(run=RUNS, version=st.integers(0, 3), mode=st.sampled_from(["train", "infer"]),
          keep=st.integers(0, 2))  # fmt: skip
    def assign(self, run: str, version: int, mode: str, keep: int) -> None:
        run = self.name(run)
        took = self.ask(msg.Assign(job(run, version, mode, keep)))
        if self.run not in (None, run):
            assert took is None
            return
        assert took == [msg.Done()]
        if self.run is None:
            self.weights = {}
        self.run, self.prepared = run, False

    @rule(run=RUNS, fits=st.booleans(), optimizer=st.booleans())
    def give_weights(self, run: str, fits: bool, optimizer: bool) -> None:
        run = self.name(run)
        name = ("w/momentum_buffer" if optimizer else "w") if fits else "junk"
        tensor = torch.ones(2, 2)
        took = self.ask(msg.Weights(run, save({name: tensor}), optimizer))
        assert (took is not None) == (run == self.run and fits)
        if took and not optimizer and not self.prepared:
            self.weights["w"] = tensor

    @rule(run=RUNS)
    def prepare(self, run: str) -> None:
        took = self.ask(msg.Prepare(self.name(run)))
        if took is not None:
            assert self.name(run) == self.run
            assert self.weights
            self.prepared = True

    @rule(run=RUNS, first=STEPS, last=STEPS)
    def start(self, run: str, first: int, last: int) -> None:
        took = self.ask(msg.Run(self.name(run), first, last))
        if took is not None:
            assert self.name(run) == self.run
            assert self.prepared
            assert 0 <= first <= last

    @rule(run=RUNS, step=STEPS | st.sampled_from(ODD))
    def go_back(self, run: str, step: int) -> None:
        if self.ask(msg.GoBack(self.name(run), step)) is not None:
            assert self.name(run) == self.run
            assert self.prepared

    @rule(run=RUNS)
    def take_state(self, run: str) -> None:
        pieces = self.ask(msg.GetState(self.name(run)))
        if pieces is None:
            return
        assert self.name(run) == self.run
        got: dict[str, torch.Tensor] = {}
        for piece in pieces:
            assert isinstance(piece, msg.StatePiece)
            if not piece.optimizer:
                got |= load(piece.data)
        assert got.keys() <= {"w"}

    @rule(run=RUNS, since=st.none() | STEPS)
    def look(self, run: str, since: int | None) -> None:
        for command in (msg.GetTimeline(self.name(run), since), msg.Where(self.name(run))):
            if self.ask(command) is not None:
                assert self.name(run) == self.run

    @rule(lineage=st.sampled_from(["line", "", "x"]))
    def ask_for_copies(self, lineage: str) -> None:
        """The coordinator lives: nobody gets a copy."""
        replies = self.ask(msg.GetCopies(lineage, "guessed"))
        assert replies is None or all(isinstance(r, msg.Kept) and r.step == -1 for r in replies)

    @rule(
        run=RUNS, samples=st.sampled_from([1, 0, -1, 2**62]), server=st.sampled_from(["v1", "**"])
    )
    def probe(self, run: str, samples: int, server: str) -> None:
        run = self.name(run)
        segment = job(run, 0, "train", 0).segments[0]
        exchange = msg.Exchange(10, 0.01, 0.01, 0.01)
        for command, right in (
            (msg.TestNetwork(run, segment, samples), samples in (0, 1)),
            (msg.ProbeServers(run, {server: exchange}), server == "v1"),
        ):
            if self.ask(command) is not None:
                assert run == self.run
                assert right

    @rule(run=RUNS)
    def cancel(self, run: str) -> None:
        assert self.ask(msg.Cancel(self.name(run), "the test says so")) is not None

    @rule(run=RUNS)
    def end(self, run: str) -> None:
        assert self.ask(msg.End(self.name(run))) is not None
        if self.name(run) == self.run:
            self.run, self.prepared, self.weights = None, False, {}

    @rule(run=RUNS)
    def overhear(self, run: str) -> None:
        """A genuine command, of the kind that ends things, is given and kept."""
        run = self.name(run)
        if run == self.run:
            payload, seal = self.crew._sealed("v1", msg.Cancel(run, "once"), Answers())
            self.sent.append((payload, seal))
            assert self.raw(payload, seal).ok is not None

    @rule(place=st.integers(0, 10))
    def replay(self, place: int) -> None:
        if self.sent and self.run is not None:
            payload, seal = self.sent[place % len(self.sent)]
            command = msg.unpack_command(payload)
            if msg.run_of(command) == self.run:
                assert b"it is a replay" in self.raw(payload, seal).err.payload.to_bytes()

    @rule(seal=st.binary(max_size=30))
    def forge(self, seal: bytes) -> None:
        if self.run is not None:
            reply = self.raw(msg.pack(msg.End(self.run)), seal)
            assert b"does not carry the key" in reply.err.payload.to_bytes()

    def raw(self, payload: bytes, seal: bytes) -> Any:
        key = topics.control(self.local.group, "v1")
        (reply,) = self.crew.session.get(key, payload=payload, attachment=seal, timeout=LONG_S)
        return reply

    @invariant()
    def the_node_has_the_run_that_it_should_have(self) -> None:
        assert self.busy() == (self.run is not None)


@pytest.fixture(scope="module")
def local() -> Iterator[LocalFleet]:
    with LocalFleet(("v1",)) as fleet:
        fleet.crew.wait_for(("v1",), 180.0)
        yield fleet


def play(local: LocalFleet, examples: int, steps: int) -> None:
    class Machine(Protocol):
        pass

    Machine.local = local
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Machine,
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, database=None,
            derandomize=True, suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip


def test_commands_in_any_order_are_carried_out_or_refused(local: LocalFleet) -> None:
    play(local, examples=25, steps=30)


@pytest.mark.proof
def test_very_many_commands_in_any_order(local: LocalFleet) -> None:
    play(local, examples=150, steps=40)
