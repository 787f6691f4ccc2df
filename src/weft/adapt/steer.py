"""Who decides on a live run: asked at every look, and when a device is lost.

    change = steering.look(view)           # None: go on as it is
    change = steering.lost(view, "edge1")  # must find a plan without it

Two kinds: `PolicySteering` lets a Policy (EdgeMove's and its baselines) choose worker, cut and minibatches
in flight; `Replanning` (replan.py) asks any strategy again with what was measured.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import msgspec

from weft.adapt.policy import Policy, Seen, Server, Setting
from weft.adapt.watch import Watch
from weft.errors import InputError
from weft.plan.plan import Plan, Shard

Labels = Literal["worker", "home"]
HELD_BACK = 0.5  # a standby may take up at most this share of the wire's time per period


@dataclass(frozen=True)
class View:
    """One look at a run."""

    step: int  # minibatches done
    now_s: float
    plan: Plan
    watch: Watch
    reach: frozenset[str]  # devices that are there and can be reached, the source among them


@dataclass(frozen=True)
class Change:
    plan: Plan
    why: str
    what: dict[str, Any] = field(default_factory=dict)  # for the run's events


class Steering(Protocol):
    every: int  # minibatches between two looks

    def also(self, plan: Plan) -> tuple[str, ...]:
        """Devices beside the plan's that may get a part in it."""
        ...

    def look(self, view: View) -> Change | None: ...

    def lost(self, view: View, device: str) -> Change: ...


def setting_of(plan: Plan) -> Setting:
    """How a plan of client and worker shares the network."""
    worker = next((s.device for s in plan.shards if s.device != plan.source), None)
    cut = len(plan.profile.layers)
    if worker is not None:
        cut = next(s.layers[0] for s in plan.shards if s.device == worker)
    return Setting(worker, cut, plan.stale + 1)


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
    decisions = {
        **like.decisions, "worker": worker, "cut": cut, "in_flight": setting.in_flight,
        "standby": standby if copies else None, "labels": labels,
    }  # fmt: skip
    return msgspec.structs.replace(
        like,
        shards=shards,
        standby=copies,
        stale=setting.in_flight - 1 if worker is not None else 0,
        decisions=decisions,
    )


class PolicySteering:
    """A Policy for one client and its servers, on a live run."""

    def __init__(self, policy: Policy, *, standby: str = "auto", labels: Labels = "worker") -> None:
        self.policy = policy
        self.every = policy.every
        self._standby, self._labels = standby, labels

    def also(self, plan: Plan) -> tuple[str, ...]:
        return tuple(d for d in plan.fleet.names if d != plan.source)

    def first(self, plan: Plan) -> Plan:
        """A strategy's plan with the standby that this run shall have."""
        view = View(0, 0.0, plan, Watch(plan), frozenset(plan.fleet.names))
        return self._plan(setting_of(plan), view)

    def look(self, view: View) -> Change | None:
        decision = self.policy.decide(self._seen(view))
        if decision is None or decision.setting == setting_of(view.plan):
            return None
        return self._change(decision.setting, decision.why, view)

    def lost(self, view: View, device: str) -> Change:
        now = setting_of(view.plan)
        if device != now.worker:  # only who stood by is gone
            return self._change(now, f"{device}, which stood by, is gone", view)
        decision = self.policy.decide(self._seen(view, lost=True))
        if decision is not None and decision.setting.worker in (None, *view.reach):
            return self._change(decision.setting, decision.why, view)
        copies = [s.device for s in view.plan.standby if s.device in view.reach]
        there = copies or sorted(
            (d for d in view.reach if d != view.plan.source), key=view.watch.slowdown
        )
        if there:
            setting = Setting(there[0], now.cut, now.in_flight)
            return self._change(setting, f"{device} is gone; {there[0]} takes over", view)
        alone = Setting(None, len(view.plan.profile.layers), 1)
        return self._change(alone, f"{device} is gone and no server is left", view)

    def _change(self, setting: Setting, why: str, view: View) -> Change:
        plan = self._plan(setting, view)
        before, after = setting_of(view.plan), setting_of(plan)
        what = {
            key: [getattr(before, key), getattr(after, key)]
            for key in ("worker", "cut", "in_flight")
            if getattr(before, key) != getattr(after, key)
        }
        return Change(plan, why, what)

    def _plan(self, setting: Setting, view: View) -> Plan:
        plan = plan_for(setting, view.plan, labels=self._labels)
        chosen = self._choose_standby(plan, view)
        return plan_for(setting, view.plan, labels=self._labels, standby=chosen)

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

    def _seen(self, view: View, lost: bool = False) -> Seen:
        client, watch = view.plan.source, view.watch
        servers = tuple(
            Server(
                name, watch.slowdown(name), watch.rate(client, name), watch.rate(name, client),
                watch.rtt(client, name),
            )
            for name in view.plan.fleet.names
            if name != client and name in view.reach and view.plan.fleet.connected(client, name)
        )  # fmt: skip
        return Seen(view.step, view.now_s, setting_of(view.plan), watch.period_s, servers, lost)
