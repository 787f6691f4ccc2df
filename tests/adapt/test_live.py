"""Live changes of plan: nothing is lost, only what changes hands moves, the mathematics stays."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor, nn

from weft.errors import WeftError
from weft.graph.optimizers.optimizer import Optimizer
from weft.plans.online import Setting
from weft.runtime.emulate.local import LocalFleet

Subject = Any
MOMENTUM, ADAM = Optimizer("momentum", 0.02), Optimizer("adam", 0.005)


def alone(subject: Subject, steps: int, rule: Optimizer) -> dict[str, Tensor]:
    module = copy.deepcopy(subject.module).train()
    optimizer = rule.build(list(module.parameters()))
    for step in range(steps):
        x, y = subject.data(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()
    return {n: t.detach() for n, t in module.state_dict().items()}


def same(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        worst = float((found[name].double() - tensor.double()).abs().max())
        assert worst <= tolerance, f"{name} is {worst} off"


@pytest.mark.parametrize("rule", [MOMENTUM, ADAM], ids=lambda rule: rule.name)
def test_training_is_plain_training_while_cuts_move_and_workers_change(
    rule: Optimizer, go: Callable[..., Any], shared: LocalFleet, script: Any, subject: Subject
) -> None:
    """One in flight, so that the result can be compared with one process."""
    policy = script(
        start=Setting("e1", 2),
        settings=[Setting("e1", 1), Setting("e2", 3), None, Setting("e3", 2), Setting(None, 4),
                  Setting("e1", 1)],
    )  # fmt: skip
    ran = go(shared, policy, 80, rule=rule)
    same(ran.state, alone(subject, 80, rule))
    assert ran.kinds == ["replanned", "worker_changed", "worker_changed", "worker_changed",
                         "worker_changed"]  # fmt: skip
    assert sorted(ran.losses) == list(range(80))
    event = ran.live.events[0]
    assert event["cut"] == [2, 1]
    assert event["why"] == "as the script says"
    assert event["step"] == 10


def test_a_run_may_begin_with_another_worker_than_it_was_prepared_for(
    go: Callable[..., Any], shared: LocalFleet, script: Any, subject: Subject
) -> None:
    ran = go(shared, script(start=Setting("e2", 3)), 20, start=("e1", 2), deadline_s=8.0)
    same(ran.state, alone(subject, 20, MOMENTUM))
    assert ran.kinds == ["worker_changed"]


def test_an_error_of_who_only_advises_is_an_event_and_training_goes_on(
    go: Callable[..., Any], shared: LocalFleet, subject: Subject, script: type[Any]
) -> None:
    class Unsure(script):  # type: ignore[misc]
        def decide(self, seen: Any) -> Any:
            if self.seen:
                raise WeftError("no plan comes to mind")
            return super().decide(seen)

    ran = go(shared, Unsure(start=Setting("e1", 2)), 30)
    same(ran.state, alone(subject, 30, MOMENTUM))
    assert set(ran.kinds) == {"advice_failed"}
    assert {event["why"] for event in ran.live.events} == {"no plan comes to mind"}


def test_only_what_changes_hands_moves(
    go: Callable[..., Any], shared: LocalFleet, script: Any, subject: Subject
) -> None:
    """From cut 2 to cut 1 one layer goes from phone to server: its weights, buffers and momentum."""
    policy = script(start=Setting("e1", 2), settings=[Setting("e1", 1)])
    ran = go(shared, policy, 30)
    layer = subject.graph.layers[1].state
    size = sum(subject.graph.state[n].bytes for n in layer)
    trained = sum(subject.graph.state[n].bytes for n in layer if subject.graph.state[n].trainable)
    assert [event["moved_bytes"] for event in ran.live.events] == [size + trained]


def test_looks_do_not_stop_the_pipeline(
    go: Callable[..., Any], shared: LocalFleet, script: Any
) -> None:
    policy = script(start=Setting("e1", 2, 3), settings=[None] * 20)
    ran = go(shared, policy, 100)
    assert len(policy.seen) >= 8
    assert ran.kinds == ["replanned"]  # from the plan to prepare with to three in flight
    assert sorted(ran.losses) == list(range(100))
    later = policy.seen[-1]
    assert {server.name for server in later.servers} == {"e1", "e2", "e3"}
    assert later.period_s > 0
    assert all(server.up_bytes_per_s > 1e6 for server in later.servers)


def test_the_death_of_the_worker_repeats_only_what_was_in_flight(
    go: Callable[..., Any], mortal: Callable[..., LocalFleet], script: Any
) -> None:
    local = mortal("phone", "e1", "e2", "e3")
    killed: list[int] = []

    def kill(step: int) -> None:
        if step >= 25 and not killed:
            killed.append(step)
            local.kill("e1")

    policy = script(start=Setting("e1", 2, 3), every=20, settings=[None] * 9)
    ran = go(local, policy, 300, standby="auto", on_step=kill)
    lost, recovered = (next(e for e in ran.live.events if e["kind"] == kind)
                       for kind in ("device_lost", "recovered"))  # fmt: skip
    assert lost["device"] == "e1"
    assert recovered["worker"][0] == "e1"
    assert recovered["worker"][1] in ("e2", "e3")
    assert 0 <= recovered["repeated"] <= 2 * 3  # three in flight, the standby as far behind
    assert recovered["step"] >= killed[0] - 1
    # Losses that the worker had not told yet died with it; all later ones are there.
    missing = set(range(300)) - set(ran.losses)
    assert all(step < recovered["step"] for step in missing)


def test_without_a_standby_the_run_goes_back_to_the_last_collection(
    go: Callable[..., Any], mortal: Callable[..., LocalFleet], script: Any, subject: Subject
) -> None:
    local = mortal("phone", "e2", "e3")
    killed: list[int] = []

    def kill(step: int) -> None:
        if step >= 70 and not killed:
            killed.append(step)
            local.kill("e2")

    policy = script(start=Setting("e2", 2), every=20)
    ran = go(local, policy, 200, keep_every=40, start=("e2", 2), on_step=kill)
    recovered = next(e for e in ran.live.events if e["kind"] == "recovered")
    assert recovered["step"] % 20 == 0
    assert 40 <= recovered["step"] <= killed[0] + 20
    assert recovered["repeated"] >= 1
    same(ran.state, alone(subject, 200, MOMENTUM))  # all weights went back together


def test_with_no_server_left_the_client_trains_on_alone_and_says_so(
    go: Callable[..., Any], mortal: Callable[..., LocalFleet], script: Any
) -> None:
    """It has its own layers, and the server's as they were last collected."""
    local = mortal("phone", "e3")
    killed: list[int] = []

    def kill(step: int) -> None:
        if step >= 30 and not killed:
            killed.append(step)
            for name in set(local.crew.present) - {"phone"}:
                local.kill(name)

    ran = go(local, script(start=Setting("e3", 2, 2), every=20), 200, start=("e3", 2),
             standby="auto", keep_every=20, on_step=kill)  # fmt: skip
    last = ran.live.events[-1]
    assert last["kind"] == "recovered"
    assert last["worker"] == ["e3", None]
    assert "alone" in last["why"]
    assert set(range(last["step"], 200)) <= set(ran.losses)


