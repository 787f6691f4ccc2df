"""After devices are lost: the rest goes on with the units that were worth cloning."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch

from weft import zoo
from weft.api import decide, make_task
from weft.errors import WeftError
from weft.fleet.radio import radio_fleet
from weft.graph.capture import capture
from weft.plan.derive import derive_profile
from weft.plan.plan import Plan
from weft.plan.stitchnet_topology import find_topology
from weft.plan.swarm_plan import spread_of
from weft.plan.swarm_recovery import after_loss
from weft.program.lower import lower
from weft.program.validate import validate

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


def test_without_the_coordinator_or_a_whole_layer_nobody_goes_on(plan: Plan) -> None:
    with pytest.raises(WeftError, match=f"{plan.source} is lost: it has the samples"):
        after_loss(plan, [plan.source], NORMS)
    workers = [d for d in plan.devices if d != plan.source]
    with pytest.raises(WeftError, match="the last unit of a layer"):
        after_loss(plan, workers, NORMS)
