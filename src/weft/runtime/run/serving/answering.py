"""The run of a network that answers: it goes on for as long as requests come.

    run = Answering(crew, plan, graph, state, settings, feed, recovery=AskAgain(), adviser=...)
    run.prepare()
    run.steps(0, 5, deliver)      # requests that come meanwhile are added to it: see `admit`
    run.idle(5)                   # between requests: a lost device is replaced before the next one
    run.begin_again()             # after an error: everybody starts afresh with the next request

Weights never change here. So each device keeps what it holds, and everything that it needs under another
plan comes from this machine.
"""

from __future__ import annotations

import contextlib
import queue
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from torch import Tensor

from weft.errors import LostDevice, WeftError
from weft.graph.network import Graph, Pick
from weft.graph.sequence import in_sequence
from weft.graph.split.state import sliced_state
from weft.plans.plan import Plan
from weft.program.timeline import Span
from weft.runtime.run.advice import Adviser, Change, kind_of
from weft.runtime.run.dispatch import CANCEL_S, State
from weft.runtime.run.feeder import Feed
from weft.runtime.run.jobs import Settings
from weft.runtime.run.migrate import next_version
from weft.runtime.run.outcome import Outcome
from weft.runtime.run.recovery.protocol import Recovery
from weft.runtime.run.run import LISTEN_S, Progress, Run
from weft.runtime.wire import messages as msg
from weft.runtime.wire.crew import Crew

MOST_EVENTS = 1_000  # that are remembered: the newest ones
MOST_SPANS = 20_000  # of plans that have ended: a service must not grow

# How a device holds a weight: its shape, and which part of the whole it is.
Holding = tuple[tuple[int, ...], Pick | None]