def test_a_server_that_comes_later_can_be_used(
    go: Callable[..., Any], mortal: Callable[..., LocalFleet], script: Any, subject: Subject
) -> None:
    local = mortal("phone")
    for name in set(local.crew.present) - {"phone"}:
        local.kill(name)
    local.processes.pop("e1", None)

    class Waits(script):  # type: ignore[misc]
        def decide(self, seen: Any) -> Any:
            names = {server.name for server in seen.servers}
            if "e1" in names and seen.setting.worker is None:
                self.settings = [Setting("e1", 2)]
            return super().decide(seen)

    def start(step: int) -> None:
        if step >= 10 and "e1" not in local.processes:
            mortal("e1")  # the run waits meanwhile

    ran = go(local, Waits(every=10), 80, start=(None, 0), on_step=start)
    assert "device_joined" in ran.kinds
    assert "worker_changed" in ran.kinds
    same(ran.state, alone(subject, 80, MOMENTUM))


def test_the_death_of_the_source_ends_the_run(
    go: Callable[..., Any], mortal: Callable[..., LocalFleet], script: Any
) -> None:
    local = mortal("phone", "e1")

    def kill(step: int) -> None:
        if step >= 20:
            local.kill("phone")

    with pytest.raises(WeftError, match="phone"):
        go(local, script(start=Setting("e1", 2)), 100_000, on_step=kill)
