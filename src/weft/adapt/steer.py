"""Who decides on a live run: asked at every look, and when a device is lost.

    change = steering.look(view)           # None: go on as it is
    change = steering.lost(view, "edge1")  # must find a plan without it

Two kinds: `PolicySteering` lets a Policy (EdgeMove's and its baselines) choose worker, cut and minibatches
in flight; `Replanning` (replan.py) asks any strategy again with what was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from weft.adapt.watch import Watch
from weft.fleet.fleet import Fleet
from weft.plans.online import Decision, Online, Seen, Server, Setting
from weft.plans.plan import Plan
from weft.plans.split import plan_for, setting_of
from weft.program.memory import fits
from weft.runtime.run.advice import Change
from weft.simulate.price import price, priced

PROBE = 20  # minibatches that a probe counts for: made to be exact, one step of a whole network
HELD_BACK = 0.5  # a standby may take up at most this share of the wire's time per period


@dataclass(frozen=True)
class View:
    """One look at a run."""

    step: int  # minibatches done
    now_s: float
    plan: Plan
    watch: Watch
    reach: frozenset[str]  # devices that are there and can be reached, the source among them
    present: frozenset[str]  # devices that are there, whether the source reaches them or not
    faster: tuple[str, ...] = ()  # servers that have told since the last look that they got faster
    away: Mapping[str, str] = field(
        default_factory=dict
    )  # servers out of reach, and how that showed
    # WeftError where the run cannot go on under a plan, whatever it costs (its loss forbids it)
    check: Callable[[Plan], None] = lambda plan: None


class Steering(Protocol):
    """Who decides for an adaptive run: a strategy's own policy, or the strategy asked again."""

    every: int  # minibatches between two looks
    probes: bool  # whether it wants servers probed that have no part in the plan

    def first(self, plan: Plan) -> Plan:
        """The plan to prepare with, before anything is known of the fleet."""
        ...

    def begin(self, view: View) -> Change | None:
        """Before the first minibatch, when all servers have been probed."""
        ...

    def also(self, plan: Plan) -> tuple[str, ...]:
        """Devices beside the plan's that may get a part in it."""
        ...

    def look(self, view: View) -> Change | None: ...

    def lost(self, view: View, device: str) -> Change: ...

    def notes(self) -> list[tuple[str, str]]:
        """What the run's events shall tell since it was last asked: kind, why. Errors of planning are among
        them: they do not end a run."""
        ...


