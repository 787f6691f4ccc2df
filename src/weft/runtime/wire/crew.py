"""The run's connection to its nodes: which nodes are there, requests to them, and their reports."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any

import msgspec
import zenoh

from weft.errors import LostDevice, WeftError
from weft.runtime.wire import messages as msg
from weft.runtime.wire import topics as keys
from weft.runtime.wire.answers import (
    GRACE_S,
    MAX_REPORT,
    Answers,
    Events,
    check_numbers,
    error_in,
    is_cut_short,
    most_bytes,
    next_answer,
)
from weft.runtime.wire.closing import Closing
from weft.runtime.wire.frames import BadMessage, Header, unpack_header
from weft.runtime.wire.keeper import Keeper
from weft.runtime.wire.limits import NAME
from weft.runtime.wire.seal import (
    COMMAND,
    REPLY,
    REPORT,
    SEAL_BYTES,
    Numbers,
    Replays,
    RunSecret,
    check_seal,
    sealed,
)
from weft.runtime.wire.session import Endpoints, open_session
from weft.runtime.wire.silence import BEAT_S, PATIENCE_S, Silence

# None: something has changed on this machine, look again.
Event = msg.Report | LostDevice | tuple[Header, bytes] | None


MAX_PRESENT = 4096  # names of nodes that are remembered; at most so many lives of each
MAX_LIVES = 64


class Crew(Closing):
    """All nodes of a group that can be reached from here."""

    def __init__(self, endpoints: Endpoints, group: str = "weft") -> None:
        self.group = group
        self.session = open_session(endpoints)
        self.events = Events()
        self._present: dict[str, set[str]] = {}  # node -> its lives: two while it is started again
        self._changed = threading.Condition()
        # Devices that must still answer, and the queues for their answers.
        self._asked: dict[str, set[Answers]] = {}
        self._run = ""  # the run whose reports are taken
        self._secrets: dict[str, RunSecret] = {}
        self._numbers, self._replays = Numbers(), Replays()
        self._heard = threading.Lock()
        self._run_subscriptions: list[Any] = []
        self._claims: dict[str, Any] = {}  # liveliness tokens of runs
        self._silence = Silence(PATIENCE_S)  # hears everybody from the beginning
        self._watched: Collection[str] | None = None  # None: nobody watches yet
        self._closing = threading.Event()
        self._subscription = self.session.liveliness().declare_subscriber(
            keys.alive(group, "*", "*"), _direct(self._liveliness), history=True
        )
        self._beats = self.session.declare_subscriber(keys.beat(group, "*"), _direct(self._beat))
        self._keeper: Keeper | None = None
        if endpoints.keys is not None:
            self._keeper = Keeper(self.session, endpoints.keys, lambda: False, lambda: None)

    def close(self) -> None:
        self._closing.set()
        if self._keeper is not None:
            self._keeper.close()
        if not self.session.is_closed():
            self.session.close()

    def _liveliness(self, sample: Any) -> None:
        """On an open network anybody may say that a node of any name is there."""
        _, name, life = str(sample.key_expr).rsplit("/", 2)
        if not NAME.fullmatch(name):
            return
        with self._changed:
            lives = self._present.get(name, set())
            if sample.kind == zenoh.SampleKind.PUT:
                if len(lives) >= MAX_LIVES or (not lives and len(self._present) >= MAX_PRESENT):
                    return
                self._present[name] = lives | {life}
                if lives - {life}:  # Zenoh tells up to 10 s later that the earlier life has ended
                    self._silence.forget(name)
                    self._lose(LostDevice(name, f"{name} was started again"))
                self._silence.expect(name, time.monotonic())
            elif life in lives:
                self._present[name] = lives - {life}
                if not self._present[name]:
                    del self._present[name]
                    self._silence.forget(name)
                    why = "its node ended or its link broke"
                    self._lose(LostDevice(name, f"{name} is gone: {why}"))
            self._changed.notify_all()

    def _lose(self, lost: LostDevice) -> None:
        """The device will not answer any more, and whoever waits for it must know."""
        self.events.put(lost)
        for answers in self._asked.get(lost.device, ()):
            answers.put(lost)

    # --- silence --------------------------------------------------------------------------------

    def watch(self, devices: Collection[str], patience: float) -> None:
        """From now on a device among these whose heartbeats stop for `patience` seconds counts as lost, until
        it is heard again."""
        with self._changed:
            self._silence.patience = patience
            begun, self._watched = self._watched is not None, devices
        if begun:
            return
        threading.Thread(target=self._tick, name="silence", daemon=True).start()

    def _beat(self, sample: Any) -> None:
        name = str(sample.key_expr).rsplit("/", 1)[1]
        with self._changed:
            if name not in self._present:
                return
            if self._silence.heard(name, time.monotonic()):
                self._changed.notify_all()

    def _tick(self) -> None:
        while not self._closing.wait(BEAT_S):
            with self._changed:
                now = time.monotonic()
                for name in self._silence.tick(now, self._watched or ()):
                    seconds = self._silence.since(name, now)
                    why = f"{name} is silent: connected, but no heartbeat for {seconds:.1f} s"
                    self._lose(LostDevice(name, f"{why} (--patience sets the limit)"))

    @property
    def present(self) -> tuple[str, ...]:
        """The devices that are there and not silent."""
        with self._changed:
            return tuple(sorted(self._there()))

    @property
    def silent(self) -> tuple[str, ...]:
        """The devices that are connected and silent."""
        with self._changed:
            return tuple(sorted(self._present.keys() - self._there()))

    def _there(self) -> set[str]:
        return self._present.keys() - self._silence.silent

    def wait_for(self, names: Iterable[str], seconds: float) -> None:
        """Returns when all of them are there. Raises LostDevice with the names of those that are missing."""
        wanted = set(names)
        deadline = time.monotonic() + seconds
        with self._changed:
            while missing := wanted - self._there():
                left = deadline - time.monotonic()
                if left <= 0:
                    there = ", ".join(sorted(self._there())) or "nobody"
                    raise LostDevice(
                        min(missing),
                        f"no node answers for {', '.join(sorted(missing))} after {seconds:g} s "
                        f"({there} is there); start `weft node --name {min(missing)}` on it",
                    )
                self._changed.wait(left)

    def claim(self, run: str) -> None:
        """Nodes see from now on that the run has a coordinator, until it is released or this process ends."""
        if run not in self._claims:
            token = self.session.liveliness().declare_token(keys.coordinator(self.group, run))
            self._claims[run] = token

    def disclaim(self, run: str) -> None:
        """The run is over."""
        if run in self._claims:
            self._claims.pop(run).undeclare()

    def settle(self, names: Collection[str], seconds: float) -> None:
        """Hands the fleet's newest list to these devices, and returns when they are there with it."""
        if self._keeper is not None:
            self._keeper.settle(names, seconds)
            self.wait_for(names, seconds)

    def listen(self, run: str) -> None:
        """Puts reports and answers of this run, and of no other run, into `events` from now on."""
        for old in self._run_subscriptions:
            old.undeclare()
        with self._heard:
            self._run = run
            with contextlib.suppress(queue.Empty):
                while True:
                    self.events.get_nowait()
        self._run_subscriptions = [
            self.session.declare_subscriber(key(self.group, run, "*"), _direct(partial(take, run)))
            for key, take in ((keys.report, self._reported), (keys.answer, self._answered))
        ]

    def _put(self, device: str, event: Event, size: int, run: str) -> None:
        """Adds an event of the current run. Zenoh's threads may still deliver reports of an earlier run; they
        are dropped."""
        with self._heard:
            if run == self._run:
                self.events.offer(device, event, size)

    def secret(self, run: str) -> RunSecret:
        """The secret of a run; made when the run is first spoken of."""
        with self._heard:
            return self._secrets.setdefault(run, RunSecret())

    def _reported(self, run: str, sample: Any) -> None:
        # a report that cannot be decoded is dropped: it is not from our nodes, and a failed node is noticed
        # by its silence
        with contextlib.suppress(BadMessage):
            if len(sample.payload) > MAX_REPORT:
                return
            payload, seal = sample.payload.to_bytes(), _attached(sample)
            device = self._sender(run, sample, payload, seal)
            report = msg.unpack_report(payload)
            if report.device == device:
                self._put(device, report, len(payload), run)

    def _answered(self, run: str, sample: Any) -> None:
        with contextlib.suppress(BadMessage):
            attached = _attached(sample)
            packed, seal = attached[:-SEAL_BYTES], attached[-SEAL_BYTES:]
            device = self._sender(run, sample, packed, seal)
            header, payload = unpack_header(packed), sample.payload.to_bytes()
            if len(payload) == header.bytes and header.source == device:
                self._put(device, (header, payload), len(payload), run)

    def _sender(self, run: str, sample: Any, data: bytes, seal: bytes) -> str:
        """The device that has sent this. BadMessage where it is not the device that it seems to be, or where
        it was here before."""
        device = str(sample.key_expr).rsplit("/", 1)[1]
        count = check_seal(self.secret(run).keys(device).device, REPORT, data, seal)
        with self._heard:
            if not self._replays.take(device, count):
                raise BadMessage("it was here before")
        return device

    def leave_word(self, device: str, command: msg.Command) -> None:
        """A command that the device carries out when it wakes up; nobody waits for its answer."""
        answers = self._ask(device, command, GRACE_S)
        with self._changed:
            self._asked[device].discard(answers)

    def ask(self, device: str, command: msg.Command, seconds: float) -> list[msg.Reply]:
        return self.ask_all({device: command}, seconds)[device]

    def ask_all(
        self, commands: Mapping[str, msg.Command], seconds: float
    ) -> dict[str, list[msg.Reply]]:
        """Asks all devices at once and waits for every answer. An error names the device and the time."""
        under_way = {
            device: self._ask(device, command, seconds) for device, command in commands.items()
        }
        try:
            return {
                device: self._replies(device, answers, commands[device], seconds)
                for device, answers in under_way.items()
            }
        finally:
            with self._changed:
                for device, answers in under_way.items():
                    self._asked[device].discard(answers)

    def _ask(self, device: str, command: msg.Command, seconds: float) -> Answers:
        answers = Answers(most_bytes(command))
        with self._changed:
            self._asked.setdefault(device, set()).add(answers)
            if device in self._silence.silent:
                answers.put(LostDevice(device, f"{device} is silent: connected, but no heartbeat"))
        payload, seal = self._sealed(device, command, answers)
        self.session.get(
            keys.control(self.group, device),
            _direct(answers.take, lambda: answers.put(None)),
            payload=payload,
            attachment=seal,
            timeout=seconds,
            # a state arrives in several pieces under one key: keep them all
            consolidation=zenoh.QueryConsolidation(zenoh.ConsolidationMode.NONE),
        )
        return answers

    def _sealed(self, device: str, command: msg.Command, answers: Answers) -> tuple[bytes, bytes]:
        """The bytes of a command and its seal. A job gets the run's keys with it."""
        run = msg.run_of(command)
        if run is None:
            return msg.pack(command), b""
        run_keys = self.secret(run).keys(device)
        if isinstance(command, msg.Assign):
            command = msgspec.structs.replace(command, keys=run_keys)
        payload = msg.pack(command)
        answers.count = self._numbers.next()
        return payload, sealed(run_keys.device, COMMAND, payload, answers.count)

    def _replies(
        self, device: str, answers: Answers, command: msg.Command, seconds: float
    ) -> list[msg.Reply]:
        found: list[msg.Reply] = []
        what = type(command).__name__.lower()
        silent = LostDevice(device, f"{device} did not answer `{what}` within {seconds:g} s")
        begin = time.monotonic()
        while (reply := next_answer(answers, seconds, silent)) is not None:
            if isinstance(reply, LostDevice):
                raise reply
            if isinstance(reply, WeftError):
                raise WeftError(f"{device} answers `{what}` with {reply}")
            if reply.ok is None:
                text = reply.err.payload.to_bytes()
                raise silent if text == b"Timeout" else error_in(device, text)  # Zenoh's own word
            try:
                found.append(self._reply(device, command, answers.count, reply.ok))
            except BadMessage as error:
                raise WeftError(
                    f"{device} sent an answer that cannot be decoded: {error}"
                ) from None
        if not found or is_cut_short(command, found[-1]):
            if time.monotonic() - begin < seconds / 2:  # nobody took the request
                raise LostDevice(device, f"{device} is gone: nobody answers `{what}`")
            raise silent
        check_numbers(device, what, found)
        return found

    def _reply(self, device: str, command: msg.Command, count: int, sample: Any) -> msg.Reply:
        """The reply in a sample. In a run it has to carry the device's key; only a device that does not know
        the run may say without it that the run is over."""
        payload, run, seal = sample.payload.to_bytes(), msg.run_of(command), _attached(sample)
        reply = msg.unpack_reply(payload)
        over = isinstance(command, (msg.Cancel, msg.End)) and isinstance(reply, msg.Done)
        if run is None or (over and not seal):
            return reply
        if check_seal(self.secret(run).keys(device).device, REPLY, payload, seal) != count:
            raise BadMessage("it answers another command")
        return reply

    def clock_offset(self, device: str, rounds: int = 5) -> float:
        """The difference between this machine's clock and the device's, by the quickest of a few
        exchanges."""
        best = (float("inf"), 0.0)
        for _ in range(rounds):
            before = time.monotonic()
            (welcome,) = self.ask(device, msg.Hello(), 5.0)
            after = time.monotonic()
            assert isinstance(welcome, msg.Welcome)
            best = min(best, (after - before, (before + after) / 2 - welcome.clock))
        return best[1]


def _direct(callback: Callable[[Any], None], drop: Callable[[], None] | None = None) -> Any:
    """A callback that Zenoh's own thread calls. It must not wait. Other callbacks get a Python thread each,
    and a process cannot end while such a thread lives."""
    return zenoh.handlers.Callback(callback, drop, indirect=False)


def _attached(sample: Any) -> bytes:
    return sample.attachment.to_bytes() if sample.attachment is not None else b""
