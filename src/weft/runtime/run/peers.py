"""Runs a plan of peers: they train and exchange by themselves; somebody only watches who is there.

    with PeerRun(crew, plan, own, settings) as run:
        run.go(400)
        run.states, run.events, run.losses

A peer that is lost is left out of the exchange: the others stop for a moment, get a plan without it and go
on with the weights they have. One that comes back gets the means of what the others have now. All that this
machine does in between is to listen.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any

import msgspec
from safetensors.torch import load as load_safetensors
from torch import Tensor

from weft.errors import InputError, LostDevice, WeftError
from weft.plans.plan import Plan
from weft.program.timeline import Span, Timeline
from weft.runtime.run.coordinator import Coordinator
from weft.runtime.run.crew import Crew
from weft.runtime.run.jobs import Settings
from weft.runtime.run.networks import Own
from weft.runtime.run.peer_networks import keepers, newcomer_state, with_peers
from weft.runtime.run.peer_timeline import assembled
from weft.runtime.wire import messages as msg

Progress = Callable[[dict[str, int]], None]  # device -> newest minibatch
TRIES = 5  # further losses while the peers are being put together again


class Returned(WeftError):
    """A device that was lost is there again, and ready."""


class PeerRun:
    """One run of peers, from the first minibatch to the weights that each of them ends with."""

    def __init__(self, crew: Crew, plan: Plan, own: Mapping[str, Own], settings: Settings) -> None:
        assert plan.peers is not None
        self.crew, self.plan, self.own, self.settings = crew, plan, own, settings
        self.peers = plan.peers
        first = own[self.peers.devices[0]]
        self.run = Coordinator(
            crew, plan, first.graph, first.state, settings, feed=_no_feed, own=own
        )
        self.absent: set[str] = set()
        self.warm: set[str] = set()  # of those that came back: ready to go on
        self.done: dict[str, int] = dict.fromkeys(self.peers.devices, -1)
        self.losses: dict[int, dict[str, float]] = {}
        self.events: list[dict[str, Any]] = []
        self.states: dict[str, dict[str, Tensor]] = {}
        self.spans: list[Span] = []
        self.nodes: dict[str, msg.Spans] = {}
        self.seconds = 0.0
        self._enough = False

    def __enter__(self) -> PeerRun:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.run.__exit__(kind, error, trace)

    def go(self, steps: int, on_progress: Progress | None = None) -> None:
        """`steps` minibatches of each peer. Where nobody waits, until half of the peers have done them."""
        self.run.prepare()
        begin = time.monotonic()
        first = dict.fromkeys(self.present, 0)
        while True:
            try:
                self._watch(first, steps, on_progress)
                break
            except LostDevice as lost:
                if lost.device not in self.peers.devices:
                    raise
                self.absent.add(lost.device)
                self.warm.discard(lost.device)
                first = self._put_together(lost=lost.device)
            except Returned:
                first = self._put_together()
        self.seconds = time.monotonic() - begin
        self.states = self._collect()

    @property
    def present(self) -> tuple[str, ...]:
        return tuple(d for d in self.peers.devices if d not in self.absent)

    @property
    def mean_losses(self) -> list[float]:
        """By minibatch: the mean over the peers that did it."""
        return [sum(each.values()) / len(each) for _, each in sorted(self.losses.items())]

    @property
    def loss(self) -> float | None:
        """Of the newest minibatch that anybody has reported."""
        if not self.losses:
            return None
        each = self.losses[max(self.losses)]
        return sum(each.values()) / len(each)

    def timeline(self) -> Timeline:
        return assembled(self.spans, self.peers)

    # --- while they work ------------------------------------------------------------------------

    def _watch(self, first: Mapping[str, int], last: int, on_progress: Progress | None) -> None:
        """Listens until all are done; LostDevice and Returned end it early."""
        self.crew.ask_all(
            {d: msg.Run(self.run.run, first[d], last) for d in self.present},
            self.settings.deadline_s,
        )
        waiting = set(self.present)
        heard = time.monotonic()
        while waiting:
            for device in sorted(self.absent & set(self.crew.present)):
                if self._ready(device):
                    raise Returned(f"{device} came back")
            try:
                event = self.crew.events.get(timeout=0.2)
            except queue.Empty:
                self._check_silence(heard, waiting)
                continue
            heard = time.monotonic()
            self._take(event, waiting)
            if self.peers.late == "newest" and 2 * len(waiting) <= len(self.present):
                self.run.cancel("half of the peers have done their minibatches")
                return
            if on_progress:
                on_progress(self.done)
            if self._enough:
                self.run.cancel("enough")
                return

    def enough(self) -> None:
        """Ends the run where it stands; to be called from `on_progress`."""
        self._enough = True

    def _take(self, event: object, waiting: set[str]) -> None:
        match event:
            case msg.Progress():
                self.done[event.device] = max(self.done[event.device], event.step)
                for step, loss in event.losses:
                    self.losses.setdefault(step, {})[event.device] = loss
            case msg.Finished():
                self.done[event.device] = event.last - 1
                waiting.discard(event.device)
            case msg.Failed():
                kind = InputError if event.bad_input else WeftError
                raise kind(f"{event.device}: {event.error}")
            case LostDevice():
                if event.device in self.present:
                    raise event

    def _check_silence(self, heard: float, waiting: set[str]) -> None:
        silent = time.monotonic() - heard
        if silent > self.settings.deadline_s * 1.5 + 5:
            slowest = min(waiting, key=lambda d: self.done[d])
            raise LostDevice(
                slowest,
                f"no peer has reported for {silent:.0f} s; {slowest} is furthest behind (minibatch "
                f"{self.done[slowest]}). Is it hanging? --deadline sets the limit",
            )

    # --- when one leaves or comes back ------------------------------------------------------------

    def _put_together(self, lost: str | None = None) -> dict[str, int]:
        """The peers that are there go on under a new plan; says from which minibatch each."""
        begin = time.monotonic()
        newly: list[str] = [lost] if lost else []
        for _ in range(TRIES):
            try:
                first, back = self._reassign()
                break
            except LostDevice as error:  # one more, meanwhile
                if error.device not in self.present:
                    raise
                self.absent.add(error.device)
                self.warm.discard(error.device)
                newly.append(error.device)
        else:
            raise WeftError(f"devices were lost {TRIES} times in a row: {', '.join(newly)}")
        took = time.monotonic() - begin
        for device in newly:
            self._say_lost(device, min(first.values()), took)
        for device in back:
            self.events.append(
                {"step": first[device], "kind": "device_joined", "device": device,
                 "classes": list(self.peers.peer(device).classes), "seconds": took}
            )  # fmt: skip
        return first

    def _reassign(self) -> tuple[dict[str, int], list[str]]:
        back = sorted(self.absent & self.warm & set(self.crew.present))
        stayed = self.present
        if not stayed:
            raise WeftError("every peer is gone; start `weft node` on some of them and begin again")
        self.run.cancel("the peers are put together anew")
        at = self._where(stayed)
        self._drain()
        self._note_spans(stayed)
        self.states = self._collect()
        self.absent -= set(back)
        first = self._begins(at, back)
        plan = with_peers(self.plan, self.peers.without(frozenset(self.absent)))
        version = self.run.plan.version + 1
        self.run.adopt(msgspec.structs.replace(plan, version=version))
        jobs = self.run.assign()
        for device in back:
            names = {n for segment in jobs[device].segments for n in segment.state}
            state = newcomer_state(device, self.own, self.states)
            self.run.ship(device, {n: t for n, t in state.items() if n in names}, optimizer=False)
        self.run.build()
        return first, back

    def _begins(self, at: Mapping[str, int], back: list[str]) -> dict[str, int]:
        """The next minibatch of each peer."""
        every = self.peers.every
        rounds = [(done + 1) // every for done in at.values()]
        if self.peers.late == "newest":  # nobody needs to be where the others are
            return {
                **{d: done + 1 for d, done in at.items()},
                **dict.fromkeys(back, min(rounds) * every),
            }
        # Whoever is behind the others' last exchange cannot have it any more: on with the next round.
        begin = max(rounds) * every
        return {**{d: max(done + 1, begin) for d, done in at.items()}, **dict.fromkeys(back, begin)}

    def _ready(self, device: str) -> bool:
        """Whether a device that came back has opened its data: the others work on meanwhile."""
        if device in self.warm:
            return True
        now = self.run.plan
        try:
            self.run.adopt(msgspec.structs.replace(self.plan, version=now.version))
            job = self.run.job(device)
        finally:
            self.run.adopt(now)
        wait = self.settings.deadline_s
        names = {n for segment in job.segments for n in segment.state}
        state = {n: t for n, t in self.own[device].state.items() if n in names}
        try:
            self.crew.ask(device, msg.Assign(job), wait)
            self.run.ship(device, state, optimizer=False)
            self.crew.ask(device, msg.Prepare(self.run.run), wait)
        except WeftError:
            return False  # gone again, or not up yet
        self.warm.add(device)
        return True

    def _where(self, devices: tuple[str, ...]) -> dict[str, int]:
        found = {}
        asked = {d: msg.Where(self.run.run) for d in devices}
        for device, (at,) in self.crew.ask_all(asked, self.settings.deadline_s).items():
            assert isinstance(at, msg.At)
            # under a new plan a device counts from where it began, so what was heard before counts too
            found[device] = max(at.step, self.done[device])
            self.done[device] = found[device]
        return found

    def _drain(self) -> None:
        """What was said before the change no longer matters, but for losses of devices."""
        kept = []
        with suppress(queue.Empty):
            while True:
                event = self.crew.events.get_nowait()
                if isinstance(event, LostDevice):
                    kept.append(event)
                elif isinstance(event, msg.Progress):
                    self._take(event, set())
        for event in kept:
            if event.device in self.present and event.device not in self.crew.present:
                raise event

    def _say_lost(self, device: str, step: int, took: float) -> None:
        classes = self.peers.peer(device).classes
        owners = {c: [d for d in self.peers.owners(c) if d in self.present] for c in classes}
        self.events.append(
            {"step": step, "kind": "device_lost", "device": device, "seconds": took,
             "classes": {str(c): who for c, who in owners.items()}}
        )  # fmt: skip
        for label, who in owners.items():
            if not who:
                self.events.append(
                    {"step": step, "kind": "class_without_owner", "class": label,
                     "kept_by": keepers(self.states, label)}
                )  # fmt: skip

    # --- what comes home --------------------------------------------------------------------------

    def _collect(self) -> dict[str, dict[str, Tensor]]:
        """Every present peer's own weights, and what it keeps for others."""
        states: dict[str, dict[str, Tensor]] = {}
        size = sum(t.nbytes for own in self.own.values() for t in own.state.values())
        asked = {d: msg.GetState(self.run.run) for d in self.present}
        replies = self.crew.ask_all(asked, self.settings.deadline_s + size / 1e5)
        for device, pieces in replies.items():
            states[device] = {}
            for piece in pieces:
                assert isinstance(piece, msg.StatePiece)
                if not piece.optimizer:
                    states[device].update(load_safetensors(piece.data))
        return states

    def finish(self) -> Timeline:
        """What happened, of all peers that are there; to be asked once, at the end."""
        self._note_spans(self.present)
        return self.timeline()

    def _note_spans(self, devices: tuple[str, ...]) -> None:
        """A new plan makes nodes forget their spans, so they are fetched before it."""
        asked = {d: msg.GetTimeline(self.run.run) for d in devices}
        for device, (spans,) in self.crew.ask_all(asked, self.settings.deadline_s).items():
            assert isinstance(spans, msg.Spans)
            offset = 0.0 if self.settings.same_clock else self.crew.clock_offset(device)
            self.spans += [
                msgspec.structs.replace(s, start=s.start + offset, end=s.end + offset)
                for s in spans.spans
            ]
            self.nodes[device] = spans


def _no_feed(step: int) -> tuple[dict[str, Tensor], Tensor | None]:
    raise InputError(f"minibatch {step}: peers load their own samples; nothing is fed from here")
