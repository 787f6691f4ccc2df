"""Four node processes as peers: the weights of the one-process simulation, and peers that come and go."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn

from weft.data import load
from weft.data.classes import class_rows
from weft.errors import InputError
from weft.fleet.fleet import Device, Fleet, Link
from weft.graph.capture.module import capture
from weft.graph.optimizers.optimizer import Optimizer
from weft.graph.split.classes.calibrate import reestimate_norms
from weft.graph.split.classes.decouple import captured, decouple, score_filters
from weft.graph.split.classes.network import DecoupledNet
from weft.papers.decoupled.methods import eight_bits
from weft.plans.derive import derive_profile
from weft.plans.peers import SHARED, Peer, Peers
from weft.plans.plan import Part, Plan, Shard
from weft.reference import peers as simulated
from weft.reference.peers_baselines import train_fedavg
from weft.runtime.emulate.local import LocalFleet
from weft.runtime.node.class_samples import Epochs, columns
from weft.runtime.run.jobs import Settings
from weft.runtime.run.outcome import Outcome
from weft.runtime.run.recovery.leave_out import LeaveOut
from weft.runtime.run.run import Run
from weft.runtime.run.workload.networks import Own
from weft.runtime.run.workload.peer_networks import (
    exact,
    group_state,
    keepers,
    newcomer_state,
    own_networks,
    recompose,
    settled,
    whole_networks,
)
from weft.runtime.run.workload.peers import Exchange
from weft.runtime.wire import messages as msg
from weft.strategies.decoupled.topology import FOUR_OF_FIVE, topology

NAMES = ("p0", "p1", "p2", "p3")
SETS = dict(zip(NAMES, FOUR_OF_FIVE, strict=True))
ROUNDS, EVERY, BATCH, SEED = 3, 4, 16, 3
RECIPE = simulated.Recipe(rounds=ROUNDS, steps=EVERY, batch=BATCH, seed=SEED)
RULE = Optimizer(
    "momentum", RECIPE.lr, RECIPE.momentum, RECIPE.decay, rounds=ROUNDS, round_steps=EVERY
)
ODD = "0-1,1-2,2-3,1-3"


@pytest.fixture(scope="module")
def four() -> Iterator[LocalFleet]:
    with LocalFleet(NAMES) as local:
        local.crew.wait_for(local.names, 180.0)
        yield local


@pytest.fixture(scope="module")
def dense() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 20, 3, padding=1), nn.BatchNorm2d(20), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(20, 20, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(20, 10),
    )  # fmt: skip


@pytest.fixture(scope="module")
def net(dense: nn.Sequential) -> DecoupledNet:
    x, y = load("digits").train_x[:200], load("digits").train_y[:200]
    whole = captured(dense, x[:2])
    parts = decouple(whole, score_filters(whole, x, y, last=2), last=2, keep=0.2)
    reestimate_norms(parts, x)
    return parts


def shares(own_columns: bool = True) -> dict[str, msg.Data]:
    return {
        name: msg.Data(
            "digits",
            seed=SEED * 100 + p if own_columns else SEED + p,
            classes=msg.ClassShare(FOUR_OF_FIVE, p, seed=SEED, own_columns=own_columns),
        )
        for p, name in enumerate(NAMES)
    }


@pytest.fixture(scope="module")
def own(net: DecoupledNet) -> dict[str, Own]:
    return own_networks(net, SETS, shares(), nn.CrossEntropyLoss())


def plan_of(own: Mapping[str, Own], near: str, weights: Any = None, **fields: Any) -> Plan:
    numbers = topology(near, 4)
    edges = tuple((NAMES[a], NAMES[b]) for a, to in numbers.items() for b in to if a < b)
    fleet = Fleet(
        tuple(Device(n, gflops=1.0, data=n == "p0") for n in NAMES),
        tuple(Link((a, b), 1000.0, 1000.0, 0.1) for a in NAMES for b in NAMES if a < b),
    )
    profile = derive_profile(own["p0"].graph, fleet)
    peers = Peers(tuple(Peer(n, c, ()) for n, c in SETS.items()), edges, EVERY, **fields)
    return Plan(
        strategy="by hand", model="digits", batch=BATCH, mode="train", source="p0", fleet=fleet,
        shards=tuple(
            Shard(n, (0, len(profile.layers) - 1), Part(classes=c)) for n, c in SETS.items()
        ),
        profile=profile, peers=exact(peers, own, weights or {}), optimizer="momentum",
    )  # fmt: skip


def slowed(plan: Plan, device: str, seconds: float) -> Plan:
    """The plan with a device whose minibatches take so long."""
    times, last = plan.profile.devices[device], len(plan.profile.layers) - 1
    usual = times.forward(0, last, BATCH) + times.backward(0, last, BATCH)
    devices = {**plan.profile.devices, device: times.scaled(seconds / usual)}
    profile = msgspec.structs.replace(plan.profile, devices=devices)
    return msgspec.structs.replace(plan, profile=profile)


def settings(local: LocalFleet, **changes: Any) -> Settings:
    fields = {"optimizer": RULE, "shaping": "fabric", "scratch": local.scratch, "same_clock": True}
    return Settings(**{**fields, **changes})  # type: ignore[arg-type]


class Peered(Run):
    """A run of peers, and what each of them has at the end."""

    def __init__(
        self, local: LocalFleet, plan: Plan, own: dict[str, Own], wanted: Settings
    ) -> None:
        assert plan.peers is not None
        self.peers = plan.peers
        first = own[NAMES[0]]
        super().__init__(
            local.crew, plan, first.graph, first.state, wanted,
            workload=Exchange(plan.peers, own), recovery=LeaveOut(plan),
        )  # fmt: skip
        self.ended: dict[str, dict[str, Tensor]] = {}

    def go(self, steps: int, on_progress: Callable[[Outcome], None] | None = None) -> Outcome:
        self.prepare()
        outcome = self.steps(0, steps, on_progress)
        present = [name for name in NAMES if name not in self.absent]
        self.ended = {name: state for name, (state, _) in self.states(present).items()}
        return outcome


def samples() -> simulated.Samples:
    digits = load("digits")
    return simulated.Samples(digits.train_x, digits.train_y, digits.test_x, digits.test_y)


def simulation(
    net: DecoupledNet, near: str, ends: list[simulated.Gathered] | None = None, **changes: Any
) -> list[simulated.PeerTrainer]:
    """The same rounds in one process, with tensors in the memory order that nodes use."""
    recipe, data = replace(RECIPE, **changes), samples()
    rows = class_rows(data.y, FOUR_OF_FIVE, recipe.deal, seed=SEED)
    peers = [
        simulated.PeerTrainer(net, held, mine, data, recipe, SEED * 100 + p)
        for p, (held, mine) in enumerate(zip(FOUR_OF_FIVE, rows, strict=True))
    ]
    for peer in peers:
        peer.net.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    for round_ in range(ROUNDS):
        for peer in peers:
            peer.trainer.train(EVERY, simulated.learning_rate(recipe, round_))
        run = simulated.Run(net, sent=[0] * 4)
        simulated.exchange(peers, topology(near, 4), recipe, run)
        if ends is not None:
            ends.append(simulated.gather(peers, recipe))
    return peers


@pytest.mark.parametrize(
    ("near", "shared"),
    [("ring", "ring"), ("ring", "gossip"), ("mesh", "gossip"), (ODD, "ring"), (ODD, "gossip")],
)
def test_peers_end_with_the_weights_of_the_one_process_simulation(
    four: LocalFleet, net: DecoupledNet, own: dict[str, Own], near: str, shared: str
) -> None:
    with Peered(four, plan_of(own, near, shared=shared), own, settings(four)) as run:
        outcome = run.go(ROUNDS * EVERY)
    assert_same_weights(run, simulation(net, near, shared=shared))
    assert not run.events
    assert len(outcome.losses) == ROUNDS * EVERY
    # nobody but p1 has class 4: its neighbours keep what it last told them
    assert keepers(run.ended, 4) == [n for n in NAMES if n in run.peers.near("p1")]


def assert_same_weights(run: Peered, expected: list[simulated.PeerTrainer]) -> None:
    for name, peer in zip(NAMES, expected, strict=True):
        for key, tensor in peer.net.state_dict().items():
            torch.testing.assert_close(run.ended[name][key], tensor, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("near", ["ring", ODD])
def test_decoupled_plus_in_8_bits_ends_with_the_weights_of_its_simulation(
    four: LocalFleet, net: DecoupledNet, own: dict[str, Own], near: str
) -> None:
    labels = load("digits").train_y
    rows = class_rows(labels, FOUR_OF_FIVE, "replicate", seed=SEED)
    seen = {
        name: {c: float((labels[mine] == c).sum()) for c in SETS[name]}
        for name, mine in zip(NAMES, rows, strict=True)
    }
    plan = plan_of(own, near, seen, shared="gossip", tail=2)
    plan = msgspec.structs.replace(plan, codec="int8")
    with Peered(four, plan, own, settings(four)) as run:
        run.go(ROUNDS * EVERY)
        _, nodes = run.timeline()
    ends: list[simulated.Gathered] = []
    recipe = {"shared": "gossip", "weighted": True, "code": eight_bits, "tail": 2}
    expected = simulation(net, near, ends, **recipe)
    assert_same_weights(run, expected)
    whole = recompose(net, own, settled(run.ended), seen).state_dict()
    rounds = simulated.recomposed(net, ends[-2:], samples(), RECIPE)  # the mean of the last two
    for key, tensor in rounds.state_dict().items():
        torch.testing.assert_close(whole[key], tensor, rtol=1e-5, atol=1e-5)
    exact = simulation(net, near, shared="gossip", weighted=True)
    gaps = [
        float((a.net.state_dict()[k] - t).abs().max())
        for a, b in zip(expected, exact, strict=True)
        for k, t in b.net.state_dict().items()
        if t.is_floating_point()
    ]
    assert max(gaps) > 1e-4  # rounding to 8 bits is seen, so the test above would see it missing
    told = [s for node in nodes.values() for s in node.spans if s.what == "transfer"]
    assert {s.bytes for s in told if s.label.startswith("group")} <= {
        sum(t.numel() for t in group_state(own[n], own[n].state, g).values())
        for n in NAMES
        for g in own[n].groups
    }  # a byte for each number


def test_the_ring_really_moves_that_share_of_the_bytes(
    four: LocalFleet, own: dict[str, Own]
) -> None:
    plan = plan_of(own, "ring", shared="ring")
    with Peered(four, plan, own, settings(four)) as run:
        run.go(EVERY)
        _, nodes = run.timeline()
    shared = sum(t.nbytes for t in group_state(own["p0"], own["p0"].state, SHARED).values())
    rows = [
        span
        for node in nodes.values()
        for span in node.spans
        if span.what == "transfer" and span.label.startswith(("row", "sum"))
    ]
    assert len(rows) == 4 * 2 * 3
    assert sum(span.bytes for span in rows) == 2 * 3 * shared  # 4 peers, 2 (n-1) / n of it each


@pytest.mark.parametrize("shared", ["ring", "hub"])
def test_fedavg_ends_with_the_weighted_mean_of_everybody(
    four: LocalFleet, dense: nn.Sequential, shared: str
) -> None:
    digits = load("digits")
    graph = capture(dense, digits.train_x[:2])
    own = whole_networks(dense, graph, shares(own_columns=False), nn.CrossEntropyLoss())
    rows = class_rows(digits.train_y, FOUR_OF_FIVE, "replicate", seed=SEED)
    weights = {n: {SHARED: float(len(r))} for n, r in zip(NAMES, rows, strict=True)}
    plan = plan_of(own, "ring", weights, shared=shared)
    with Peered(four, plan, own, settings(four)) as run:
        run.go(ROUNDS * EVERY)
    expected = train_fedavg(dense, samples(), FOUR_OF_FIVE, RECIPE).net.state_dict()
    for state in run.ended.values():
        for name, tensor in state.items():
            if tensor.is_floating_point():  # the simulation has another memory order
                torch.testing.assert_close(tensor, expected[name], rtol=2e-3, atol=2e-3)


def test_nobody_waits_for_a_slow_peer_where_the_newest_is_enough(
    four: LocalFleet, own: dict[str, Own]
) -> None:
    plan = slowed(plan_of(own, "ring", shared="gossip", late="newest"), "p3", 0.4)
    with Peered(four, plan, own, settings(four, paced=frozenset({"p3"}))) as run:
        done = run.go(5 * EVERY).done
    # 0.4 s a minibatch: it would have held the others up for 8 s, and has done few by the end
    assert done["p3"] < 5 * EVERY - 1
    assert sum(count == 5 * EVERY - 1 for count in done.values()) >= 2
    mixed = group_state(own["p0"], run.ended["p0"], SHARED)
    assert all(bool(t.isfinite().all()) for t in mixed.values())


def test_a_peer_is_killed_and_returns_and_its_classes_live_on(
    four: LocalFleet, net: DecoupledNet, own: dict[str, Own]
) -> None:
    """The last test here that uses these nodes: p1 is another process afterwards."""
    acts: list[str] = []

    def on_progress(outcome: Outcome) -> None:
        done = outcome.done
        others = min(done.get(name, -1) for name in NAMES if name != "p1")
        if not acts and others >= 2 * EVERY:
            four.kill("p1")
            acts.append("killed")
        elif acts == ["killed"] and any(e["kind"] == "device_lost" for e in run.events):
            four.restart("p1")
            acts.append("restarted")
        elif any(e["kind"] == "device_joined" for e in run.events) and (
            done.get("p1", -1) >= run.events[-1]["step"] + 2 * EVERY
        ):
            run.workload.enough()

    plan = plan_of(own, "ring", shared="ring")
    for name in NAMES:  # so that they do not compute at full speed until the new process is up
        plan = slowed(plan, name, 0.05)
    with Peered(four, plan, own, settings(four, paced=frozenset(NAMES))) as run:
        run.go(1_000_000, on_progress)
    lost, alone, joined = run.events
    assert (lost["kind"], lost["device"]) == ("device_lost", "p1")
    assert lost["classes"] == {"2": ["p0", "p3"], "3": ["p0"], "4": [], "5": ["p2"], "6": ["p2"]}
    assert alone["kind"] == "class_without_owner"
    assert (alone["class"], alone["kept_by"]) == (4, ["p0", "p2"])
    assert (joined["kind"], joined["device"]) == ("device_joined", "p1")
    assert joined["step"] > lost["step"]  # the others went on meanwhile
    whole = recompose(net, own, run.ended)
    assert whole.classes == tuple(range(10))
    # it came back with what the others had learned, not with what it began with
    begun = group_state(own["p1"], own["p1"].state, SHARED)
    apart = {
        name: _distance(group_state(own["p1"], run.ended["p1"], SHARED), other)
        for name, other in [
            ("begun", begun),
            ("p0", group_state(own["p0"], run.ended["p0"], SHARED)),
        ]
    }
    assert apart["p0"] < 0.2 * apart["begun"]


def _distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    return sum(float((a[k] - b[k]).norm()) for k in a)


def test_a_newcomer_gets_the_means_of_what_the_others_have(own: dict[str, Own]) -> None:
    states = {
        name: {k: torch.full_like(t, n) for k, t in own[name].state.items()}
        for n, name in enumerate(NAMES)
        if name != "p1"
    }
    states["p2"] |= {
        f"kept/4/{k}": torch.full_like(t, 9.0)
        for k, t in group_state(own["p1"], own["p1"].state, 4).items()
    }
    mine = newcomer_state("p1", own, states)
    for group, value in {SHARED: 5 / 3, 2: 1.5, 3: 0.0, 4: 9.0, 5: 2.0, 6: 2.0}.items():
        for tensor in group_state(own["p1"], mine, group).values():
            torch.testing.assert_close(tensor, torch.full_like(tensor, value))


def test_samples_are_those_of_the_simulation_from_any_minibatch_on() -> None:
    trainer = simulated.Trainer(
        nn.Linear(1, 1), 50, lambda net, rows: seen.append(rows) or net(torch.ones(1)).sum(),
        RECIPE, seed=7,
    )  # type: ignore[func-returns-value]  # fmt: skip
    seen: list[Tensor] = []
    trainer.train(8, 0.1)
    epochs = Epochs(50, BATCH, seed=7)
    for step in (5, 2, 7, 0):
        assert epochs.rows(step).tolist() == seen[step].tolist()
    with pytest.raises(InputError, match="10 samples"):
        Epochs(10, BATCH, seed=7)
    assert columns(torch.tensor([7, 2, 7]), (2, 7)).tolist() == [1, 0, 1]
