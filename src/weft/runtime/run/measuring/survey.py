"""Measures a fleet where it will run: the layers of a network on every node, the links, and the messages.

    with Crew(endpoints) as crew:
        survey = Survey(crew, crew.present)
        times = survey.layers(graph, survey.names, sizes=(8, 32), training=True)
        pairs = survey.pairs()              # links, and what messages cost each end

Nodes of one host share its cores, so they are measured one after the other. Every pair of nodes is measured
by itself, both ways at the same time: a link that carries data one way may be slower the other way.
"""

from __future__ import annotations

import contextlib
import queue
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, zip_longest

import msgspec
from msgspec import Struct

from weft.errors import LostDevice, WeftError
from weft.graph.network import Graph
from weft.graph.optimizers.optimizer import Optimizer
from weft.plans.derive import measured_times
from weft.plans.profile import DeviceTimes
from weft.runtime.wire import messages as msg
from weft.runtime.wire.crew import Crew
from weft.runtime.wire.links.channel import OutLink, Roads

HELLO_S = 10.0
ROUNDS, DATA_BYTES = 30, 256 << 10  # exchanges of each kind, and the size of the large ones
FILL_S = 0.3
EXCHANGE_S = 30.0  # for one exchange: a slow link takes its time
REACH_S = 3.0  # for an answer from a node that should be in reach
MEASURE_S = 600.0  # for one node's layers; the node itself stops sooner
FASTEST = 12.5e9  # bytes per second: no link is taken to be faster
LEAST_SHARE = 0.01  # of a core; below it the quotient says nothing

Say = Callable[[str], None]


class MessageTimes(Struct, frozen=True):
    """What messages cost one node: CPU seconds for each message at its end, and for each byte."""

    message_s: float
    byte_s: float


class MeasuredLink(Struct, frozen=True):
    """A pair of nodes: bytes per second each way under load, and the round trip of an empty message."""

    between: tuple[str, str]
    up_bytes_per_s: float
    down_bytes_per_s: float
    rtt_s: float


class Pair(Struct, frozen=True):
    """All that was measured of two nodes that reach each other."""

    link: MeasuredLink
    costs: tuple[MessageTimes, MessageTimes]


