"""EdgeMove's decisions during a run (Algorithms 1 to 3), once per training cycle.

    policy = EdgeMove(costs, every=500, seed=3)

Algorithm 1 gives the first cut for a worker. Algorithm 2 then moves the cut by one layer per cycle. As
printed, it never stops. So this one keeps the best cut, takes a neighbour only if it is 3% faster, and
stops when both neighbours failed. It starts again when a cycle takes 10% more or less than the best
one. Algorithm 3 probes all servers in reach when a cycle is slower than the worst so far. One cycle
later, with the answers, it changes to a better server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.plans.online import Decision, Seen, Server
from weft.strategies.edgemove.model import SplitCosts, approximate_cut, middling
from weft.strategies.edgemove.online.baselines import NO_ROOM, Chosen, alone

BETTER = 0.03  # a neighbouring cut must be faster by this share
DRIFT = 0.10  # a stopped search starts again when the time changes by more than this share


class CutSearch:
    """Algorithm 2 for one worker. It is asked for the next cut once per cycle."""

    def __init__(
        self,
        cut: int,
        most_cut: int,
        random: np.random.Generator,
        fits: Callable[[int], bool] = lambda cut: True,
    ) -> None:
        self.most_cut, self.random, self.fits = most_cut, random, fits
        self.best, self.best_s = cut, np.inf
        self.todo: list[int] = []  # directions not tried yet from the best cut
        self.armed = True

    def next(self, cut: int, seconds: float) -> int:
        """The cut of the next cycle. The last cycle had `cut` and took `seconds` per minibatch."""
        if not self.armed:
            if abs(seconds / self.best_s - 1) <= DRIFT:
                return cut
            self.armed, self.best_s = True, np.inf
        if self.best_s == np.inf:
            self.best, self.best_s = cut, seconds
            self.todo = [1, -1] if self.random.integers(2) else [-1, 1]
        elif seconds < (1 - BETTER) * self.best_s:
            onward = 1 if cut > self.best else -1  # the other direction is known to be worse
            self.best, self.best_s, self.todo = cut, seconds, [onward]
        while self.todo:
            neighbour = self.best + self.todo.pop(0)
            if 1 <= neighbour <= self.most_cut and self.fits(neighbour):
                return neighbour
        self.armed = False
        return self.best


class EdgeMove(Chosen):
    """The paper's policy: Algorithms 1 to 3."""

    def __init__(self, costs: SplitCosts, every: int = 500, seed: int = 0, **settings: Any) -> None:
        super().__init__(costs, every, **settings)
        self._random = np.random.default_rng([seed, 12])
        self._search: CutSearch | None = None
        self._worst_s = 0.0  # t_wst; 0: the next cycle sets it
        self._probing = False

    def decide(self, seen: Seen) -> Decision | None:
        worker = seen.setting.worker
        if worker is None or seen.lost:
            why = "the worker is lost" if seen.lost else "the fastest in the probe"
            reach = {server.name for server in seen.servers}
            probed = [server for server in seen.probed if server.name in reach]
            return self._change(probed or seen.servers, why)
        if self._probing and seen.probed:
            self._probing = False
            best = self._fastest(seen.probed)
            if best is not None and best.name != worker:
                return self._change(seen.probed, "another server is faster")
            self._worst_s = seen.period_s
        slower = self._worst_s > 0 and seen.period_s > self._worst_s
        self._worst_s = self._worst_s or seen.period_s
        self._probing = slower or bool(seen.faster)
        return self._adapt_cut(seen)

    def _adapt_cut(self, seen: Seen) -> Decision | None:
        now = seen.setting
        if self._search is None:
            self._search = self._search_from(str(now.worker), now.cut)
        cut = self._search.next(now.cut, seen.period_s)
        if cut == now.cut and not self._probing:
            return None
        why = "the cycle was the slowest so far" if cut == now.cut else "a neighbouring cut"
        return Decision(self.setting(now.worker, cut), why, probe=self._probing)

    def _search_from(self, worker: str, cut: int) -> CutSearch:
        def fits(tried: int) -> bool:
            return self.fits(self.setting(worker, tried))

        return CutSearch(cut, self.costs.most_cut, self._random, fits)

    def _change(self, servers: Sequence[Server], why: str) -> Decision:
        self._probing, self._worst_s = False, 0.0
        by_score = self._by_score(servers)
        for chosen in by_score:
            wanted = self._first_cut(chosen)
            # The paper does not consider memory: take the nearest cut that fits.
            distance = np.abs(np.arange(1, self.costs.most_cut + 1) - wanted).astype(float)
            cut = self.best_cut(chosen.name, distance)
            if cut is not None:
                self._search = self._search_from(chosen.name, cut)
                return Decision(self.setting(chosen.name, cut), why)
        return alone(self.costs, NO_ROOM if by_score else "no server is in reach")

    def _first_cut(self, server: Server) -> int:
        """The cut by Algorithm 1."""
        cut = approximate_cut(
            self.costs.layers,
            self.costs.alone_s,
            float(self.costs.worker_s[0]) * server.slowdown,
            self._network_s(server),
        )
        return min(cut, self.costs.most_cut)

    def _by_score(self, servers: Sequence[Server]) -> list[Server]:
        return sorted((s for s in servers if s.tier == "edge"), key=self._score)

    def _fastest(self, servers: Sequence[Server]) -> Server | None:
        return next(iter(self._by_score(servers)), None)

    def _score(self, server: Server) -> float:
        """Seconds of the test network on a server, with the time to send it there and back."""
        return float(self.costs.worker_s[0]) * server.slowdown + self._network_s(server)

    def _network_s(self, server: Server) -> float:
        """The RTT of an iteration in seconds: propagation, and sending a cut of middle size.

        The cut is not known yet, and the test network does not show it.
        """
        inner = self.costs.inner
        up, down = (
            middling(sizes[inner]) for sizes in (self.costs.up_bytes, self.costs.down_bytes)
        )
        return server.rtt_s + up / server.up_bytes_per_s + down / server.down_bytes_per_s
