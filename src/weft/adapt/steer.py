"""Who decides in a live run. A steering is asked at every look, and when a device is lost.

    change = steering.look(view)           # None: nothing changes
    change = steering.lost(view, "edge1")  # must return a plan without it

There are two kinds. `PolicySteering` lets a Policy (EdgeMove's and its baselines') choose worker, cut and
minibatches in flight. `Replanning` (replan.py) asks any strategy again with the measured numbers.
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

PROBE = 20  # a probe counts as so many minibatches: it trains one step of a whole network
HELD_BACK = 0.5  # a standby may occupy at most this share of the link's time per period


@dataclass(frozen=True)
class View:
    """What a steering sees of a run at one moment."""

    step: int  # minibatches done
    now_s: float
    plan: Plan
    watch: Watch
    reach: frozenset[str]  # devices that are present and reachable, with the source
    present: frozenset[str]  # devices that are present, whether the source reaches them or not
    # Servers that reported since the last look that they became faster.
    faster: tuple[str, ...] = ()
    away: Mapping[str, str] = field(default_factory=dict)  # servers out of reach, and the reason
    # WeftError if the run cannot go on with a plan at any cost, because its loss forbids it.
    check: Callable[[Plan], None] = lambda plan: None


class Steering(Protocol):
    """Who decides for an adaptive run: a strategy's own policy, or the strategy that is asked again."""

    every: int  # minibatches between two looks
    probes: bool  # whether servers without a part in the plan are probed

    def first(self, plan: Plan) -> Plan:
        """The plan to prepare with, before anything is measured."""
        ...

    def begin(self, view: View) -> Change | None:
        """Before the first minibatch, after all servers were probed."""
        ...

    def also(self, plan: Plan) -> tuple[str, ...]:
        """Devices that are not in the plan but may get a part in it."""
        ...

    def look(self, view: View) -> Change | None: ...

    def lost(self, view: View, device: str) -> Change: ...

    def notes(self) -> list[tuple[str, str]]:
        """What happened since the last call, for the run's events: (kind, why).

        Errors of planning are among them; they do not end a run.
        """
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
        self._fleet: Fleet | None = None  # the whole fleet, with devices that are not present

    def also(self, plan: Plan) -> tuple[str, ...]:
        return tuple(d for d in plan.fleet.names if d != plan.source)

    def first(self, plan: Plan) -> Plan:
        """The plan without a standby: which devices are present is known when the run begins."""
        self._fleet = plan.fleet
        return priced(plan_for(setting_of(plan), plan, labels=self._labels))

    def begin(self, view: View) -> Change | None:
        alone = Setting(None, len(view.plan.profile.layers))
        seen = self._seen(view, probed=True, setting=alone)
        placed = msgspec.structs.replace(seen, placed=setting_of(view.plan))
        decision = self.policy.decide(placed)
        change = self._change(decision or Decision(alone, "its policy names no server"), view)
        if not _same(change.plan, view.plan):
            return change
        if setting_of(change.plan).worker is None:
            self._notes.append(("trains_alone", change.why))
        return None

    def look(self, view: View) -> Change | None:
        decision = self.policy.decide(self._seen(view, probed=self._asked))
        self._asked = decision is not None and decision.probe
        now = setting_of(view.plan)
        if decision is None or decision.setting == now:
            return None
        if decision.setting.worker is None and now.worker is None:
            return None  # the client already trains alone
        return self._change(decision, view)

    def lost(self, view: View, device: str) -> Change:
        now = setting_of(view.plan)
        there = now.worker is None or now.worker in view.present
        if device != now.worker and there:  # only the standby is gone, and not the worker with it
            return self._change(Decision(now, f"{device}, which stood by, is gone"), view)
        decision = self.policy.decide(self._seen(view, lost=True, probed=True))
        if decision is not None and decision.setting.worker in (None, *view.reach):
            return self._change(decision, view)
        copies = [s.device for s in view.plan.standby if s.device in view.reach]
        others = copies or sorted(
            (d for d in view.reach if d != view.plan.source), key=view.watch.slowdown
        )
        if others:
            setting = Setting(others[0], now.cut, now.in_flight, now.codec)
            return self._change(
                Decision(setting, f"{device} is gone; {others[0]} takes over"), view
            )
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
        # The prediction uses measured numbers. Emulated devices keep the plan's own.
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
            plan.fleet.device(self._standby)  # raises an InputError for an unknown name
            named = self._standby
            return named if named != worker and named in view.reach else None
        first, last = next(s.layers for s in plan.shards if s.device == worker)
        size = sum(layer.param_bytes for layer in plan.profile.layers[first : last + 1])
        best: tuple[float, str] | None = None
        for name in sorted(view.reach - {worker, plan.source}):
            hops = plan.fleet.route(worker, name) if plan.fleet.connected(worker, name) else ()
            if not hops or any(plan.source in (hop.source, hop.dest) for hop in hops):
                continue  # gradients would be sent over the client's own radio
            seconds = size / plan.fleet.path_rate(worker, name)
            if not fits(plan_for(setting_of(plan), plan, labels=self._labels, standby=name)):
                continue  # it has no memory for the copy
            if view.watch.period_s and seconds > HELD_BACK * view.watch.period_s:
                continue  # the link would delay training
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
    """Seconds of the whole network on a device, from its profile."""
    times, last = plan.profile.devices[device], len(plan.profile.layers) - 1
    return (
        times.forward(0, last, plan.batch)
        + times.backward(0, last, plan.batch)
        + times.update(0, last)
    )


def _share_a_channel(fleet: Fleet, client: str, server: str) -> bool:
    """Whether messages there and back share a channel."""
    there = {hop.channel for hop in fleet.route(client, server)}
    return any(hop.channel in there for hop in fleet.route(server, client))


def _alone_why(decision: Decision, view: View) -> str:
    """Why the client trains alone, with the reasons of servers that did not answer."""
    away = "; ".join(view.away[name] for name in sorted(view.away))
    return f"the client trains alone: {decision.why}{f' ({away})' if away else ''}"


def _same(a: Plan, b: Plan) -> bool:
    return (a.shards, a.stale, a.codec, a.standby) == (b.shards, b.stale, b.codec, b.standby)
