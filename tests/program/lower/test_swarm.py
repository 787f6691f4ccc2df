"""A spread network's program: so many messages, sent before anybody waits, priced by slots or by links."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from weft import zoo
from weft.errors import InputError
from weft.fleet.fleet import Fleet, Link
from weft.fleet.radio import radio_fleet
from weft.graph.capture.module import capture
from weft.planning.decide import decide
from weft.planning.task import make_task
from weft.plans.delivery import routes_of
from weft.plans.derive import derive_profile
from weft.plans.plan import Mode, Plan
from weft.program.instructions import Forward, Miss, Recv, Send, Stitch
from weft.program.lower.lower import lower
from weft.program.lower.swarm_slots import crossing_s
from weft.program.validate import validate
from weft.strategies.stitchnet.copies import copied
from weft.strategies.stitchnet.mapped import stitchnet
from weft.strategies.stitchnet.paths import messages, packets, wanted
from weft.strategies.stitchnet.swarm import spread_of
from weft.strategies.stitchnet.topology import find_topology

GRAPH = capture(zoo.build("mlp"), torch.zeros(2, 1, 28, 28), name="mlp")
FLEET = radio_fleet(find_topology(), 3.9, mbps=100.0)
COUNTS = {"vertical": 30, "stitchnet": 141, "average-layers": 147, "horizontal": 360}


def plan_of(
    strategy: str = "stitchnet", fleet: Fleet = FLEET, mode: Mode = "train", **options: Any
) -> Plan:
    task = make_task(
        derive_profile(GRAPH, fleet), fleet, batch=100, options=options, graph=GRAPH,
        optimizer="adam", mode=mode,
    )  # fmt: skip
    return decide(strategy, task)


@pytest.mark.parametrize("strategy", [*COUNTS, "random-units", "stitchnet+"])
def test_a_minibatch_sends_the_messages_of_its_plan(strategy: str) -> None:
    plan = plan_of(strategy)
    program = lower(plan)
    validate(program)
    radio = [i for code in program.code.values() for i in code if isinstance(i, Send) and i.radio]
    assert len(radio) == messages(routes_of(plan)) == plan.decisions["messages"]
    assert len(radio) == COUNTS.get(strategy, len(radio))
    sent = sum(i.radio.direct + 2 * i.radio.relayed for i in radio if i.radio)
    assert sent == packets(routes_of(plan)) == plan.decisions["packets"]


@pytest.mark.parametrize("strategy", list(COUNTS))
def test_all_of_a_slot_is_sent_before_anybody_waits_for_it(strategy: str) -> None:
    """Else devices would wait for each other in turn, and slots pass in between."""
    plan = plan_of(strategy)
    assert plan.swarm is not None
    for code in lower(plan).code.values():
        waited = -1
        for i in code:
            if isinstance(i, Recv):
                assert i.slot >= waited, "slots are met in the order of time"
                waited = i.slot
            elif isinstance(i, Send) and i.radio:
                assert plan.swarm.position(i.radio.slot) > waited


def test_forward_slots_come_first_then_gradients_from_the_last_layer_on() -> None:
    swarm = plan_of().swarm
    assert swarm is not None
    assert (swarm.depth, swarm.slots) == (4, 9)
    assert [swarm.position(slot) for slot in (0, 4, 8, 7, 5)] == [0, 4, 5, 6, 8]


def test_a_plan_can_be_written_and_read_and_turned_into_numbers() -> None:
    plan = plan_of("stitchnet+", update="own", packets=150)
    again = msgspec.json.decode(msgspec.json.encode(plan), type=Plan)
    assert again == plan
    spread, routes = spread_of(plan), routes_of(plan)
    assert [len(o) for o in spread.owners] == [64] * 4
    assert not (routes.direct + routes.relayed)[~wanted(spread)].any()
    known = stitchnet(make_task(derive_profile(GRAPH, FLEET), FLEET, batch=100, graph=GRAPH))
    ours = spread_of(plan_of())
    for layer, owners in enumerate(ours.owners):
        for shard in known.shards:
            if shard.layers == (layer, layer):
                assert tuple(np.flatnonzero(owners == FLEET.names.index(shard.device))) == (
                    shard.part.units
                )


def test_slots_by_the_clock_say_how_long_a_minibatch_takes() -> None:
    told, clocked = plan_of(), plan_of(slot_ms=100)
    assert told.predicted is not None
    assert clocked.predicted is not None
    assert clocked.predicted.step_s == pytest.approx(0.9)
    assert clocked.predicted.transfer_bytes == told.predicted.transfer_bytes
    # 100 samples of 784 floats to every worker with units of the first layer, over 100 Mbit/s
    assert told.predicted.seconds > 100 * 784 * 4 / 12.5e6
    relayed = sum(m.relayed for m in (told.swarm.messages if told.swarm else ()))
    assert relayed > 0


def test_a_slot_that_is_too_short_for_its_own_messages_is_refused_with_the_least() -> None:
    """100 samples of 784 floats take 25.1 ms over 100 Mbit/s: in slots of 25 ms nobody heard the input."""
    with pytest.raises(
        InputError, match=r"slot_ms=25 is not allowed: .* takes 25\.1 ms"
    ) as refused:
        plan_of(slot_ms=25)
    least = int(str(refused.value).split("at least slot_ms=")[1].split(",")[0])
    assert least == 26
    assert plan_of(slot_ms=least).predicted is not None
    assert plan_of(slot_ms=25, codec="int8", input_codec="int8").predicted is not None


def test_both_links_of_a_relayed_message_count() -> None:
    plan = plan_of(path="coordinator")
    sends = [(d, i) for d, code in lower(plan).code.items() for i in code if isinstance(i, Send)]
    hops = {(hop.source, hop.dest): hop for hop in FLEET.hops()}
    device, relayed = next((d, i) for d, i in sends if i.radio and i.radio.relayed)
    assert crossing_s(hops, device, relayed) == pytest.approx(2 * relayed.bytes / 12.5e6)


def test_with_late_none_all_agree_before_they_update() -> None:
    plan = plan_of(update="none")
    code = lower(plan).code
    words = [i for i in code[plan.source] if isinstance(i, Recv) and i.tensor.kind == "whole"]
    assert len(words) == 8
    validate(lower(plan))


def test_own_units_stand_in_only_where_there_are_some() -> None:
    plan = plan_of(update="own")
    spread = spread_of(plan)
    for device, code in lower(plan).code.items():
        for i in code:
            if isinstance(i, Recv) and i.late == "own":
                assert i.own is not None
                assert 1 <= i.own.at <= 4
                assert len(spread.units(FLEET.names.index(device), i.own.at - 1))


def test_answers_need_half_of_the_slots() -> None:
    task = make_task(derive_profile(GRAPH, FLEET), FLEET, batch=10, graph=GRAPH, mode="infer")
    plan = decide("stitchnet", task)
    assert plan.swarm is not None
    used = {i.slot for code in lower(plan).code.values() for i in code if isinstance(i, Recv)}
    assert used == set(range(5))
    assert isinstance(lower(plan).code[plan.source][-2], Stitch)


def test_a_message_that_the_plan_leaves_out_is_missed_by_its_reader() -> None:
    plan = plan_of()
    assert plan.swarm is not None
    first = plan.shards[0].device
    fewer = tuple(m for m in plan.swarm.messages if (m.slot, m.dest) != (0, first))
    program = lower(
        msgspec.structs.replace(plan, swarm=msgspec.structs.replace(plan.swarm, messages=fewer))
    )
    validate(program)
    missed = [i for code in program.code.values() for i in code if isinstance(i, Miss)]
    assert [(i.tensor.kind, i.tensor.at) for i in missed] == [("act", 0)]
    assert isinstance(program.code[first][0], Miss)


def test_what_came_is_rescaled_in_testing_alone() -> None:
    def levels(plan: Plan) -> list[Stitch]:
        joins = [i for code in lower(plan).code.values() for i in code if isinstance(i, Stitch)]
        return [i for i in joins if i.shares]

    assert not levels(plan_of("stitchnet+", rescale="yes"))
    assert not levels(plan_of("stitchnet+", mode="infer"))
    plan = plan_of("stitchnet+", mode="infer", rescale="yes", packets=60)
    found = levels(plan)
    assert len(found) == len(plan.shards)
    for i in found:
        assert sum(i.shares) == pytest.approx(1.0)
        assert 0 < i.expected < 1


def test_copies_take_computing_but_no_message() -> None:
    plan = plan_of("stitchnet+", mode="infer", copies=50)
    assert plan.swarm is not None
    norms = [np.arange(64.0) for _ in range(4)]
    more = copied(plan, norms)
    assert more.swarm is not None
    spread = spread_of(plan)
    sharing = [np.unique(owners) for owners in spread.owners]
    for copy in more.swarm.copies:
        device = FLEET.names.index(copy.device)
        owners = spread.owners[copy.layer][list(copy.units)]
        assert device in sharing[copy.layer]
        assert device not in owners
        for owner in np.unique(owners):
            units = spread.units(owner, copy.layer)
            best = [u for u in copy.units if spread.owners[copy.layer][u] == owner]
            assert best == units[len(units) - round(len(units) / 2) :].tolist()
    program, before = lower(more), lower(plan)
    validate(program)
    sends = [
        sum(isinstance(i, Send) for code in p.code.values() for i in code)
        for p in (program, before)
    ]
    assert sends[0] == sends[1]
    work = [
        sum(i.work[0] for code in p.code.values() for i in code if isinstance(i, Forward))
        for p in (program, before)
    ]
    assert work[0] > 1.2 * work[1]
    assert copied(plan_of("stitchnet+", copies=50), norms).swarm.copies == ()  # type: ignore[union-attr]


def test_contradictions_are_refused() -> None:
    with pytest.raises(InputError, match="rescale needs late = zero, not own"):
        plan_of("stitchnet+", rescale="yes", update="own")
    both = plan_of("stitchnet+", mode="infer", rescale="yes", copies=50)
    with pytest.raises(InputError, match="copies are for inference, with late = zero and without"):
        lower(copied(both, [np.arange(64.0) for _ in range(4)]))
    with pytest.raises(InputError, match="late = none needs slot_ms = 0"):
        plan_of(update="none", slot_ms=50)
    apart = Fleet(FLEET.devices, FLEET.link[1:])
    with pytest.raises(InputError, match=r"n1 has no link to n2; a swarm needs a \[\[link\]\]"):
        plan_of(fleet=apart)
    plan = plan_of()
    assert plan.swarm is not None
    shards = (*plan.shards[:-1], msgspec.structs.replace(plan.shards[-1], layers=(3, 4)))
    with pytest.raises(InputError, match="every hidden layer has shards of units"):
        lower(msgspec.structs.replace(plan, shards=shards))
    one_way = (*FLEET.link[1:], Link(("n1", "n2"), 1.0, 1.0, loss=0.999))
    assert plan_of(fleet=Fleet(FLEET.devices, one_way)).decisions["messages"] == 141
