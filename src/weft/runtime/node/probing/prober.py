"""Probes a server while training goes on: how slow the server is, and how fast the links to it are.

    client  ping (nothing)      ─►  ◄─ nothing                      the round trip
            random data         ─►  trains the test network  ◄─ s   the way up, and its seconds
            nothing             ─►  ◄─ random data                  the way down
            chunks of data      ─►  ◄─ how fast they came           the way up under load

Both ends have one thread for this beside the one that trains. The messages take the same links as
activations do. The test network is data like any other: a server makes its weights up itself.
Who asks may train the test network too: then servers can be compared with it.
A server also says, to whoever listens, when it has become faster.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable

import torch
from torch import Tensor

from weft.errors import WeftError
from weft.graph.execute import Runner
from weft.graph.measure import example
from weft.runtime.node.probing.link import CHUNKS, Fillings, link_rate, message_cost
from weft.runtime.node.probing.machine import drawn_state
from weft.runtime.node.results import check_results
from weft.runtime.wire import messages as msg
from weft.runtime.wire.fabric import Fabric
from weft.runtime.wire.frames import Header, pack_tensors, unpack_tensors
from weft.runtime.wire.limits import MAX_TEST_BYTES, Seldom, check_servers, check_test_network
from weft.runtime.wire.links.changes import Changes
from weft.runtime.wire.links.shaping import sleep_until
from weft.runtime.wire.mailbox import Letter

log = logging.getLogger("weft.prober")

PING, THERE, BACK, FILL = range(4)
LOOK_S = 0.25  # how often a server checks its own load
FASTER = 0.9  # of the slowdown in its last notice: below it a server publishes the next one
MAX_BYTES = 4 << 20
MAX_ROUNDS = 4  # of probes that wait for the one before
MAX_ANSWERS = 16  # that wait for whoever asked
SLICE_S = 0.1  # how soon a thread that waits for a probe sees that the run is over
TRAINED_S = 0.02  # a shorter step of the test network is repeated: a clock tells little of one
MOST_STEPS = 20
TRIES = 4  # to reach a server that a link was just opened to
WORDS = {
    PING: "did not answer an empty message",
    THERE: "did not train the test network",
    BACK: "did not send its data",
    FILL: "did not answer a link full of data",
}


class Prober:
    """One node's part in probes: it asks others, and answers."""

    def __init__(
        self,
        fabric: Fabric,
        report: Callable[[msg.Report], None],
        tell: Callable[[msg.Notice], None],
    ) -> None:
        self._fabric, self._report, self._tell = fabric, report, tell
        self._changes: Changes | None = None
        self._network: msg.TestNetwork | None = None
        self._runner: Runner | None = None
        self._told = 1.0
        self._fillings = Fillings()
        self._closed = False
        self._rounds: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._log = Seldom(log)
        self._asking = threading.Lock()
        self._answers: queue.SimpleQueue[Letter] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="prober", daemon=True)
        self._thread.start()

    def begin(self, changes: Changes | None) -> None:
        """Starts a job: from now on this device's speed follows these changes."""
        self._changes = changes
        self._told = self.load()

    def learn(self, network: msg.TestNetwork) -> None:
        """Takes a test network and draws its weights. InputError where it is too large."""
        check_test_network(network)
        check_results(network.segment, network.samples, MAX_TEST_BYTES)
        state = drawn_state(network.segment.state, network.seed)
        self._runner, self._network = Runner(network.segment, state), network
        self._step(self._runner, network, samples=1)  # the first step of any network takes longer
        self._told = self.load()

    def end(self) -> None:
        """The run is over: nothing of it is kept."""
        self._network = self._runner = self._changes = None
        self._fillings.forget()
        with contextlib.suppress(queue.Empty):
            while True:
                self._answers.get_nowait()

    def close(self) -> None:
        self._closed = True
        self._fabric.probes.put(None)
        self._thread.join(timeout=5.0)

    # --- answering --------------------------------------------------------------------------------

    def load(self) -> float:
        """How many times slower than idle this device is now."""
        if self._changes is not None:
            return self._changes.slowdown(time.monotonic())
        if self._network is not None and self._network.pace_s:
            return (
                1.0  # emulated: how busy the machine is that emulates it is not this device's load
            )
        busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
        return 1.0 + busy / (os.cpu_count() or 1)

    def _serve(self) -> None:
        torch.set_num_threads(1)
        while True:
            letter: Letter | None = None
            try:
                with contextlib.suppress(queue.Empty):
                    letter = self._fabric.probes.get(timeout=LOOK_S)
                    if letter is None:
                        return
                if letter is None:
                    self._notice()
                elif letter.header.kind != "probed":
                    self._answer(letter.header)
                elif self._asking.locked() and self._answers.qsize() < MAX_ANSWERS:
                    self._answers.put(letter)
            except Exception as error:  # a bad probe must not end the thread
                self._log.warning("%s could not answer a probe: %s", self._fabric.name, error)

    def _notice(self) -> None:
        now = self.load()
        if now < FASTER * self._told:
            self._tell(msg.Notice(self._fabric.name, now))
            self._told = now
        self._told = max(self._told, now)

    def _answer(self, header: Header) -> None:
        if not self._waited(header.due, header.run):
            return
        found: dict[str, Tensor] = {}
        self._fabric.open_line(header.source)
        if header.at == FILL:
            counted = self._fillings.chunk(header)
            if counted is None:
                return
            found["counted"] = torch.tensor(counted, dtype=torch.float64)
        elif header.at == THERE:
            begin = time.monotonic()
            found["seconds"] = torch.tensor([self._train(header.run)], dtype=torch.float64)
            found["trained"] = torch.tensor([time.monotonic() - begin], dtype=torch.float64)
        elif header.at == BACK:
            size = min(header.micro, MAX_BYTES)
            found["data"] = torch.randint(0, 256, (size,), dtype=torch.uint8)
        specs, payload = pack_tensors(found)
        self._fabric.send(
            Header(header.run, header.version, header.step, "probed", header.at, 0,
                   self._fabric.name, header.source, len(payload), specs), payload
        )  # fmt: skip

    def _waited(self, moment: float, run: str) -> bool:
        """Waits until a moment of the clock. False if the run is over first."""
        while (left := moment - time.monotonic()) > SLICE_S:
            time.sleep(SLICE_S if left > 2 * SLICE_S else left - SLICE_S)
            if self._closed or self._fabric.run != run:
                return False
        sleep_until(moment)
        return True

    def _train(self, run: str) -> float:
        """Seconds of one step of the test network, the emulated slowness included."""
        runner, network = self._runner, self._network
        if runner is None or network is None:
            return 0.0
        begin, steps = time.monotonic(), 0
        while steps == 0 or (time.monotonic() - begin < TRAINED_S and steps < MOST_STEPS):
            due = time.monotonic() + network.pace_s * self.load()
            self._step(runner, network, network.samples)
            steps += 1
            if network.pace_s and not self._waited(due, run):
                break
        return (time.monotonic() - begin) / steps

    @staticmethod
    def _step(runner: Runner, network: msg.TestNetwork, samples: int) -> None:
        inputs = {n: example(v, samples) for n, v in network.segment.inputs.items()}
        outputs = runner.forward(inputs, training=True)
        torch.autograd.backward([sum((o.sum() for o in outputs.values()), torch.zeros(()))])
        for parameter in runner.parameters:
            parameter.grad = None

    # --- asking -----------------------------------------------------------------------------------

    def ask(self, command: msg.ProbeServers) -> None:
        """Probes servers one after the other in a separate thread. Only one such round runs at a time."""
        check_servers(command.servers)
        if self._rounds.qsize() >= MAX_ROUNDS:
            raise WeftError(f"{self._fabric.name} has {MAX_ROUNDS} rounds of probes to do already")
        self._rounds.put(None)
        threading.Thread(target=self._round, args=(command,), name="probes", daemon=True).start()

    def _round(self, command: msg.ProbeServers) -> None:
        torch.set_num_threads(1)
        with self._asking:
            self._rounds.get()
            for server, exchange in command.servers.items():
                begun = self._fabric.begun
                if self._fabric.run != command.run:
                    return
                try:
                    found = self._probe(server, exchange, command.run)
                except (
                    Exception
                ) as error:  # whoever asked for the round waits for each server's answer
                    why = str(error) or repr(error)
                    found = msg.ServerProbed(self._fabric.name, server, reached=False, why=why)
                if (
                    self._fabric.begun == begun and self._fabric.run
                ):  # else a new plan has cut the probe short
                    self._report(found)

    def _probe(self, server: str, exchange: msg.Exchange, run: str) -> msg.ServerProbed:
        name = self._fabric.name
        if server == name:
            return msg.ServerProbed(name, name, True, self._train(run))
        size = min(exchange.bytes, MAX_BYTES)
        data = {"data": torch.randint(0, 256, (size,), dtype=torch.uint8)}
        if exchange.rounds or exchange.fill_s:
            return self._measure(server, exchange, run, data)
        trips = [self._exchange(server, PING, run, exchange.ping_s)[0] for _ in range(2)]
        up_s, answer = self._exchange(server, THERE, run, exchange.train_s, data)
        down_s, _ = self._exchange(server, BACK, run, exchange.data_s, back=size)
        rtt = min(trips)
        seconds = float(answer["seconds"]) if "seconds" in answer else 0.0
        trained = float(answer["trained"]) if "trained" in answer else seconds
        return msg.ServerProbed(
            name, server, True, seconds,
            size / max(up_s - rtt - trained, 1e-6), size / max(down_s - rtt, 1e-6), rtt,
        )  # fmt: skip

    def _measure(
        self, server: str, exchange: msg.Exchange, run: str, data: dict[str, Tensor]
    ) -> msg.ServerProbed:
        """What a message costs this device, or what the way to the server carries under load."""
        limits = {PING: exchange.ping_s, THERE: exchange.train_s, BACK: exchange.data_s}

        def ask(what: int, tensors: dict[str, Tensor] | None, back: int) -> float:
            return self._exchange(server, what, run, limits[what], tensors, back)[0]

        def fill(size: int) -> tuple[float, float]:
            chunk = {"data": torch.zeros(size, dtype=torch.uint8)}
            _, answer = self._exchange(server, FILL, run, exchange.data_s, chunk, CHUNKS - 1)
            count, seconds = (float(n) for n in answer["counted"])
            return count, seconds

        self._reach(server, run, exchange.ping_s)
        self._fabric.open_line(server)
        self._reach(server, run, exchange.ping_s)  # now the server has opened its own line, too
        if exchange.fill_s:
            rate = link_rate(fill, exchange.fill_s)
            return msg.ServerProbed(self._fabric.name, server, True, up_bytes_per_s=rate)
        cost = message_cost(ask, (PING, THERE, BACK), data, exchange.rounds)
        return msg.ServerProbed(
            self._fabric.name, server, True, rtt_s=cost.rtt_s, message_s=cost.message_s, byte_s=cost.byte_s,
        )  # fmt: skip

    def _reach(self, server: str, run: str, limit_s: float) -> None:
        """Waits until a server answers: a new link may not know its other end yet."""
        for left in range(TRIES - 1, -1, -1):
            try:
                self._exchange(server, PING, run, limit_s / TRIES)
                return
            except WeftError:
                if not left:
                    raise

    def _exchange(
        self,
        server: str,
        what: int,
        run: str,
        limit_s: float,
        data: dict[str, Tensor] | None = None,
        back: int = 0,
    ) -> tuple[float, dict[str, Tensor]]:
        """(seconds, answer) of one message there and back; of a filling, of `back` messages and one."""
        number = self._fabric.next_probe()
        specs, payload = pack_tensors(data or {})
        begin = time.monotonic()
        for left in range(back, -1, -1) if what == FILL else (back,):
            self._fabric.send(
                Header(run, 0, number, "probe", what, left, self._fabric.name, server,
                       len(payload), specs), payload
            )  # fmt: skip
        deadline = begin + limit_s
        while True:
            rest_s = max(0.0, deadline - time.monotonic())
            try:
                letter = self._answers.get(timeout=min(rest_s, SLICE_S))
            except queue.Empty:
                if self._closed or self._fabric.run != run:
                    raise WeftError("the run is over") from None
                if rest_s > SLICE_S:
                    continue
                raise WeftError(f"{server} {WORDS[what]} within {limit_s:.2g} s") from None
            if letter.header.step == number and letter.header.source == server:
                sleep_until(letter.header.due)
                return time.monotonic() - begin, unpack_tensors(letter.header, letter.payload)
