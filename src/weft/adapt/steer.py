"""Who decides on a live run: asked at every look, and when a device is lost.

    change = steering.look(view)           # None: go on as it is
    change = steering.lost(view, "edge1")  # must find a plan without it

Two kinds: `PolicySteering` lets a Policy (EdgeMove's and its baselines) choose worker, cut and minibatches
in flight; `Replanning` (replan.py) asks any strategy again with what was measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from weft.adapt.watch import Watch
from weft.errors import InputError
from weft.fleet.fleet import Fleet
from weft.plans.online import Decision, Labels, Online, Seen, Server, Setting
from weft.plans.plan import Plan, Shard
from weft.runtime.run.advice import Change

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
    # WeftError where the run cannot go on under a plan, whatever it costs (its loss forbids it)
    check: Callable[[Plan], None] = lambda plan: None


class Steering(Protocol):
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

    def failures(self) -> list[str]:
        """Why there was no advice since it was last asked: errors of planning do not end a run."""
        ...


def setting_of(plan: Plan) -> Setting:
    """How a plan of client and worker shares the network."""
    worker = next((s.device for s in plan.shards if s.device != plan.source), None)
    cut = len(plan.profile.layers)
    if worker is not None:
        cut = next(s.layers[0] for s in plan.shards if s.device == worker)
    return Setting(worker, cut, plan.stale + 1, plan.codec)


def plan_for(
    setting: Setting, like: Plan, *, labels: Labels = "worker", standby: str | None = None
) -> Plan:
    """The plan of a setting; all else (batch, codecs, fleet, profile) as in `like`."""
    last = len(like.profile.layers) - 1
    client, worker, cut = like.source, setting.worker, setting.cut
    if cut < 1:
        raise InputError(f"cut = {cut} would send the samples away; 1 to {last} are allowed")
    end = last if labels == "worker" else last - 1  # of the worker's layers
    shards: tuple[Shard, ...]
    if worker is None or cut > end:  # nothing is left for a worker
        worker, cut, shards = None, last + 1, (Shard(client, (0, last)),)
    else:
        shards = (Shard(client, (0, cut - 1)), Shard(worker, (cut, end)))
        shards += (Shard(client, (last, last)),) if end < last else ()
    copies = () if worker is None or standby is None else (Shard(standby, shards[1].layers),)
    plan = msgspec.structs.replace(
        like,
        shards=shards,
        standby=copies,
        stale=setting.in_flight - 1 if worker is not None else 0,
        codec=setting.codec if worker is not None else like.codec,
    )
    return plan.deciding(
        worker=worker,
        cut=cut,
        in_flight=setting.in_flight,
        standby=standby if copies else None,
        labels=labels,
    )


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
        self._fleet: Fleet | None = None  # the whole, whoever is there

    def also(self, plan: Plan) -> tuple[str, ...]:
        return tuple(d for d in plan.fleet.names if d != plan.source)

    def first(self, plan: Plan) -> Plan:
        """Without a standby: who is there will be known when the run begins."""
        self._fleet = plan.fleet
        return plan_for(setting_of(plan), plan, labels=self._labels)

    def begin(self, view: View) -> Change | None:
        alone = Setting(None, len(view.plan.profile.layers))
        decision = self.policy.decide(self._seen(view, probed=True, setting=alone))
        found = self._change(decision or Decision(alone, "the client trains alone"), view)
        return None if _same(found.plan, view.plan) else found

    def look(self, view: View) -> Change | None:
        decision = self.policy.decide(self._seen(view, probed=self._asked))
        self._asked = decision is not None and decision.probe
        if decision is None or decision.setting == setting_of(view.plan):
            return None
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
        why = f"{device} is gone and no server is left: the client trains alone"
        return self._change(Decision(alone, why), view)

    def failures(self) -> list[str]:
        return []

    def _change(self, decision: Decision, view: View) -> Change:
        plan = self._plan(decision.setting, view)
        before, after = setting_of(view.plan), setting_of(plan)
        what = {
            key: [getattr(before, key), getattr(after, key)]
            for key in ("worker", "cut", "in_flight", "codec")
            if getattr(before, key) != getattr(after, key)
        }
        pause = self._profile_s(after, view) if decision.profile else 0.0
        return Change(plan, decision.why, what, pause)

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
        return plan_for(setting, like, labels=self._labels, standby=chosen)

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


def _same(a: Plan, b: Plan) -> bool:
    return (a.shards, a.stale, a.codec, a.standby) == (b.shards, b.stale, b.codec, b.standby)
