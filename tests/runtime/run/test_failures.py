"""Devices die, hang or never come; strangers send rubbish. The run ends with a name, nodes live on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch

from weft.errors import LostDevice, WeftError
from weft.fleet.fleet import Device, Fleet, Link
from weft.runtime.emulate.local import LocalFleet
from weft.runtime.run.jobs import Settings
from weft.runtime.run.outcome import Outcome
from weft.runtime.run.run import Run
from weft.runtime.wire import messages as msg
from weft.runtime.wire import topics as keys
from weft.runtime.wire.crew import Crew
from weft.runtime.wire.frames import Header, pack_header
from weft.runtime.wire.seal import MAC_BYTES
from weft.runtime.wire.session import Endpoints

Subject = Any
RunPlan = Callable[..., Any]
MANY = 1_000_000  # steps that no test gets to the end of


class Stumble:
    """Does something to the fleet once a few minibatches are done."""

    def __init__(self, act: Callable[[], None], after: int = 3) -> None:
        self.act, self.after, self.done = act, after, False

    def __call__(self, outcome: Outcome) -> None:
        if not self.done and min(outcome.done.values()) >= self.after:
            self.done = True
            self.act()


def three(subject: Subject, **fields: Any) -> Any:
    return subject.plan(("pi", 0, 0), ("nuc", 1, 1), ("cloud", 2, 2), **fields)


def coordinator(subject: Subject, plan: Any, nodes: LocalFleet, **changes: Any) -> Run:
    wanted = Settings(shaping="fabric", scratch=nodes.scratch, same_clock=True, deadline_s=10.0)
    return Run(
        nodes.crew, plan, subject.graph, subject.state(), replace(wanted, **changes), subject.feed
    )


def test_a_node_that_dies_is_named_and_the_others_take_the_next_run(small: Subject) -> None:
    with LocalFleet(("pi", "nuc", "cloud")) as local:
        local.crew.wait_for(local.names, 180.0)
        stumble = Stumble(lambda: local.kill("nuc"))
        with coordinator(small, three(small), local, deadline_s=60.0) as run:
            run.prepare()
            with pytest.raises(LostDevice, match="nuc is gone") as caught:
                run.steps(0, MANY, stumble)
        assert stumble.done
        assert caught.value.device == "nuc"
        # The kernel closes a dying process's connections before anybody can collect its exit code.
        assert local.processes["nuc"].wait(timeout=10.0) == -9
        with pytest.raises(LostDevice, match="the node nuc ended with code -9"):
            local.check()
        again = small.plan(("pi", 0, 1), ("cloud", 2, 2))
        with coordinator(small, again, local) as run:
            run.prepare()
            assert len(run.steps(0, 5).losses) == 5


@pytest.mark.parametrize("has_a_part", [True, False])
def test_a_node_that_hangs_is_named_also_where_it_only_relays(
    small: Subject, has_a_part: bool
) -> None:
    """A relay's silence was blamed on the device behind it, when the deadline was over. The fleet is the
    test's own: a stopped node is not for other tests."""
    plan = three(small)
    if not has_a_part:
        devices = tuple(Device(d, gflops=1.0) for d in ("pi", "nuc", "cloud"))
        links = (Link(("pi", "nuc"), 100.0, 100.0), Link(("nuc", "cloud"), 100.0, 100.0))
        plan = small.plan(("pi", 0, 1), ("cloud", 2, 2), fleet=Fleet(devices, links))
    with LocalFleet(("pi", "nuc", "cloud")) as local:
        local.crew.wait_for(local.names, 180.0)
        stopped = local.processes["nuc"].pid
        after = 3 if has_a_part else -1  # who only relays does no minibatch
        stumble = Stumble(lambda: os.kill(stopped, signal.SIGSTOP), after)
        try:
            with coordinator(small, plan, local, deadline_s=60.0) as run:
                run.prepare()
                with pytest.raises(LostDevice, match="nuc is silent") as caught:
                    run.steps(0, MANY, stumble)
                assert caught.value.device == "nuc"
                os.kill(stopped, signal.SIGCONT)
        finally:
            os.kill(stopped, signal.SIGCONT)
        assert stumble.done
        local.crew.wait_for(local.names, 60.0)
        with coordinator(small, three(small), local) as run:
            run.prepare()
            assert len(run.steps(0, 5).losses) == 5


def test_a_node_that_never_started_is_named_with_what_to_do(
    small: Subject, nodes: LocalFleet
) -> None:
    fleet = Fleet((Device("pi"), Device("ghost")), (Link(("pi", "ghost"), 10.0, 10.0),))
    fleet = Fleet(tuple(Device(d.name, gflops=1.0) for d in fleet.devices), fleet.link)
    plan = small.plan(("pi", 0, 1), ("ghost", 2, 2), fleet=fleet)
    with (
        pytest.raises(LostDevice, match="weft node --name ghost") as caught,
        coordinator(small, plan, nodes, deadline_s=0.5) as run,
    ):
        run.prepare()
    assert caught.value.device == "ghost"


def test_a_busy_node_refuses_a_second_run_and_finishes_its_first(
    small: Subject, nodes: LocalFleet
) -> None:
    with coordinator(small, three(small), nodes) as first:
        first.prepare()
        with (
            pytest.raises(WeftError, match="is busy with another run"),
            coordinator(small, three(small), nodes) as second,
        ):
            second.prepare()
        assert len(first.steps(0, 5).losses) == 5


