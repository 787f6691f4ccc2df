"""Leave out: peers go on without a lost one, and take it back when it returns.

The others stop for a moment, get a plan without it and go on with the weights they have. A peer that comes
back gets the means of what the others have now.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from weft.errors import LostDevice, WeftError
from weft.plans.plan import Plan
from weft.runtime.run.migrate import welcome
from weft.runtime.run.recovery.protocol import Fault, Recovery, Returned
from weft.runtime.run.workload.peer_networks import keepers, with_peers
from weft.runtime.wire import messages as msg

if TYPE_CHECKING:
    from weft.runtime.run.dispatch import State
    from weft.runtime.run.run import Run


class LeaveOut(Recovery):
    """Peers go on without a lost one until it is back."""

    recovers = True

    def __init__(self, plan: Plan) -> None:
        assert plan.peers is not None
        self.plan, self.peers = plan, plan.peers  # of all peers
        self._ready: set[str] = set()  # of those that came back: they have opened their data
        self._lost: list[str] = []  # since the peers were last put together
        self._since = 0  # where the plan under way began

    # --- while they work ------------------------------------------------------------------------

    def look_around(self, run: Run) -> None:
        for device in sorted(run.returned() & set(self.peers.devices)):
            if self._is_ready(run, device):
                raise Returned(device, f"{device} came back")

    def _is_ready(self, run: Run, device: str) -> bool:
        """Whether a device that came back has opened its data: the others work on meanwhile."""
        if device in self._ready:
            return True
        now = run.plan
        try:
            run.adopt(msgspec.structs.replace(self.plan, version=now.version))
            job = run.job(device)
        finally:
            run.adopt(now)
        names = {n for segment in job.segments for n in segment.state}
        state = {n: t for n, t in run.own[device].state.items() if n in names}
        try:
            # A peer that was silent forgets what it held, as one that was started again.
            run.crew.ask(device, msg.End(run.run_id), run.settings.deadline_s)
            run.crew.ask(device, msg.Assign(job), run.settings.deadline_s)
            run.ship(device, state, optimizer=False)
            run.crew.ask(device, msg.Prepare(run.run_id), run.settings.deadline_s)
        except WeftError:
            return False  # gone again, or not up yet
        self._ready.add(device)
        return True

    # --- when one leaves or comes back ----------------------------------------------------------

    def recover(self, run: Run, fault: Fault, last: int) -> dict[str, int]:
        """The peers that are there go on under a new plan."""
        begin = time.monotonic()
        if not isinstance(fault, LostDevice):
            raise fault
        if not isinstance(fault, Returned):
            if fault.device not in self.peers.devices:
                raise fault
            run.absent.add(fault.device)
            self._ready.discard(fault.device)
            self._lost.append(fault.device)
        back = sorted(run.absent & self._ready & set(run.crew.present))
        begins, states = self._reassign(run, back)
        seconds = round(time.monotonic() - begin, 4)
        away = f"without {', '.join(sorted(run.absent))}" if run.absent else "all peers are there"
        self._since = max(self._since, min(begins[d] for d in begins if d not in back))
        self.took(run, self._since, f"{fault}; {away}")
        for device in self._lost:
            self._note_lost(run, device, min(begins.values()), seconds, states)
        self._lost = []
        for device in back:
            run.note(begins[device], "device_joined", f"{device} came back", device=device,
                     classes=list(self.peers.peer(device).classes), seconds=seconds)  # fmt: skip
        return {d: first for d, first in begins.items() if first < last} or begins

    def _present(self, run: Run) -> tuple[str, ...]:
        return tuple(d for d in self.peers.devices if d not in run.absent)

    def _reassign(self, run: Run, back: list[str]) -> tuple[dict[str, int], dict[str, State]]:
        stayed = self._present(run)
        if not stayed:
            raise WeftError("every peer is gone; start `weft node` on some of them and begin again")
        run.cancel("the peers are put together anew")
        at = self._where(run, stayed)
        self._drain(run)
        run.gather(without=frozenset(run.absent))
        states = {d: state for d, (state, _) in run.states(stayed).items()}
        run.absent -= set(back)
        begins = self._begins(at, back)
        plan = with_peers(self.plan, self.peers.without(frozenset(run.absent)))
        run.adopt(msgspec.structs.replace(plan, version=run.plan.version + 1))
        try:
            welcome(run, back, states)
        except WeftError:
            run.absent |= set(
                back
            )  # they may not have their weights; they are taken back another time
            raise
        run.outcome.done = {d: begins[d] - 1 for d in run.devices if d in begins}
        return begins, states

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

    def _where(self, run: Run, devices: tuple[str, ...]) -> dict[str, int]:
        # Under a new plan a device counts from where it began, so what was heard before counts too.
        done = run.outcome.done
        found = {}
        for device, at in run.stopped(devices).items():
            run.advanced |= at.step > done.get(device, -1)
            found[device] = done[device] = max(at.step, done.get(device, -1))
        return found

    def _drain(self, run: Run) -> None:
        """What was said before the change no longer matters, but for lost devices."""
        lost = []
        with suppress(queue.Empty):
            while True:
                event = run.crew.events.get_nowait()
                if isinstance(event, LostDevice):
                    lost.append(event)
                elif isinstance(event, msg.Progress):
                    run.outcome.add(event)
        for event in lost:
            if event.device in self._present(run) and event.device not in run.crew.present:
                raise event

    def _note_lost(
        self, run: Run, device: str, step: int, seconds: float, states: Mapping[str, State]
    ) -> None:
        classes = self.peers.peer(device).classes
        owners = {c: [d for d in self.peers.owners(c) if d in self._present(run)] for c in classes}
        run.note(step, "device_lost", device=device, seconds=seconds,
                 classes={str(c): who for c, who in owners.items()})  # fmt: skip
        for label, who in owners.items():
            if not who:
                what = {"class": label, "kept_by": keepers(states, label)}
                run.note(step, "class_without_owner", **what)
