"""A profile that predicts what was measured: the part of a step that nobody priced is put where it arises.

    profile = repriced(plan, profile, period_s=0.025)
    price(replace(plan, profile=profile)).seconds      # 0.025

Slower computing is known by device already (`watch`). What a step takes beyond that is the cost of messages:
packing, waking up and waiting for a turn on a processor. So every message at every device gets the same extra
time, as much as explains the step. A plan without messages has nothing but computing: it is all slower.
"""

from __future__ import annotations

import msgspec

from weft.plans.plan import Plan
from weft.plans.profile import Profile
from weft.program.instructions import Send
from weft.program.lower.lower import lower
from weft.simulate.price import price

CLOSE = 0.02  # a prediction that misses by less is right
STEPS = 24  # halvings of the interval in which the extra time lies


def repriced(plan: Plan, profile: Profile, period_s: float) -> Profile:
    """The profile with as much extra time for messages as makes the plan take `period_s`. A plan that is as
    fast as predicted, or faster, leaves the profile as it is."""
    predicted = _seconds(plan, profile)
    if period_s <= predicted * (1 + CLOSE):
        return profile
    if not _sends(plan):
        return _slower(profile, {shard.device for shard in plan.shards}, period_s / predicted)
    low, high = 0.0, period_s
    for _ in range(STEPS):
        middle = (low + high) / 2
        if _seconds(plan, _with_extra(profile, middle)) < period_s:
            low = middle
        else:
            high = middle
        if high - low < CLOSE * high:
            break
    return _with_extra(profile, high)


def _seconds(plan: Plan, profile: Profile) -> float:
    return price(msgspec.structs.replace(plan, profile=profile)).seconds


def _sends(plan: Plan) -> bool:
    code = lower(plan).code
    return any(isinstance(i, Send) and i.dest != d for d, body in code.items() for i in body)


def _slower(profile: Profile, names: set[str], factor: float) -> Profile:
    """These devices, and all other nodes of their hosts, are slower."""
    hosts = {profile.devices[name].host for name in names} - {""}
    devices = {
        name: times.scaled(factor) if name in names or times.host in hosts else times
        for name, times in profile.devices.items()
    }
    return msgspec.structs.replace(profile, devices=devices)


def _with_extra(profile: Profile, seconds: float) -> Profile:
    devices = {
        name: msgspec.structs.replace(times, message_s=times.message_s + seconds)
        for name, times in profile.devices.items()
    }
    return msgspec.structs.replace(profile, devices=devices)
