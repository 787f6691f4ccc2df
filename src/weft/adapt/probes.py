"""What a live run learns of servers that it does not use: probes and notices.

probes = Probes(run, watch)
probes.install()                 # every server gets a test network
probes.start(); probes.wait(2.0) # the client probes them; answers go into the watch
probes.out_of_reach, probes.take_faster()
"""

from __future__ import annotations

import contextlib
import queue
import secrets
import time

from weft.adapt.probe_network import probe_network, profile_flops
from weft.adapt.watch import Watch
from weft.errors import WeftError
from weft.plans.profile import DeviceTimes
from weft.runtime.run.crew import Event
from weft.runtime.run.run import Run
from weft.runtime.wire import messages as msg

SPENT_S = 0.02  # a probe's data shall take about this long to cross
LEAST_BYTES, MOST_BYTES = 8_000, 1_000_000
EXCHANGE_S = 0.75  # longer than any exchange with a server that is worth having


class Probes:
    def __init__(self, run: Run, watch: Watch) -> None:
        self.run, self.watch = run, watch
        self.out_of_reach: set[str] = set()
        self._waiting: set[str] = set()
        self._since = 0.0
        self._faster: dict[str, float] = {}
        self._best: dict[str, float] = {}  # seconds of the test network, where no pace is known
        self._knows: set[str] = set()
        run.heard = self.hear

    @property
    def servers(self) -> list[str]:
        """Who can be probed: devices of the run that are there, the source left out."""
        return [d for d in self.run.everyone if d != self.run.plan.source]

    def install(self) -> None:
        """Gives every server that has none a test network of its own."""
        plan, last = self.run.plan, len(self.run.plan.profile.layers) - 1
        flops = profile_flops(plan.profile)
        for server in self.servers:
            if server in self._knows:
                continue
            paced = server in self.run.settings.paced
            times = plan.profile.devices[server]
            network = msg.TestNetwork(
                self.run.run_id, probe_network(flops, secrets.randbits(32)), plan.batch,
                secrets.randbits(32), _whole(times, last, plan.batch) if paced else 0.0,
            )  # fmt: skip
            with contextlib.suppress(WeftError):  # it has just gone: it will be missed elsewhere
                self.run.crew.ask(server, network, self.run.settings.deadline_s)
                self._knows.add(server)

    def forget(self, server: str) -> None:
        """A server has gone; when it comes again it knows nothing."""
        self._knows.discard(server)
        self._waiting.discard(server)

    @property
    def under_way(self) -> bool:
        answered_by = self._since + 4 * EXCHANGE_S * max(1, len(self._waiting))
        return bool(self._waiting) and time.monotonic() < answered_by

    def start(self, servers: list[str]) -> None:
        """The client probes these, while training goes on."""
        source, fleet = self.run.plan.source, self.run.plan.fleet
        sizes = {}
        # Those that answered last time first: one that does not answer is waited for.
        for server in sorted(servers, key=lambda name: name in self.out_of_reach):
            if server in self._knows and fleet.connected(source, server):
                rate = min(fleet.path_rate(source, server), fleet.path_rate(server, source))
                sizes[server] = int(min(max(rate * SPENT_S, LEAST_BYTES), MOST_BYTES))
        if not sizes:
            return
        self._waiting, self._since = set(sizes), time.monotonic()
        command = msg.ProbeServers(self.run.run_id, sizes, EXCHANGE_S)
        self.run.crew.ask(source, command, self.run.settings.deadline_s)

    def wait(self, seconds: float) -> None:
        """Until all have answered, outside of `run.steps`; other news stays for later. Who has not
        answered by then is taken to be where it was."""
        deadline = time.monotonic() + seconds
        others: list[Event] = []
        while self._waiting and (left := deadline - time.monotonic()) > 0:
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
            self.out_of_reach.add(event.server)
            return
        self.out_of_reach.discard(event.server)
        slowdown = self._slowdown(event)
        self.watch.probed(
            event.server, self.run.plan.source, slowdown, event.up_bytes_per_s,
            event.down_bytes_per_s, event.rtt_s,
        )  # fmt: skip

    def _slowdown(self, event: msg.ServerProbed) -> float:
        """Against the profile, where a device is paced by it; else against the best that was seen."""
        plan = self.run.plan
        if event.server in self.run.settings.paced:
            last = len(plan.profile.layers) - 1
            return event.seconds / _whole(plan.profile.devices[event.server], last, plan.batch)
        best = min(self._best.get(event.server, event.seconds), event.seconds)
        self._best[event.server] = best
        return event.seconds / best if best > 0 else 1.0

    def take_faster(self) -> tuple[str, ...]:
        """Servers that have told since the last time that they got faster."""
        found = tuple(sorted(self._faster))
        self._faster = {}
        return found


def _whole(times: DeviceTimes, last: int, batch: int) -> float:
    return times.forward(0, last, batch) + times.backward(0, last, batch) + times.update(0, last)
