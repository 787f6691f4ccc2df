"""Clone: a swarm goes on with the next minibatch; the units that are worth it are cloned to others.

Devices report all that they know every few minibatches (`Swarm.every`). When one is lost, the others stop,
lost units are cloned from the last report, and training goes on under a new version of the plan. Nothing is
repeated: a swarm loses more than that to its radio. Should it be the device with the samples and the output
layer, another is elected: it gets that layer from the report and the samples from here. A device that
falls silent while the others go on is only noted: it takes up again when it is back.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from torch import Tensor

from weft.errors import LostDevice, WeftError
from weft.graph.network import Graph
from weft.graph.split.state import place_state
from weft.plans.plan import Plan
from weft.runtime.run.dispatch import State
from weft.runtime.run.recovery.protocol import Fault, Recovery
from weft.runtime.run.run import LEAD_S, Run
from weft.runtime.wire import messages as msg
from weft.simulate.price import priced
from weft.stored import tensors_in
from weft.strategies.stitchnet.importance import Importance, importance
from weft.strategies.stitchnet.recovery import after_loss, moved_units

SILENT_S = 1.0  # without a report while others go on, beside the time of two minibatches


class Clone(Recovery):
    """Remembers what devices reported last, and who has been heard when."""

    recovers = True

    def __init__(self) -> None:
        self._state: State = {}  # what was last reported of each weight
        self._memory: State = {}
        self._members: set[str] = set()  # who may ever have a part in this run
        self._heard: dict[str, float] = {}
        self._silent: set[str] = set()
        self._gathered: tuple[State, State] | None = None
        self._plan_version = -1

    def waits(self, plan: Plan) -> bool:
        """Only where slots of time do not follow the clock: then everybody waits for every message."""
        return plan.swarm is None or plan.swarm.slot_ms <= 0

    def _begin(self, run: Run) -> None:
        """A plan begins: everybody is there."""
        if self._plan_version == run.plan.version:
            return
        if not self._members:
            self._members = set(run.devices)
            self._state = dict(run.initial)
            self._memory = dict(run.copies.newest.memory)
        self._plan_version = run.plan.version
        self._heard = dict.fromkeys(run.devices, time.monotonic() + LEAD_S)
        self._silent = set()

    # --- while it goes on -----------------------------------------------------------------------

    def look_around(self, run: Run) -> None:
        self._begin(run)

    def hear(self, run: Run, event: object, waiting: set[str]) -> None:
        if isinstance(event, msg.Kept):
            self._keep(run, event)
        elif isinstance(event, msg.Progress | msg.Finished):
            self._listen_for_silence(run, event.device, waiting)

    def _keep(self, run: Run, kept: msg.Kept) -> None:
        """The report that units are cloned from; a report that cannot be read is not used."""
        try:
            tensors = tensors_in(kept.data)
            for segment in run.segments(kept.device):
                place_state(segment, tensors, self._memory if kept.optimizer else self._state)
        except WeftError as error:
            run.note(kept.step, "report_unreadable", str(error), device=kept.device)

    def _listen_for_silence(self, run: Run, device: str, waiting: set[str]) -> None:
        now = time.monotonic()
        self._heard[device] = now
        step = max(run.outcome.done.values())
        if device in self._silent:
            self._silent.discard(device)
            run.note(step, "device_back", device=device)
        # Nobody reports more often than once a minibatch.
        patience = SILENT_S + 2 * (run.plan.swarm.step_s if run.plan.swarm else 0.0)
        for other in waiting - self._silent:
            if now - self._heard.get(other, now) > patience:
                self._silent.add(other)
                run.note(step, "device_silent", device=other)

    # --- going on without some ------------------------------------------------------------------

    def recover(self, run: Run, fault: Fault, last: int) -> dict[str, int]:
        """The survivors stop; the lost units are cloned; everybody gets a new job."""
        if not isinstance(fault, LostDevice):
            raise fault
        self._begin(run)
        begin = time.monotonic()
        step = self._next(run, last)
        self._note_lost(run, fault.device, step, begin)
        left = [d for d in run.devices if d not in run.absent]
        run.tell({d: msg.Cancel(run.run_id, "a device is lost") for d in left}, 2.0)
        there = run.crew.present  # only now: whoever died together with it has not answered
        for device in left:
            if device not in there:
                self._note_lost(run, device, step, begin)
        able = [d for d in self._members if d in there and d not in run.absent]
        lost = [d for d in run.plan.fleet.names if d not in able]
        survivors = [d for d in left if d in able]
        before = run.plan
        # Should one more be lost in what follows, the run comes back here with that one.
        state, memory = self._gathered = self._gathered or self._gather(run, survivors)
        self._go_over_to(run, after_loss(before, lost, units_weigh(run.graph, state)), step)
        idle = {d: msg.End(run.run_id) for d in survivors if d not in run.devices}
        run.tell(idle, 2.0)
        run.initial = state
        run.prepare(memory)
        self._gathered = None
        units, cloned = moved_units(before, run.plan, lost)
        run.note(step, "recovered", lost=[d for d in before.devices if d in lost], units=units,
                 cloned=cloned, messages=len(run.plan.swarm.messages) if run.plan.swarm else 0,
                 seconds=round(time.monotonic() - begin, 3))  # fmt: skip
        self._members -= run.absent
        run.outcome.done = dict.fromkeys(run.devices, step - 1)
        self.took(run, step, f"{', '.join(lost)} lost")
        return dict.fromkeys(run.working, step)

    def _next(self, run: Run, last: int) -> int:
        """The minibatch to go on with: the first that nobody has done or, of answers, has answered."""
        if run.plan.mode == "infer":
            answered = {step for step, _ in run.outcome.answers}
            first = min(run.outcome.done.values()) + 1
            return min((s for s in range(min([first, *answered]), last) if s not in answered),
                       default=last)  # fmt: skip
        return min(max(run.outcome.done.values()) + 1, last)

    def _note_lost(self, run: Run, device: str, step: int, now: float) -> None:
        if device in run.absent:
            return
        run.absent.add(device)
        silent = max(0.0, now - self._heard.get(device, now))
        run.note(step - 1, "device_lost", device=device, silent_s=round(silent, 3))

    def _go_over_to(self, run: Run, plan: Plan, step: int) -> None:
        """Another plan; where it has another coordinator, the samples go there from now on."""
        before = run.plan.source
        run.adopt(priced(plan))
        if plan.source != before:
            run.feed_from_here()
            run.note(step, "coordinator_elected", device=plan.source, before=before)

    def _gather(self, run: Run, survivors: list[str]) -> tuple[State, State]:
        """What everybody knows now; of the lost, what was last reported."""
        run.stopped(survivors)
        states = run.states(survivors)
        run.place(states, self._state, self._memory)
        run.gather(without=frozenset(run.absent))
        return dict(self._state), dict(self._memory)


def units_weigh(graph: Graph, state: Mapping[str, Tensor]) -> Importance:
    """How important each unit of each hidden layer is: its row of the weights is what comes into it."""
    rows = [
        next(state[n].detach().flatten(1).numpy() for n in layer.state if state[n].dim() > 1)
        for layer in graph.layers[:-1]
    ]
    return importance(rows)