class PolicySteering:
    """A strategy's policy for one client and its servers, on a live run."""

    probes = True

    def __init__(
        self,
        online: Online,
    ) -> None:
        self.policy, self.every = online.policy, online.policy.every
        self._reference, self._profiled = online.reference, online.profiled
        self._standby, self._labels = online.standby, online.labels
        self._asked = False  # the policy waits for probes
        self._notes: list[tuple[str, str]] = []
        self._fleet: Fleet | None = None  # the whole, whoever is there

    def also(self, plan: Plan) -> tuple[str, ...]:
        return tuple(d for d in plan.fleet.names if d != plan.source)

    def first(self, plan: Plan) -> Plan:
        """Without a standby: who is there will be known when the run begins."""
        self._fleet = plan.fleet
        return priced(plan_for(setting_of(plan), plan, labels=self._labels))

    def begin(self, view: View) -> Change | None:
        alone = Setting(None, len(view.plan.profile.layers))
        seen = self._seen(view, probed=True, setting=alone)
        placed = msgspec.structs.replace(seen, placed=setting_of(view.plan))
        decision = self.policy.decide(placed)
        found = self._change(decision or Decision(alone, "its policy names no server"), view)
        if not _same(found.plan, view.plan):
            return found
        if setting_of(found.plan).worker is None:
            self._notes.append(("trains_alone", found.why))
        return None

    def look(self, view: View) -> Change | None:
        decision = self.policy.decide(self._seen(view, probed=self._asked))
        self._asked = decision is not None and decision.probe
        now = setting_of(view.plan)
        if decision is None or decision.setting == now:
            return None
        if decision.setting.worker is None and now.worker is None:
            return None  # it is alone already
        return self._change(decision, view)

    def lost(self, view: View, device: str) -> Change:
        now = setting_of(view.plan)
        if device != now.worker:  # only who stood by is gone
            return self._change(Decision(now, f"{device}, which stood by, is gone"), view)
        decision = self.policy.decide(self._seen(view, lost=True, probed=True))
        if decision is not None and decision.setting.worker in (None, *view.reach):
            return self._change(decision, view)
        copies = [s.device for s in view.plan.standby if s.device in view.reach]
        there = copies or sorted(
            (d for d in view.reach if d != view.plan.source), key=view.watch.slowdown
        )
        if there:
            setting = Setting(there[0], now.cut, now.in_flight, now.codec)
            return self._change(Decision(setting, f"{device} is gone; {there[0]} takes over"), view)
        alone = Setting(None, len(view.plan.profile.layers))
        return self._change(Decision(alone, f"{device} is gone and no server is left"), view)

    def notes(self) -> list[tuple[str, str]]:
        notes, self._notes = self._notes, []
        return notes

    def _change(self, decision: Decision, view: View) -> Change:
        plan = self._plan(decision.setting, view)
        before, after = setting_of(view.plan), setting_of(plan)
        what = {
            key: [getattr(before, key), getattr(after, key)]
            for key in ("worker", "cut", "in_flight", "codec")
            if getattr(before, key) != getattr(after, key)
        }
        pause = self._profile_s(after, view) if decision.profile else 0.0
        why = decision.why if after.worker is not None else _alone_why(decision, view)
        return Change(plan, why, what, pause)

    def _profile_s(self, setting: Setting, view: View) -> float:
        """Seconds in which client and worker measure every layer, one after the other."""
        client = _whole(view.plan, view.plan.source)
        worker = _whole(view.plan, setting.worker) if setting.worker is not None else 0.0
        slowdown = view.watch.slowdown(setting.worker) if setting.worker is not None else 1.0
        return self._profiled * (client + worker * slowdown)

    def _plan(self, setting: Setting, view: View) -> Plan:
        like = msgspec.structs.replace(
            view.plan, fleet=self._whole_fleet(view).within(view.present)
        )
        chosen = self._choose_standby(plan_for(setting, like, labels=self._labels), view)
        plan = plan_for(setting, like, labels=self._labels, standby=chosen)
        # What it will take is told by what was measured; emulated devices stay as the plan has them.
        measured = msgspec.structs.replace(
            plan, fleet=view.watch.fleet().within(view.present), profile=view.watch.profile()
        )
        return msgspec.structs.replace(plan, predicted=price(measured))

    def _whole_fleet(self, view: View) -> Fleet:
        return self._fleet or view.plan.fleet

    def _choose_standby(self, plan: Plan, view: View) -> str | None:
        worker = setting_of(plan).worker
        if worker is None or self._standby == "none":
            return None
        if self._standby != "auto":
            plan.fleet.device(self._standby)  # an unknown name is an error of its own
            named = self._standby
            return named if named != worker and named in view.reach else None
        first, last = next(s.layers for s in plan.shards if s.device == worker)
        size = sum(layer.param_bytes for layer in plan.profile.layers[first : last + 1])
        best: tuple[float, str] | None = None
        for name in sorted(view.reach - {worker, plan.source}):
            hops = plan.fleet.route(worker, name) if plan.fleet.connected(worker, name) else ()
            if not hops or any(plan.source in (hop.source, hop.dest) for hop in hops):
                continue  # gradients would cross the client's own radio
            seconds = size / plan.fleet.path_rate(worker, name)
            if not fits(plan_for(setting_of(plan), plan, labels=self._labels, standby=name)):
                continue  # it has no room for the copy
            if view.watch.period_s and seconds > HELD_BACK * view.watch.period_s:
                continue  # the wire would hold training up
            best = min(best or (seconds, name), (seconds, name))
        return best[1] if best else None

    def _seen(
        self,
        view: View,
        *,
        lost: bool = False,
        probed: bool = False,
        setting: Setting | None = None,
    ) -> Seen:
        client, watch = view.plan.source, view.watch
        fleet = self._whole_fleet(view).within(view.present)
        base = _whole(view.plan, self._reference)
        worker = setting_of(view.plan).worker
        servers = tuple(
            Server(
                name, watch.slowdown(name) * _whole(view.plan, name) / base,
                watch.rate(client, name), watch.rate(name, client), watch.rtt(client, name),
                fleet.device(name).tier, over=max(self.every, PROBE) if name == worker else PROBE,
                shared=_share_a_channel(fleet, client, name),
            )
            for name in fleet.names
            if name != client and name in view.reach and fleet.connected(client, name)
        )  # fmt: skip
        return Seen(
            view.step, view.now_s, setting or setting_of(view.plan), watch.period_s, servers, lost,
            servers if probed else (), view.faster,
        )  # fmt: skip


def _whole(plan: Plan, device: str) -> float:
    """Seconds of the whole network on a device, by its profile."""
    times, last = plan.profile.devices[device], len(plan.profile.layers) - 1
    return (
        times.forward(0, last, plan.batch)
        + times.backward(0, last, plan.batch)
        + times.update(0, last)
    )


def _share_a_channel(fleet: Fleet, client: str, server: str) -> bool:
    """Whether what goes there and what comes back take turns on a channel."""
    there = {hop.channel for hop in fleet.route(client, server)}
    return any(hop.channel in there for hop in fleet.route(server, client))


def _alone_why(decision: Decision, view: View) -> str:
    """Why the client trains alone, with what is known of those who did not answer."""
    away = "; ".join(view.away[name] for name in sorted(view.away))
    return f"the client trains alone: {decision.why}{f' ({away})' if away else ''}"


def _same(a: Plan, b: Plan) -> bool:
    return (a.shards, a.stale, a.codec, a.standby) == (b.shards, b.stale, b.codec, b.standby)