def test_a_cancelled_run_stops_a_device_that_waits_for_nobody(
    make_subject: Callable[..., Subject], nodes: LocalFleet
) -> None:
    """It has the data and all layers: no message ever wakes it, and it must not compute on."""
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    digits = make_subject(module, (1, 8, 8), 8)
    with coordinator(digits, digits.plan(("pi", 0, 0)), nodes, data="digits") as run:
        run.prepare()
        stumble = Stumble(lambda: None)

        def stop(outcome: Outcome) -> None:
            stumble(outcome)
            if stumble.done:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run.steps(0, MANY, stop)
        nodes.crew.ask("pi", msg.Cancel(run.run_id, "stopped by the user"), 5.0)
        # it answers only when its worker has come to rest
        (spans,) = nodes.crew.ask("pi", msg.GetTimeline(run.run_id), 10.0)
        assert isinstance(spans, msg.Spans)
    (welcome,) = nodes.crew.ask("pi", msg.Hello(), 5.0)
    assert isinstance(welcome, msg.Welcome)
    assert not welcome.busy


def test_rubbish_on_its_keys_is_counted_and_dropped_and_the_run_goes_on(
    small: Subject, nodes: LocalFleet, run_plan: RunPlan
) -> None:
    rubbish = [b"", b"\x00", os.urandom(40), os.urandom(3000), b"\xff" * 200_000]

    def pester(run: Run) -> None:
        stranger = Crew(Endpoints(listen=("tcp/127.0.0.1:0",), join=(nodes.endpoint,)), nodes.group)
        with stranger:
            stranger.wait_for(nodes.names, 30.0)
            data = keys.data(nodes.group, "nuc", "pi", run.run_id)
            control = keys.control(nodes.group, "nuc")
            for junk in rubbish:
                stranger.session.put(data, junk)
                stranger.session.put(data, junk, attachment=os.urandom(30))
                stranger.session.put(data, b"x", attachment=junk)
                stranger.session.put(keys.report(nodes.group, run.run_id, "pi"), junk)
                answer = keys.answer(nodes.group, run.run_id, "pi")
                stranger.session.put(answer, junk, attachment=junk)
                replies = list(stranger.session.get(control, payload=junk, timeout=10.0))
                assert [r.ok for r in replies] == [None]
            foreign = Header("other", 0, 0, "act", 1, 0, "pi", "nuc", 1)
            announced = msgspec.structs.replace(foreign, run=run.run_id, bytes=1 << 29)
            for header in (foreign, announced):
                stranger.session.put(data, b"x", attachment=pack_header(header) + bytes(MAC_BYTES))
            # asked on the same way as the puts: when this is answered, they have arrived
            stranger.ask("nuc", msg.Hello(), 10.0)

    before = _bad_commands(run_plan(small, three(small), 1))
    ran = run_plan(small, three(small), 10, between=pester)
    assert len(ran.outcome.losses) == 10
    counts = ran.nodes["nuc"].counts
    assert counts["bad"] == 3 * len(rubbish) + 1
    assert counts["foreign"] == 1
    assert counts["bad_commands"] == before + len(rubbish)


def _bad_commands(ran: Any) -> int:
    found: int = ran.nodes["nuc"].counts["bad_commands"]
    return found


def test_weights_of_the_wrong_shape_and_an_unknown_operator_are_refused(
    small: Subject, nodes: LocalFleet, run_plan: RunPlan
) -> None:
    first = small.graph.layers[0]
    evil = [msgspec.structs.replace(node, op="os.system") for node in first.nodes]
    layers = [msgspec.structs.replace(first, nodes=evil), *small.graph.layers[1:]]
    graph = msgspec.structs.replace(small.graph, layers=layers)
    plan = three(small)
    wanted = Settings(shaping="fabric", scratch=nodes.scratch, deadline_s=5.0)
    with (
        pytest.raises(WeftError, match=r"pi: operator 'os\.system' is not one that Weft knows"),
        Run(nodes.crew, plan, graph, small.state(), wanted, small.feed) as run,
    ):
        run.prepare()
    state = small.state()
    state["0.weight"] = state["0.weight"].T
    with (
        pytest.raises(WeftError, match=r"0\.weight \(20, 40\) belongs to no shard"),
        Run(nodes.crew, plan, small.graph, state, wanted, small.feed) as run,
    ):
        run.prepare()
    assert len(run_plan(small, plan, 2).outcome.losses) == 2


def test_a_device_that_was_left_out_is_free_when_the_run_is_over(
    small: Subject, nodes: LocalFleet
) -> None:
    """It was there and had no part in the last plan, so nobody told it that the run was over. It then kept
    its copies for a coordinator that would never come back, and refused other runs for a minute."""
    with coordinator(small, three(small), nodes) as run:
        run.prepare()
        run.absent.add("nuc")  # as after a fault of the link to it
        run.adopt(small.plan(("pi", 0, 1), ("cloud", 2, 2)))
        run.assign()
    (welcome,) = nodes.crew.ask("nuc", msg.Hello(), 10.0)
    assert isinstance(welcome, msg.Welcome)
    assert not welcome.busy
