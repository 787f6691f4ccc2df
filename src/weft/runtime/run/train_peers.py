"""Trains peers with different classes: what `weft train --strategy decoupled` does.

    weft train cnn5 --data mnist5k --fleet peers.toml --strategy decoupled --steps 400 --local

Here, where the user types: pre-train on public samples, decouple, hand out. Then the peers are on their own.
Here again, at the end: put the network together from what each of them has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from torch import Tensor, nn
from torch.nn import functional

from weft.data import Dataset, batch_indices, load
from weft.data.classes import class_rows
from weft.errors import InputError
from weft.fleet.fleet import Fleet
from weft.graph.capture import capture, capture_loss, state_of
from weft.graph.measure import measure
from weft.graph.optimizer import Optimizer
from weft.graph.split.classes.calibrate import calibrate, reestimate_norms
from weft.graph.split.classes.decouple import (
    averaged,
    by_layer,
    decouple,
    read_chain,
    score_filters,
)
from weft.graph.split.classes.network import DecoupledNet
from weft.planning.decide import decide
from weft.planning.task import make_task
from weft.plans.derive import derive_profile, graph_profile, measured_times
from weft.plans.peers import SHARED
from weft.plans.plan import Plan
from weft.plans.profile import DeviceTimes, Profile
from weft.runtime.emulate.pace import REST_S, Emulation, emulation
from weft.runtime.run.feeds import Data, accuracy
from weft.runtime.run.jobs import Settings
from weft.runtime.run.launch import Place, open_crew
from weft.runtime.run.networks import Own
from weft.runtime.run.peer_networks import (
    States,
    exact,
    own_networks,
    recompose,
    recompose_whole,
    settled,
    whole_networks,
)
from weft.runtime.run.peers import PeerRun
from weft.runtime.run.record import Folder, RunFile
from weft.runtime.run.results import Step, TrainResult
from weft.runtime.wire import messages as msg
from weft.simulate.price import priced
from weft.strategies.decoupled.strategy import NAMES


def wanted(strategy: str, plan: Plan | None) -> bool:
    """Whether devices shall train networks of their own."""
    return plan.peers is not None if plan is not None else strategy in NAMES


@dataclass(frozen=True)
class Asked:
    """What the user asked for, as `weft.train` has read it."""

    fleet: Fleet
    strategy: str
    plan: Plan | None
    steps: int
    batch: int
    rule: Optimizer
    place: Place
    options: Mapping[str, object]
    seed: int = 0
    deadline: float = 30.0
    profile: Profile | None = None
    out: Path | None = None
    name: str = ""
    on_progress: Callable[[Step], None] | None = None


def train_peers(model: nn.Module, data: Data, asked: Asked) -> TrainResult:
    """The whole way, from a network to the network that the peers have made of it."""
    if not isinstance(data, str):
        raise InputError(
            "peers open their samples themselves: give the name of a data set that every device has"
        )
    return PeerTraining(model, load(data), asked).go()


class PeerTraining:
    """One run, from the user's network to the recomposed one."""

    def __init__(self, model: nn.Module, data: Dataset, asked: Asked) -> None:
        self.asked, self.data = asked, data
        whole = asked.strategy == "fedavg" if asked.plan is None else not _structured(asked.plan)
        self.dense = model if whole else with_average(model, data.classes)
        self.here: Emulation | None = None
        self.plan = self._decide(whole)
        assert self.plan.peers is not None
        self.sets = {peer.device: peer.classes for peer in self.plan.peers.peers}
        self.rows = dict(zip(self.sets, self._rows(), strict=True))

    def go(self) -> TrainResult:
        net, own, plan = self.ready()
        folder = Folder(self.asked.out) if self.asked.out else None
        with (
            open_crew(plan, self.asked.place, self.settings()) as (crew, placed),
            PeerRun(crew, plan, own, placed) as run,
        ):
            run.go(self.asked.steps, self._progress(plan, run))
            timeline = run.finish()
        whole = self.put_together(net, own, run.states)
        result = TrainResult(
            model=whole, plan=plan, losses=run.mean_losses, steps=self.asked.steps, seconds=run.seconds,
            timeline=timeline, nodes=run.nodes, events=run.events, out=self.asked.out,
            too_fast=self.here.too_fast if self.here else (),
            test_accuracy=accuracy(whole, (self.data.test_x, self.data.test_y)),
        )  # fmt: skip
        if folder:
            self._save(folder, result)
        return result

    def ready(self) -> tuple[nn.Module, dict[str, Own], Plan]:
        """What is handed out: the network as it begins, each peer's part of it, and the exact plan."""
        pretrain(self.dense, *self.public, self.plan.decisions["pretrain"], self.asked)
        net = self._network()
        own = self._own(net)
        return net, own, self._exact(own)

    @property
    def public(self) -> tuple[Tensor, Tensor]:
        """Samples that everybody has, with their labels."""
        count = self.plan.decisions["public"]
        return self.data.train_x[:count], self.data.train_y[:count]

    # --- deciding -------------------------------------------------------------------------------

    def _decide(self, whole: bool) -> Plan:
        asked = self.asked
        graph = capture(self.dense, self.data.train_x[:2], name=asked.name)
        graph = capture_loss(graph, nn.CrossEntropyLoss(), self.data.train_y[:2])
        if asked.place.emulated:
            self.here = emulation(
                graph, state_of(self.dense), asked.fleet, batch=asked.batch, training=True,
                optimizer=asked.rule, given=asked.profile,
            )  # fmt: skip
        if asked.plan is not None:
            return asked.plan
        profile = self.here.profile if self.here else asked.profile
        profile = profile or derive_profile(graph, asked.fleet)
        task = make_task(
            profile, asked.fleet, batch=asked.batch, options=asked.options, graph=graph,
            optimizer=asked.rule.name,
        )  # fmt: skip
        return decide(asked.strategy, task)

    def _rows(self) -> list[Tensor]:
        deal = self.plan.decisions["data"]
        return class_rows(self.data.train_y, list(self.sets.values()), deal, seed=self.asked.seed)

    def _network(self) -> nn.Module:
        """What is handed out: the network itself, or decoupled."""
        told = self.plan.decisions
        if not _structured(self.plan):
            return self.dense
        x, y = self.public
        scores = score_filters(self.dense, x, y, last=told["last"], classes=self.data.classes)
        shares = [percent / 100 for percent in told["filters_percent"]]
        net = decouple(self.dense, scores, last=told["last"], keep=by_layer(scores, shares))
        reestimate_norms(net, x)
        return net

    def _own(self, net: nn.Module) -> dict[str, Own]:
        example = self.data.train_x[:2]
        classes = tuple(self.sets.values())
        deal = self.plan.decisions["data"]
        structured = isinstance(net, DecoupledNet)
        data = {
            device: msg.Data(
                self.data.name,
                seed=self.asked.seed * 100 + p if structured else self.asked.seed + p,
                classes=msg.ClassShare(classes, p, deal, self.asked.seed, own_columns=structured),
            )
            for p, device in enumerate(self.sets)
        }
        if isinstance(net, DecoupledNet):
            return own_networks(net, self.sets, example, data)
        return whole_networks(net, example, data)

    def _exact(self, own: Mapping[str, Own]) -> Plan:
        """The plan with the sizes and, where it is emulated here, the times of the peers' networks."""
        assert self.plan.peers is not None
        peers = exact(self.plan.peers, own, self._weights())
        first = own[peers.devices[0]].graph
        if self.here is None:
            profile = derive_profile(first, self.plan.fleet)
            times = {d: derive_profile(o.graph, self.plan.fleet).devices[d] for d, o in own.items()}
        else:
            times = self._measured(own)
            profile = graph_profile(
                first, dict.fromkeys(self.plan.fleet.names, times[peers.devices[0]])
            )
        profile = msgspec.structs.replace(
            profile, model=self.plan.model, devices={**profile.devices, **times}
        )
        return priced(
            msgspec.structs.replace(
                self.plan, peers=peers, profile=profile, shards=tuple(
                    msgspec.structs.replace(s, layers=(0, len(first.layers) - 1))
                    for s in self.plan.shards
                ),
            )
        )  # fmt: skip

    def _measured(self, own: Mapping[str, Own]) -> dict[str, DeviceTimes]:
        """Each peer's times, as slow as its device; equal networks are measured once."""
        assert self.here is not None
        found: dict[int, DeviceTimes] = {}
        for o in own.values():
            if id(o.graph) not in found:
                found[id(o.graph)] = measured_times(
                    measure(o.graph, o.state, batch=self.asked.batch, optimizer=self.asked.rule,
                            rest_s=REST_S)
                )  # fmt: skip
        return {d: found[id(o.graph)].scaled(self.here.slowdown[d]) for d, o in own.items()}

    def _weights(self) -> dict[str, dict[int, float]]:
        """How much each peer counts in means: FedAvg and decoupled+ go by samples."""
        if not _structured(self.plan):
            return {d: {SHARED: float(len(rows))} for d, rows in self.rows.items()}
        if not self.plan.strategy.endswith("+"):
            return {}
        labels = self.data.train_y
        return {
            d: {c: float((labels[rows] == c).sum()) for c in self.sets[d]}
            for d, rows in self.rows.items()
        }

    def settings(self) -> Settings:
        asked = self.asked
        assert self.plan.peers is not None
        every = self.plan.peers.every
        rule = msgspec.structs.replace(
            asked.rule, rounds=max(asked.steps // every, 1), round_steps=every
        )
        return Settings(
            optimizer=rule, seed=asked.seed, deadline_s=asked.deadline, data=self.data.name,
            paced=self.here.paced if self.here else frozenset(),
        )  # fmt: skip

    # --- the end --------------------------------------------------------------------------------

    def put_together(self, net: nn.Module, own: Mapping[str, Own], states: States) -> nn.Module:
        weights = self._weights()
        if not isinstance(net, DecoupledNet):
            return recompose_whole(net, own, states, {d: w[SHARED] for d, w in weights.items()})
        here = {d: weights[d] for d in states} if weights else None
        whole = recompose(net, own, settled(states), here)
        reestimate_norms(whole, self.public[0])
        calibrate(whole, *self.public)
        return whole

    def _progress(self, plan: Plan, run: PeerRun) -> Callable[[dict[str, int]], None]:
        begin = time.monotonic()

        def told(done: dict[str, int]) -> None:
            if self.asked.on_progress:
                newest = sorted(done.values())[len(done) // 2] + 1
                predicted = plan.predicted.step_s if plan.predicted else None
                self.asked.on_progress(
                    Step(newest, self.asked.steps, run.loss, time.monotonic() - begin, predicted,
                         plan.batch)
                )  # fmt: skip

        return told

    def _save(self, folder: Folder, result: TrainResult) -> None:
        plan = result.plan
        folder.save_plan(plan)
        folder.forget_metrics()
        record = RunFile(plan.model, plan.strategy, result.steps, plan.batch, self.asked.seed)
        state = {n: t.detach() for n, t in result.model.state_dict().items()}
        folder.save_state(record, state, {})
        folder.add_metrics([{"step": s, "loss": loss} for s, loss in enumerate(result.losses)])
        folder.save_timeline(result.timeline)


def _structured(plan: Plan) -> bool:
    return bool(plan.decisions.get("structures", True))


def with_average(model: nn.Module, classes: int) -> nn.Module:
    """The network if it can be decoupled, else with an average and one linear layer at its end."""
    try:
        read_chain(model)
    except InputError:
        return averaged(model, classes)
    return model


def pretrain(net: nn.Module, x: Tensor, y: Tensor, steps: int, asked: Asked) -> None:
    """A trained network to begin with, from the public samples alone."""
    net.train()
    rule = asked.rule.build(list(net.parameters()))
    begin = time.monotonic()
    for step in range(steps):
        rows = batch_indices(len(x), min(asked.batch, len(x)), step, asked.seed)
        rule.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(net(x[rows]), y[rows])
        loss.backward()  # type: ignore[no-untyped-call]
        rule.step()
        if asked.on_progress and step % 10 == 9:
            seconds = time.monotonic() - begin
            asked.on_progress(Step(step + 1, steps, loss.item(), seconds, None, asked.batch,
                                   what="pre-training"))  # fmt: skip