class Answering(Run):
    """A run without an end."""

    def __init__(
        self,
        crew: Crew,
        plan: Plan,
        graph: Graph,
        state: Mapping[str, Tensor],
        settings: Settings,
        *,
        recovery: Recovery,
        adviser: Adviser,
    ) -> None:
        self._by_depth = graph
        self._held: dict[str, dict[str, Holding]] = {}
        self._first = 0  # of the requests that are asked for now
        self._broken = False
        self._fault: LostDevice | None = None  # what the next request begins with
        self._tried: frozenset[str] = frozenset()  # who was there when the last try to go on failed
        # Called several times a second with the end of the requests; returns their end now.
        self.admit: Callable[[int], int] = lambda last: last
        self.give: Feed = lambda step: ({}, None)  # the inputs of a request
        super().__init__(crew, plan, graph, state, settings, lambda step: self.give(step),
                         recovery=recovery, adviser=adviser)  # fmt: skip
        self.events = deque(maxlen=MOST_EVENTS)

    def adopt(self, plan: Plan) -> None:
        self.graph = graph_for(plan, self._by_depth)
        super().adopt(plan)

    def prepare(self, optimizer_state: Mapping[str, Tensor] | None = None) -> None:
        super().prepare(optimizer_state)
        self.outcome = Outcome(done=dict.fromkeys(self.devices, -1))
        self._held = {device: self._holding(device) for device in self.everyone}

    # --- requests -------------------------------------------------------------------------------

    def steps(self, first: int, last: int, on_progress: Progress | None = None) -> Outcome:
        self._first = first
        return super().steps(first, last, on_progress)

    def extended(self, last: int) -> int:
        return self.admit(last)

    def is_answered(self, step: int) -> bool:
        pieces = range(self.plan.micro_batches)
        return all((step, m) in self.outcome.answers for m in pieces)

    def first_unanswered(self, last: int) -> int:
        """The first request to be asked again."""
        return next((s for s in range(self._first, last) if not self.is_answered(s)), last)

    def forget_answers(self, step: int) -> None:
        """Requests from `step` on are asked again, perhaps in other pieces than before."""
        answers = self.outcome.answers
        self.outcome.answers = {key: piece for key, piece in answers.items() if key[0] < step}

    def idle(self, step: int) -> None:
        """Listens for a moment between two requests. `step` is the number of the next one."""
        try:
            event = self.crew.events.get(timeout=LISTEN_S)
        except queue.Empty:
            event = None
        try:
            self._take(event, set())
            if not self._broken:
                self._look_for_change(step)
        except LostDevice as fault:
            self._fault = fault
            self.begin_again()
        there = frozenset(self.crew.present)
        if self._broken and (self._fault is not None or there != self._tried):
            self._tried = there
            self.steps(step, step)

    def _look_for_change(self, step: int) -> None:
        change = self.advice(step, lambda: self.adviser.look(self, step))
        if change is not None:
            self.change_to(change, step)

    # --- beginning again ------------------------------------------------------------------------

    def begin_again(self) -> None:
        """After an error nobody knows how far devices have come: the next request starts them afresh."""
        self._broken, self._began = True, False

    @property
    def broken(self) -> bool:
        return self._broken

    def _begin(self, step: int) -> None:
        if not self._broken:
            super()._begin(step)
            return
        fault, self._fault = self._fault, None
        if fault is None:
            self._take_back(step)
            gone = [d for d in self.devices if d not in self.crew.present]
            if gone:
                fault = LostDevice(gone[0], f"{gone[0]} is gone: its node ended or its link broke")
        self._began = True
        if fault is None:
            self.cancel("the service starts again")
            self.hand_out(self.plan)
            self.outcome.done = dict.fromkeys(self.devices, step - 1)
            self.follow_plan(step)
        self._broken = False
        if fault is not None:
            raise fault

    def _take_back(self, step: int) -> None:
        """All devices that are there count again."""
        back = sorted(self.absent & set(self.crew.present))
        self.tell({device: msg.End(self.run_id) for device in back}, CANCEL_S)
        for device in back:
            self.absent.discard(device)
            self._held.pop(device, None)
            self.note(step, "device_joined", f"{device} is there again", device=device)

    def follow_plan(self, step: int, why: str = "") -> None:
        super().follow_plan(step, why)
        self._first = step  # all requests before it have their answers, perhaps in other pieces

    # --- another plan ---------------------------------------------------------------------------

    def change_to(self, change: Change, step: int) -> None:
        """Another plan between two requests."""
        before = self.plan
        self.gather()
        moved = self.hand_out(change.plan)
        self.follow_plan(step)
        self.note(step, kind_of(before, change.plan), change.why, **change.what, moved_bytes=moved)

    def hand_out(self, plan: Plan) -> int:
        """Everybody gets its part of a plan, and the weights for it that it does not hold yet. Returns how
        many bytes of weights were sent."""
        sent = 0
        try:
            self.adopt(next_version(self, plan))
            for device, job in self.assign().items():
                weights: State = {}
                held, needed = self._held.get(device, {}), self._holding(device)
                for segment in job.segments:
                    sliced = sliced_state(segment, self.initial)
                    weights |= {n: t for n, t in sliced.items() if held.get(n) != needed[n]}
                self.ship(device, weights, optimizer=False)
                sent += sum(tensor.nbytes for tensor in weights.values())
                self._held[device] = needed
            self.build()
        except WeftError:
            self._held.clear()  # who holds what is not known any more
            raise
        return sent

    def _holding(self, device: str) -> dict[str, Holding]:
        return {
            name: (tuple(info.shape), segment.picks.get(name))
            for segment in self.segments(device)
            for name, info in segment.state.items()
        }

    def enlist(self, device: str) -> None:
        self._held.pop(device, None)  # it forgets what it held
        super().enlist(device)

    def spans(
        self, devices: Iterable[str], since: int | None = None, seconds: float | None = None
    ) -> tuple[list[Span], dict[str, msg.Spans]]:
        """Who is lost meanwhile is missing from the timeline, and nobody else."""
        spans: list[Span] = []
        reported: dict[str, msg.Spans] = {}
        for device in devices:
            with contextlib.suppress(LostDevice):
                own_spans, own_report = super().spans([device], since, seconds)
                spans += own_spans
                reported |= own_report
        return spans, reported

    def gather(self, without: frozenset[str] = frozenset()) -> None:
        super().gather(without)
        del self._past[:-MOST_SPANS]


def graph_for(plan: Plan, by_depth: Graph) -> Graph:
    """The network in the layers that the plan is written in."""
    return in_sequence(by_depth) if plan.layering == "sequence" else by_depth
