"""What a live run learns of servers that it does not use: probes and notices.

    probes = Probes(run, watch)
    probes.install()                          # every server gets a test network
    probes.start(probes.everyone); probes.wait()  # the client probes them; answers go into the watch
    probes.out_of_reach, probes.take_faster()

A server is a black box: what counts is how long the same test network takes on each. On real devices the
client trains it too, and it knows what the real network takes on itself:

    server's step = client's step x (test network there / test network on the client)

Once a server has worked, its own ratio of real to test network takes the place of the client's. Emulated
devices are paced by their profile, and so is their test network.
"""

from __future__ import annotations

import contextlib
import math
import queue
import secrets
import statistics
import time

from weft.adapt.probe_network import ProbeWork, probe_work
from weft.adapt.watch import Watch
from weft.errors import WeftError
from weft.runtime.run.run import Run
from weft.runtime.wire import messages as msg
from weft.runtime.wire.crew import Event

SPENT_S = 0.02  # a probe's data shall take about this long to cross
LEAST_BYTES, MOST_BYTES = 8_000, 1_000_000
LEAST_LIMIT_S = 0.75  # no answer counts as late before that
SLACK = 5  # times the expected time: then an answer is late
UNKNOWN = 4  # a fleet file may promise so many times the speed of a real device


class Probes:
    """Asks servers that have no part in the plan how fast they are, and remembers who is out of reach."""

    def __init__(self, run: Run, watch: Watch) -> None:
        self.run, self.watch = run, watch
        self.out_of_reach: dict[str, str] = {}  # by server: why
        self._waiting: set[str] = set()
        self._until = 0.0
        self._faster: dict[str, float] = {}
        self._tested: dict[str, float] = {}  # seconds of a step of the test network, by device
        self._worked: dict[str, float] = {}  # real seconds for one of the test network, by server
        self._knows: set[str] = set()
        self._emulated = bool(run.settings.paced)
        self._profile = run.plan.profile  # of all, whoever is there later
        self._work = self._size()
        run.heard = self.hear

    def _size(self) -> ProbeWork:
        """One test network for all, so that they can be compared."""
        source = self.run.plan.source
        trains = [d for d in self._profile.devices if d != source or not self._emulated]
        slowest = max((self._step_s(d) for d in trains), default=0.0)
        return probe_work(self._profile, self.run.plan.batch, slowest, secrets.randbits(32))

    def _step_s(self, device: str) -> float:
        """Seconds of a step of the whole real network, by the profile."""
        times, last = self._profile.devices[device], len(self._profile.layers) - 1
        batch = self.run.plan.batch
        return (
            times.forward(0, last, batch) + times.backward(0, last, batch) + times.update(0, last)
        )

    @property
    def servers(self) -> list[str]:
        """Who can be probed: devices of the run that are there, the source left out."""
        return [d for d in self.run.everyone if d != self.run.plan.source]

    @property
    def everyone(self) -> list[str]:
        """All servers, and the client where servers are compared with it."""
        return self.servers if self._emulated else [self.run.plan.source, *self.servers]

    def install(self) -> None:
        """Gives every device that has none the test network."""
        for device in self.everyone:
            if device in self._knows:
                continue
            network = msg.TestNetwork(
                self.run.run_id, self._work.segment, self._work.samples, secrets.randbits(32),
                self._step_s(device) * self._work.share if self._emulated else 0.0,
            )  # fmt: skip
            with contextlib.suppress(WeftError):  # it has just gone: it will be missed elsewhere
                self.run.crew.ask(device, network, self.run.settings.deadline_s)
                self._knows.add(device)

    def forget(self, server: str) -> None:
        """A server has gone; when it comes again it knows nothing."""
        self._knows.discard(server)
        self._waiting.discard(server)

    @property
    def under_way(self) -> bool:
        return bool(self._waiting) and time.monotonic() < self._until

    def start(self, devices: list[str], *, training: bool = False) -> None:
        """The client probes these. `training`: minibatches cross the links meanwhile."""
        source, fleet = self.run.plan.source, self.run.plan.fleet
        exchanges = {}
        # Those that answered last time first: one that does not answer is waited for.
        for device in sorted(devices, key=lambda name: name in self.out_of_reach):
            if device in self._knows and fleet.connected(source, device):
                exchanges[device] = self._exchange(device, training)
        if not exchanges:
            return
        self._waiting = set(exchanges)
        longest = sum(2 * e.ping_s + e.train_s + e.data_s for e in exchanges.values())
        self._until = time.monotonic() + longest
        command = msg.ProbeServers(self.run.run_id, exchanges)
        self.run.crew.ask(source, command, self.run.settings.deadline_s)

    def _exchange(self, server: str, training: bool) -> msg.Exchange:
        """How much is sent to a server, and how long its answers may take: by what they should take."""
        source, fleet = self.run.plan.source, self.run.plan.fleet
        train_s = self._step_s(server) * self._work.share * max(self.watch.slowdown(server), 1.0)
        train_s *= 1 if self._emulated else UNKNOWN
        if server == source:
            return msg.Exchange(0, train_s=self._limit(train_s))
        up, down = fleet.path_rate(source, server), fleet.path_rate(server, source)
        size = int(min(max(min(up, down) * SPENT_S, LEAST_BYTES), MOST_BYTES))
        rtt = fleet.path_latency(source, server) + fleet.path_latency(server, source)
        behind = self._busy_s(server) if training else 0.0  # what waits for the link before us
        return msg.Exchange(
            size,
            ping_s=self._limit(rtt) + behind,
            train_s=self._limit(rtt + size / up + train_s) + behind,
            data_s=self._limit(rtt + size / down) + behind,
        )

    @staticmethod
    def _limit(expected_s: float) -> float:
        return max(LEAST_LIMIT_S, SLACK * expected_s)

    def _busy_s(self, server: str) -> float:
        """How long minibatches in flight may hold up a message to this server."""
        plan = self.run.plan
        mine = {hop.channel for hop in plan.fleet.route(plan.source, server)}
        used = {
            hop.channel
            for shard in plan.shards
            if shard.device != plan.source
            for hop in plan.fleet.route(plan.source, shard.device)
        }
        if not mine & used:
            return 0.0
        predicted = plan.predicted.seconds if plan.predicted else 0.0
        return (plan.stale + 1) * (self.watch.period_s or predicted)

    def wait(self) -> None:
        """Until all have answered or are late, outside of `run.steps`; other news stays for later. Who
        has not answered by then is taken to be where it was."""
        others: list[Event] = []
        while self._waiting and (left := self._until - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                event = self.run.crew.events.get(timeout=left)
                if isinstance(event, msg.ServerProbed | msg.Notice):
                    self.hear(event)
                else:
                    others.append(event)
        for event in others:
            self.run.crew.events.put(event)

    def hear(self, event: msg.ServerProbed | msg.Notice) -> None:
        if isinstance(event, msg.Notice):
            self._faster[event.device] = event.slowdown
            return
        self._waiting.discard(event.server)
        if not event.reached:
            self.out_of_reach[event.server] = event.why or f"{event.server} did not answer a probe"
            return
        self.out_of_reach.pop(event.server, None)
        self._tested[event.server] = event.seconds
        if event.server != self.run.plan.source:
            self.watch.probed(
                event.server, self.run.plan.source, self._slowdown(event.server),
                event.up_bytes_per_s, event.down_bytes_per_s, event.rtt_s,
            )  # fmt: skip

    def _slowdown(self, server: str) -> float:
        """How many times longer than by its profile a step takes on a server, by its last probe."""
        expected = self._step_s(server)
        if expected <= 0 or self._tested[server] <= 0:
            return 1.0
        return self._tested[server] * self._real_for_test(server) / expected

    def _real_for_test(self, server: str) -> float:
        """Seconds of the real network for one of the test network."""
        if self._emulated:
            return 1 / self._work.share
        if server in self._worked:
            return self._worked[server]
        if self._worked:  # servers are more like each other than like the client
            return statistics.geometric_mean(self._worked.values())
        client = self.run.plan.source
        if self._tested.get(client, 0.0) > 0:
            return self._step_s(client) / self._tested[client]
        return 1 / self._work.share

    def worked(self, server: str) -> None:
        """A server has trained its part: the watch knows what the real network takes there."""
        tested, real = self._tested.get(server, 0.0), self.watch.slowdown(server)
        if tested > 0 and real > 0 and math.isfinite(real):
            self._worked[server] = real * self._step_s(server) / tested

    def take_faster(self) -> tuple[str, ...]:
        """Servers that have told since the last time that they got faster."""
        found = tuple(sorted(self._faster))
        self._faster = {}
        return found
