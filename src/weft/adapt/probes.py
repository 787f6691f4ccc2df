"""What a live run learns about servers that it does not use: probes and notices.

    probes = Probes(run, watch)
    probes.install()                              # every server gets a test network
    probes.start(probes.everyone); probes.wait()  # the client probes them; the watch gets the answers
    probes.out_of_reach, probes.take_faster()

A server is a black box. What counts is how long the same test network takes on each. On real devices the
client trains it too, and the client's time for the real network is known:

    server's step = client's step x (test network on the server / test network on the client)

After a server has worked, its own ratio of real to test network replaces the client's. Emulated devices
are paced by their profile, and so is their test network.
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
from weft.errors import LostDevice, WeftError
from weft.runtime.run.run import Run
from weft.runtime.wire import messages as msg
from weft.runtime.wire.crew import Event

SPENT_S = 0.02  # about so long a probe's data should take on the link
LEAST_BYTES, MOST_BYTES = 8_000, 1_000_000
LEAST_LIMIT_S = 0.75  # no answer is late before that
SLACK = 5  # an answer is late after so many times the expected time
UNKNOWN = 4  # a real device may be so many times slower than its fleet file says


class Probes:
    """Measures servers that have no part in the plan, and remembers which are out of reach."""

    def __init__(self, run: Run, watch: Watch) -> None:
        self.run, self.watch = run, watch
        self.out_of_reach: dict[str, str] = {}  # by server: the reason
        self._waiting: set[str] = set()
        self._until = 0.0
        self._faster: dict[str, float] = {}
        self._tested: dict[str, float] = {}  # by device: seconds of a step of the test network
        # By server: real seconds per second of the test network.
        self._worked: dict[str, float] = {}
        self._knows: set[str] = set()
        self._emulated = bool(run.settings.paced)
        self._profile = run.plan.profile  # of all devices, also of those that come later
        self._work = self._size()
        run.heard = self.hear

    def _size(self) -> ProbeWork:
        """One test network for all devices, so that they can be compared."""
        source = self.run.plan.source
        trains = [d for d in self._profile.devices if d != source or not self._emulated]
        slowest = max((self._step_s(d) for d in trains), default=0.0)
        return probe_work(self._profile, self.run.plan.batch, slowest, secrets.randbits(32))

    def _step_s(self, device: str) -> float:
        """Seconds of a step of the whole real network, from the profile."""
        times, last = self._profile.devices[device], len(self._profile.layers) - 1
        batch = self.run.plan.batch
        return (
            times.forward(0, last, batch) + times.backward(0, last, batch) + times.update(0, last)
        )

    @property
    def servers(self) -> list[str]:
        """The devices that can be probed: those of the run that are present, without the source."""
        there = set(self.run.crew.present) - self.run.absent
        return [d for d in self.run.everyone if d != self.run.plan.source and d in there]

    @property
    def everyone(self) -> list[str]:
        """All servers; on real devices also the client, with which servers are compared."""
        return self.servers if self._emulated else [self.run.plan.source, *self.servers]

    def install(self) -> None:
        """Send the test network to every device that does not have it yet."""
        for device in self.everyone:
            if device in self._knows:
                continue
            network = msg.TestNetwork(
                self.run.run_id, self._work.segment, self._work.samples, secrets.randbits(32),
                self._step_s(device) * self._work.share if self._emulated else 0.0,
            )  # fmt: skip
            # The device has just gone; others will notice that.
            with contextlib.suppress(WeftError):
                self.run.crew.ask(device, network, self.run.settings.deadline_s)
                self._knows.add(device)

    def forget(self, server: str) -> None:
        """A server is gone. When it comes back it must get the test network again."""
        self._knows.discard(server)
        self._waiting.discard(server)

    @property
    def under_way(self) -> bool:
        """Whether probes have not been answered yet and are not late."""
        return bool(self._waiting) and time.monotonic() < self._until

    def start(self, devices: list[str], *, training: bool = False) -> None:
        """The client probes these devices. `training`: minibatches use the links at the same time."""
        source, fleet = self.run.plan.source, self.run.plan.fleet
        exchanges = {}
        # Devices that answered last time come first, because a device that does not answer is waited for.
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
        """How many bytes are sent to a server, and how long its answers may take."""
        source, fleet = self.run.plan.source, self.run.plan.fleet
        train_s = self._step_s(server) * self._work.share * max(self.watch.slowdown(server), 1.0)
        train_s *= 1 if self._emulated else UNKNOWN
        if server == source:
            return msg.Exchange(0, train_s=self._limit(train_s))
        up, down = fleet.path_rate(source, server), fleet.path_rate(server, source)
        size = int(min(max(min(up, down) * SPENT_S, LEAST_BYTES), MOST_BYTES))
        rtt = fleet.path_latency(source, server) + fleet.path_latency(server, source)
        # Messages on the link before the probe's.
        behind = self._busy_s(server) if training else 0.0
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
        """How long minibatches in flight may delay a message to this server."""
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
        """Wait until all have answered, are late or are gone. Other events are put back for later.

        Call it outside of `run.steps`. A device that has not answered counts as before.
        """
        others: list[Event] = []
        while self._waiting and (left := self._until - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                event = self.run.crew.events.get(timeout=left)
                if isinstance(event, msg.ServerProbed | msg.Notice):
                    self.hear(event)
                    continue
                if isinstance(event, LostDevice):
                    self._waiting.discard(event.device)
                others.append(event)
        for event in others:
            self.run.crew.events.put(event)

    def hear(self, event: msg.ServerProbed | msg.Notice) -> None:
        """Take the answer to a probe, or a server's notice that it became faster."""
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
        """A server's seconds for a step divided by those of its profile, from its last probe."""
        expected = self._step_s(server)
        if expected <= 0 or self._tested[server] <= 0:
            return 1.0
        return self._tested[server] * self._real_for_test(server) / expected

    def _real_for_test(self, server: str) -> float:
        """Seconds of the real network per second of the test network."""
        if self._emulated:
            return 1 / self._work.share
        if server in self._worked:
            return self._worked[server]
        if self._worked:  # servers resemble each other more than the client
            return statistics.geometric_mean(self._worked.values())
        client = self.run.plan.source
        if self._tested.get(client, 0.0) > 0:
            return self._step_s(client) / self._tested[client]
        return 1 / self._work.share

    def worked(self, server: str) -> None:
        """A server has trained its part, so the watch knows the real network's time on it."""
        tested, real = self._tested.get(server, 0.0), self.watch.slowdown(server)
        if tested > 0 and real > 0 and math.isfinite(real):
            self._worked[server] = real * self._step_s(server) / tested

    def take_faster(self) -> tuple[str, ...]:
        """Servers that reported since the last call that they became faster."""
        names = tuple(sorted(self._faster))
        self._faster = {}
        return names
