"""After devices are lost: the rest goes on with the units that were worth cloning."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch

from weft import zoo
from weft.errors import WeftError
from weft.fleet.radio import radio_fleet
from weft.graph.capture.module import capture
from weft.planning.decide import decide
from weft.planning.task import make_task
from weft.plans.delivery import known_links, routes_of
from weft.plans.derive import derive_profile
from weft.plans.plan import Plan
from weft.program.lower.lower import lower
from weft.program.validate import validate
from weft.strategies.stitchnet.budget import value
from weft.strategies.stitchnet.recovery import after_loss, moved_units
from weft.strategies.stitchnet.swarm import spread_of
from weft.strategies.stitchnet.topology import find_topology

FLEET = radio_fleet(find_topology(), 3.9)
NORMS = [np.arange(64.0) for _ in range(4)]


@pytest.fixture(scope="module")
def plan() -> Plan:
    graph = capture(zoo.build("mlp"), torch.zeros(2, 1, 28, 28), name="mlp")
    task = make_task(derive_profile(graph, FLEET), FLEET, batch=10, graph=graph)
    return decide("stitchnet", task)


def test_a_horizontal_device_is_cloned_whole_a_vertical_one_by_a_quarter(plan: Plan) -> None:
    for device, kept in ((plan.decisions["horizontal"][0], 32), (plan.decisions["vertical"][0], 8)):
        number = FLEET.names.index(device)
        after = after_loss(plan, [device], NORMS)
        assert after.version == plan.version + 1
        before, now = spread_of(plan), spread_of(after)
        cloned = [
            int(((o == number) & (n >= 0)).sum())
            for o, n in zip(before.owners, now.owners, strict=True)
        ]
        assert sum(cloned) == kept
        for o, n in zip(before.owners, now.owners, strict=True):
            assert np.array_equal(n[o != number], o[o != number]), "others keep what they have"


def test_the_lost_neither_send_nor_hear_nor_relay_and_the_rest_can_run(plan: Plan) -> None:
    lost = [plan.decisions["horizontal"][0], plan.decisions["vertical"][0]]
    after = after_loss(plan, lost, NORMS)
    assert after.swarm is not None
    for m in after.swarm.messages:
        assert not {m.source, m.dest, m.via} & set(lost)
        assert m.direct + m.relayed >= 1
    assert not set(lost) & set(after.devices)
    cloned = sum(int((owners >= 0).sum()) for owners in spread_of(after).owners)
    assert cloned == 256 - 24, "nothing was cloned to a device that is lost as well"
    validate(lower(after))


def test_a_lost_relay_is_replaced_by_the_direct_way(plan: Plan) -> None:
    assert plan.swarm is not None
    worker = plan.decisions["vertical"][1]
    by_worker = tuple(
        msgspec.structs.replace(m, direct=0, relayed=1, via=worker)
        if m.relayed and worker not in (m.source, m.dest)
        else m
        for m in plan.swarm.messages
    )
    odd = msgspec.structs.replace(
        plan, swarm=msgspec.structs.replace(plan.swarm, messages=by_worker)
    )
    after = after_loss(odd, [worker], NORMS)
    assert after.swarm is not None
    assert all(m.via != worker for m in after.swarm.messages)
    validate(lower(after))


def test_the_next_by_score_takes_over_from_a_lost_coordinator_and_keeps_its_units(
    plan: Plan,
) -> None:
    assert plan.swarm is not None
    names, dead = FLEET.names, plan.source
    prr = np.array(plan.swarm.prr)
    left = [n for n, name in enumerate(names) if name != dead]
    both = {n: np.mean([prr[n, m] * prr[m, n] for m in left if m != n]) for n in left}
    heir = names[max(left, key=lambda n: both[n])]
    after = after_loss(plan, [dead], NORMS)
    assert after.swarm is not None
    assert after.source == after.swarm.coordinator == after.decisions["coordinator"] == heir
    before, now = spread_of(plan), spread_of(after)
    assert all(np.array_equal(o, n) for o, n in zip(before.owners, now.owners, strict=True))
    assert moved_units(plan, after, [dead]) == (0, 0)
    for m in after.swarm.messages:
        assert dead not in (m.source, m.dest, m.via)
        assert m.via in ("", heir), "relays are the coordinator's"
    assert {m.source for m in after.swarm.messages if m.slot == 0} == {heir}
    assert {m.dest for m in after.swarm.messages if m.slot == after.swarm.depth} == {heir}
    validate(lower(after))
    again = after_loss(after, [dead, heir], NORMS)
    units, cloned = moved_units(after, again, [dead, heir])
    assert (units, cloned) == (32, 32 if heir in plan.decisions["horizontal"] else 8)
    validate(lower(again))


@pytest.fixture(scope="module")
def plus() -> Plan:
    graph = capture(zoo.build("mlp"), torch.zeros(2, 1, 28, 28), name="mlp")
    task = make_task(derive_profile(graph, FLEET), FLEET, batch=10, graph=graph)
    return decide("stitchnet+", task)


@pytest.mark.parametrize("count", [1, 3])
def test_stitchnet_plus_spreads_what_is_left_anew_with_no_more_packets(
    plus: Plan, count: int
) -> None:
    assert plus.swarm is not None
    dead = [plus.source, *(d for d in plus.devices if d != plus.source)][:count]
    after = after_loss(plus, dead, NORMS)
    assert after.swarm is not None
    sent = sum(m.direct + 2 * m.relayed for m in after.swarm.messages)
    assert sent == after.decisions["packets"] <= plus.swarm.budget
    assert all(not {m.source, m.dest, m.via} & set(dead) for m in after.swarm.messages)
    units, placed = moved_units(plus, after, dead)
    assert 0 < units == placed or count == 1, "what fits is cloned"
    clones = msgspec.structs.replace(plus, swarm=msgspec.structs.replace(plus.swarm, budget=0))
    by_paper = after_loss(clones, dead, NORMS)
    assert expected_weight(after) > expected_weight(by_paper)
    validate(lower(after))


def expected_weight(plan: Plan) -> float:
    return value(spread_of(plan), routes_of(plan), known_links(plan))


def test_with_a_whole_layer_or_all_others_lost_nobody_goes_on(plan: Plan) -> None:
    workers = [d for d in plan.devices if d != plan.source]
    with pytest.raises(WeftError, match="the last unit of a layer"):
        after_loss(plan, workers, NORMS)
    with pytest.raises(WeftError, match=f"a coordinator and a worker, and {workers[-1]} is left"):
        after_loss(plan, [plan.source, *workers[:-1]], NORMS)