class Survey:
    """One measurement of the nodes of a crew. `say` gets a line before each part."""

    def __init__(self, crew: Crew, names: Sequence[str], say: Say = lambda text: None) -> None:
        self.crew, self.names, self.say = crew, tuple(names), say
        asked = crew.ask_all(dict.fromkeys(self.names, msg.Hello()), HELLO_S)
        self.hosts: dict[str, msg.Welcome] = {}
        for name, (welcome,) in asked.items():
            assert isinstance(welcome, msg.Welcome)
            self.hosts[name] = welcome
            if welcome.busy:
                raise WeftError(
                    f"{name} is busy with a run: times measured now would be wrong; "
                    "measure when the run is over"
                )

    def layers(
        self,
        graph: Graph,
        names: Sequence[str],
        *,
        sizes: Sequence[int],
        training: bool,
        optimizer: Optimizer | None = None,
        budget_s: float = 20.0,
    ) -> dict[str, DeviceTimes]:
        """The seconds of every layer on each node, by the nodes' wall clocks."""
        command = msg.MeasureLayers(
            graph, tuple(sizes), training, optimizer or Optimizer(), budget_s=budget_s
        )
        times: dict[str, DeviceTimes] = {}
        for turn in self._turns(names):
            self.say(f"measuring the layers of {graph.name} on {', '.join(turn)}")
            answers = self.crew.ask_all(dict.fromkeys(turn, command), MEASURE_S)
            for name, (reply,) in answers.items():
                assert isinstance(reply, msg.LayersMeasured)
                times[name] = self._on_host(name, reply)
        return times

    def _on_host(self, name: str, reply: msg.LayersMeasured) -> DeviceTimes:
        host = self.hosts[name]
        return msgspec.structs.replace(
            measured_times(reply.times), host=host.host, cores=float(host.cores),
            share=reply.times.share, memory_bytes=reply.memory_bytes,
            codecs={n: times.scaled(1 / known_share(reply.times.share)) for n, times in reply.codecs.items()},
        )  # fmt: skip

    def _turns(self, names: Sequence[str]) -> list[list[str]]:
        """Nodes that are measured at the same time: one of each host."""
        hosts: dict[str, list[str]] = {}
        for name in names:
            hosts.setdefault(self.hosts[name].host or name, []).append(name)
        return [[n for n in turn if n is not None] for turn in zip_longest(*hosts.values())]

    # --- between nodes ----------------------------------------------------------------------------

    def pairs(self) -> list[Pair]:
        """The links and message costs of all pairs of nodes. Pairs without a link are left out. A pair is
        asked again at the end: a node that was busy for two seconds is not out of reach."""
        pairs = list(combinations(self.names, 2))
        with self._opened() if pairs else contextlib.nullcontext("") as run:
            first = {(a, b): self._pair(run, a, b) for a, b in pairs}
            asked = {(a, b): p or self._pair(run, a, b) for (a, b), p in first.items()}
            return [pair for pair in asked.values() if pair is not None]

    def reached(self) -> dict[tuple[str, str], bool]:
        """Whether each node gets an answer from each other one: one small message each way."""
        pairs = [(a, b) for a in self.names for b in self.names if a != b]
        small = msg.Exchange(1024, 2.0, REACH_S, REACH_S, rounds=1)
        with self._opened() if pairs else contextlib.nullcontext("") as run:
            return {(a, b): self._ask(run, {a: b}, small)[0].reached for a, b in pairs}

    def messages(self, names: Sequence[str]) -> dict[str, MessageTimes]:
        """What messages cost these nodes, each with a partner. Without a partner in reach it is not known."""
        partners = [(name, other) for name in names for other in self.names if other != name]
        costs: dict[str, MessageTimes] = {}
        with self._opened() if partners else contextlib.nullcontext("") as run:
            for name, other in partners:
                ends = self._ends(run, name, other) if name not in costs else None
                for end in ends or ():
                    costs[end.device] = MessageTimes(end.message_s, end.byte_s)
        return costs

    @contextlib.contextmanager
    def _opened(self) -> Iterator[str]:
        """A run in which nobody has anything to compute: the nodes can exchange probes in it."""
        run = f"survey-{secrets.token_hex(6)}"
        jobs: dict[str, msg.Command] = {
            name: msg.Assign(
                msg.Job(
                    run=run, version=0, mode="infer", batch=1, layers=0, code=(), segments=(), inputs=(),
                    optimizer=Optimizer(), record=False,
                    roads=Roads(tuple(OutLink(n, f"{name}>{n}") for n in self.names if n != name)),
                )
            )
            for name in self.names
        }  # fmt: skip
        self.crew.claim(run)  # if this process ends, the nodes notice it
        self.crew.ask_all(jobs, HELLO_S)
        self.crew.listen(run)
        try:
            yield run
        finally:
            with contextlib.suppress(WeftError):
                self.crew.ask_all(dict.fromkeys(self.names, msg.End(run)), HELLO_S)
            self.crew.disclaim(run)

    def _pair(self, run: str, a: str, b: str) -> Pair | None:
        loaded = msg.Exchange(0, 2.0, EXCHANGE_S, EXCHANGE_S, fill_s=FILL_S)
        ends = self._ends(run, a, b)
        if ends is None:
            return None
        up, down = self._ask(run, {a: b, b: a}, loaded)
        if not self._both_reached(up, down):
            return None
        first, second = (MessageTimes(end.message_s, end.byte_s) for end in ends)
        trip = min(end.rtt_s for end in ends)
        link = MeasuredLink((a, b), up.up_bytes_per_s, down.up_bytes_per_s, trip)
        return Pair(link, (first, second))

    def _ends(self, run: str, a: str, b: str) -> tuple[msg.ServerProbed, msg.ServerProbed] | None:
        """What messages between two nodes cost each of them; None if they do not reach each other."""
        self.say(f"measuring messages between {a} and {b}")
        costs = msg.Exchange(DATA_BYTES, 2.0, EXCHANGE_S, EXCHANGE_S, rounds=ROUNDS)
        (first,) = self._ask(run, {a: b}, costs)  # one after the other: each counts its CPU time
        (second,) = self._ask(run, {b: a}, costs) if first.reached else (first,)
        return (first, second) if self._both_reached(first, second) else None

    def _both_reached(self, *probes: msg.ServerProbed) -> bool:
        """Whether all probes were answered; if not, `say` gets the reason."""
        for probe in probes:
            if not probe.reached:
                self.say(f"no link between {probe.device} and {probe.server}: {probe.why}")
                return False
        return True

    def _ask(
        self, run: str, pairs: dict[str, str], exchange: msg.Exchange
    ) -> list[msg.ServerProbed]:
        """One probe by each of the asking nodes, at the same time."""
        commands: dict[str, msg.Command] = {
            asks: msg.ProbeServers(run, {answers: exchange}) for asks, answers in pairs.items()
        }
        self.crew.ask_all(commands, HELLO_S)
        reports: dict[str, msg.ServerProbed] = {}
        until = time.monotonic() + EXCHANGE_S * (2 * exchange.rounds or 10)
        while len(reports) < len(pairs):
            try:
                event = self.crew.events.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                missing = next(name for name in pairs if name not in reports)
                raise LostDevice(missing, f"{missing} did not end its probe of a link") from None
            if isinstance(event, LostDevice) and event.device in {*pairs, *pairs.values()}:
                raise event
            if isinstance(event, msg.ServerProbed) and event.device in pairs:
                reports[event.device] = event
        return [reports[name] for name in pairs]


def known_share(share: float) -> float:
    """The share of a core by which CPU time is divided, so that it is time by the clock: under a quota all
    takes longer."""
    return min(1.0, max(share, LEAST_SHARE))


def link_of(pair: Pair) -> MeasuredLink:
    """The link as the simulator counts it: bytes at the rate that was measured, because the ends work while
    the link carries; and the round trip without the runtime's own time, which the profile counts at each
    end."""
    (a, b), link = pair.costs, pair.link
    trip = max(0.0, link.rtt_s - 2 * (a.message_s + b.message_s))
    up, down = min(FASTEST, link.up_bytes_per_s), min(FASTEST, link.down_bytes_per_s)
    return MeasuredLink(link.between, up, down, trip)
