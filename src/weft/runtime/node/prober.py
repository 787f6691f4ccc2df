"""Probes a server while training goes on: how slow the server is, and how fast the links to it are.

    client  ping (nothing)      ─►  ◄─ nothing                      the round trip
            random data         ─►  trains the test network  ◄─ s   the way up, and its seconds
            nothing             ─►  ◄─ random data                  the way down

Both ends have one thread for this besides the one that trains. The messages use the same links as
activations. The test network is data like any other network, and a server draws its weights itself. A server
also publishes a notice when it has become faster.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable

import torch
from torch import Tensor

from weft.dtypes import torch_dtype
from weft.errors import WeftError
from weft.graph.execute import Runner
from weft.graph.measure import example
from weft.runtime.wire import messages as msg
from weft.runtime.wire.changes import Changes
from weft.runtime.wire.fabric import Fabric
from weft.runtime.wire.frames import BadMessage, Header, pack_tensors, unpack_tensors
from weft.runtime.wire.mailbox import Letter
from weft.runtime.wire.shaping import sleep_until

log = logging.getLogger("weft.prober")

PING, THERE, BACK = range(3)
LOOK_S = 0.25  # how often a server checks its own load
FASTER = 0.9  # of the slowdown in its last notice: below it a server publishes the next one
MAX_BYTES = 4 << 20


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
        self._asking = threading.Lock()
        self._answers: queue.SimpleQueue[Letter] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="prober", daemon=True)
        self._thread.start()

    def begin(self, changes: Changes | None) -> None:
        """Starts a job: from now on this device's speed follows these changes."""
        self._changes = changes
        self._told = self.load()

    def learn(self, network: msg.TestNetwork) -> None:
        """Takes a test network and draws its weights."""
        generator = torch.Generator().manual_seed(network.seed)
        state = {
            name: torch.randn(info.shape, generator=generator).to(torch_dtype(info.dtype)) * 0.05
            for name, info in network.segment.state.items()
        }
        self._runner, self._network = Runner(network.segment, state), network

    def close(self) -> None:
        self._fabric.probes.put(None)
        self._thread.join(timeout=5.0)

    # --- answering --------------------------------------------------------------------------------

    def load(self) -> float:
        """How many times slower than idle this device is now."""
        if self._changes is not None:
            return self._changes.slowdown(time.monotonic())
        busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
        return 1.0 + busy / (os.cpu_count() or 1)

    def _serve(self) -> None:
        torch.set_num_threads(1)
        while True:
            try:
                letter = self._fabric.probes.get(timeout=LOOK_S)
            except queue.Empty:
                self._notice()
                continue
            if letter is None:
                return
            if letter.header.kind == "probed":
                self._answers.put(letter)
                continue
            try:
                self._answer(letter.header)
            except Exception as error:  # a bad probe must not end the thread
                log.warning("%s could not answer a probe: %s", self._fabric.name, error)

    def _notice(self) -> None:
        now = self.load()
        if now < FASTER * self._told:
            self._tell(msg.Notice(self._fabric.name, now))
            self._told = now
        self._told = max(self._told, now)

    def _answer(self, header: Header) -> None:
        sleep_until(header.due)
        found: dict[str, Tensor] = {}
        if header.at == THERE:
            found["seconds"] = torch.tensor([self._train()], dtype=torch.float64)
        elif header.at == BACK:
            size = min(header.micro, MAX_BYTES)
            found["data"] = torch.randint(0, 256, (size,), dtype=torch.uint8)
        specs, payload = pack_tensors(found)
        self._fabric.send(
            Header(header.run, header.version, header.step, "probed", header.at, 0,
                   self._fabric.name, header.source, len(payload), specs), payload
        )  # fmt: skip

    def _train(self) -> float:
        """Trains the test network for one step. Returns the seconds, with the emulated slowness."""
        if self._runner is None or self._network is None:
            return 0.0
        begin = time.monotonic()
        segment = self._network.segment
        inputs = {n: example(v, self._network.samples) for n, v in segment.inputs.items()}
        outputs = self._runner.forward(inputs, training=True)
        torch.autograd.backward([sum((o.sum() for o in outputs.values()), torch.zeros(()))])
        for parameter in self._runner.parameters:
            parameter.grad = None
        if self._network.pace_s:
            sleep_until(begin + self._network.pace_s * self.load())
        return time.monotonic() - begin

    # --- asking -----------------------------------------------------------------------------------

    def ask(self, command: msg.ProbeServers) -> None:
        """Probes servers one after the other in a separate thread. Only one such round runs at a time."""
        threading.Thread(target=self._round, args=(command,), name="probes", daemon=True).start()

    def _round(self, command: msg.ProbeServers) -> None:
        with self._asking:
            for server, size in command.servers.items():
                begun = self._fabric.begun
                if self._fabric.run != command.run:
                    return
                found = self._probe(server, size, command)
                # Otherwise a new plan interrupted the probe.
                if self._fabric.begun == begun and self._fabric.run:
                    self._report(found)

    def _probe(self, server: str, size: int, command: msg.ProbeServers) -> msg.ServerProbed:
        unreached = msg.ServerProbed(self._fabric.name, server, reached=False)
        size = min(size, MAX_BYTES)
        data = {"data": torch.randint(0, 256, (size,), dtype=torch.uint8)}
        try:
            trips = [self._exchange(server, PING, command, {}, 0)[0] for _ in range(2)]
            up_s, answer = self._exchange(server, THERE, command, data, 0)
            down_s, _ = self._exchange(server, BACK, command, {}, size)
        except (WeftError, BadMessage):
            return unreached
        rtt = min(trips)
        seconds = float(answer["seconds"]) if "seconds" in answer else 0.0
        return msg.ServerProbed(
            self._fabric.name, server, True, seconds,
            size / max(up_s - rtt - seconds, 1e-6), size / max(down_s - rtt, 1e-6), rtt,
        )  # fmt: skip

    def _exchange(
        self, server: str, what: int, command: msg.ProbeServers, data: dict[str, Tensor], back: int
    ) -> tuple[float, dict[str, Tensor]]:
        """(seconds, answer) of one message there and back."""
        number = self._fabric.next_probe()
        specs, payload = pack_tensors(data)
        begin = time.monotonic()
        self._fabric.send(
            Header(command.run, 0, number, "probe", what, back, self._fabric.name, server,
                   len(payload), specs), payload
        )  # fmt: skip
        deadline = begin + command.seconds
        while True:
            try:
                letter = self._answers.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise WeftError(f"{server} did not answer a probe") from None
            if letter.header.step == number and letter.header.source == server:
                sleep_until(letter.header.due)
                return time.monotonic() - begin, unpack_tensors(letter.header, letter.payload)
