"""A network for each device, which learns other classes than its neighbours' networks.

    weft train cnn5 --data mnist5k --fleet peers.toml --strategy decoupled --steps 400 --local

Before the run, where the user types: pre-train on public samples, decouple, hand out. During the run the
peers are on their own. After it: put the network together from what each of them has.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping

import msgspec
from torch import Tensor, nn

from weft.data import batch_indices, load
from weft.data.classes import class_rows
from weft.errors import InputError
from weft.graph.capture.module import capture_loss, capture_signed, state_of
from weft.graph.measure import measure
from weft.graph.network import Graph
from weft.graph.split.classes.calibrate import calibrate, reestimate_norms
from weft.graph.split.classes.decouple import Captured, by_layer, decouple, score_filters
from weft.graph.split.classes.loss import check_class_loss
from weft.graph.split.classes.network import DecoupledNet
from weft.graph.split.classes.reader import read_classes
from weft.planning.decide import decide
from weft.planning.task import make_task
from weft.plans.derive import derive_profile, graph_profile, measured_times
from weft.plans.peers import SHARED, Peers
from weft.plans.plan import Plan
from weft.plans.profile import DeviceTimes
from weft.program.timeline import Span, Timeline
from weft.runtime.run.checks import check_rule, is_cross_entropy
from weft.runtime.run.feeds import accuracy
from weft.runtime.run.jobs import Settings
from weft.runtime.run.pace import REST_S, Emulation, emulation
from weft.runtime.run.results import Step
from weft.runtime.run.run import Run
from weft.runtime.run.workload.asked import Asked
from weft.runtime.run.workload.networks import Own
from weft.runtime.run.workload.peer_networks import (
    States,
    exact,
    own_networks,
    recompose,
    recompose_whole,
    settled,
    whole_networks,
)
from weft.runtime.run.workload.peer_saves import by_device, joined, resumed, whole_parts
from weft.runtime.run.workload.peer_timeline import assembled
from weft.runtime.run.workload.protocol import Trained, Workload
from weft.runtime.wire import messages as msg
from weft.simulate.price import priced


class Exchange(Workload):
    """Devices train networks of their own and exchange; each of their losses counts alike."""

    losses = "mean"
    has_copies = False

    def __init__(self, peers: Peers, own: Mapping[str, Own]) -> None:
        self.peers, self.own = peers, own
        self.together = peers.late != "newest"
        self._enough = False

    def enough(self) -> None:
        """Ends the run where it stands; to be called while it reports progress."""
        self._enough = True

    def is_enough(self, run: Run, waiting: set[str]) -> bool:
        """Where nobody waits for others, the run is over when half of the peers are done."""
        half = self.peers.late == "newest" and 2 * len(waiting) <= len(run.working)
        return self._enough or half

    def timeline(self, run: Run, spans: list[Span]) -> Timeline:
        return assembled(spans, self.peers)


class PeerNetworks(Exchange):
    """The user's network, decoupled into one for each peer."""

    def __init__(self, asked: Asked) -> None:
        if not isinstance(asked.data, str):
            raise InputError(
                "peers open their samples themselves: give the name of a data set that every device has"
            )
        self.asked, self.data = asked, load(asked.data)
        self.emulation: Emulation | None = None
        self.dense = asked.model
        self.dense_graph, self.planned = self._plan()
        self.sets = {peer.device: peer.classes for peer in self._peers.peers}
        self.rows = dict(zip(self.sets, self._rows(), strict=True))
        self.net, own, self.plan = self.ready()
        assert self.plan.peers is not None
        super().__init__(self.plan.peers, own)
        first = own[self.peers.devices[0]]
        self.graph, self.state = first.graph, first.state
        self.feed = None  # peers open their data themselves
        self.too_fast = self.emulation.too_fast if self.emulation else ()

    def ready(self) -> tuple[nn.Module, dict[str, Own], Plan]:
        """What is handed out: the network as it begins, each peer's part of it, and the exact plan."""
        pretrain(self.dense, *self.public, self._peers.pretrain, self.asked)
        net = self._network()
        own = self._own(net)
        return net, own, self._exact(own)

    def resume_with(self, weights: Mapping[str, Tensor]) -> None:
        """Every peer's weights of an earlier run, in place of those that it would begin with."""
        self.own = resumed(self.own, weights)
        self.state = self.own[self.peers.devices[0]].state

    def parts(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return whole_parts(self.own, by_device(weights))

    def complete(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The network put together from what the peers have in the middle of a run."""
        states = by_device(weights)
        whole = self.put_together(copy.deepcopy(self.net), self.own, states)
        return {name: tensor.detach() for name, tensor in whole.state_dict().items()}

    def result(self, run: Run, early: object = None) -> Trained:
        present = [d for d in self.peers.devices if d not in run.absent]
        reported = run.states(present)
        states = {d: state for d, (state, _) in reported.items()}
        memory = joined({d: memory for d, (_, memory) in reported.items()})
        parts = whole_parts(self.own, states)
        whole = self.put_together(self.net, self.own, states)
        state = {n: t.detach() for n, t in whole.state_dict().items()}
        right = accuracy(whole, (self.data.test_x, self.data.test_y))
        words = whole.description if isinstance(whole, DecoupledNet) else ""
        return Trained(whole, state, memory, right, words, parts=parts)

    @property
    def _peers(self) -> Peers:
        assert self.planned.peers is not None
        return self.planned.peers

    @property
    def public(self) -> tuple[Tensor, Tensor]:
        """Samples that everybody has, with their labels."""
        count = self._peers.public
        return self.data.train_x[:count], self.data.train_y[:count]

    # --- deciding -------------------------------------------------------------------------------

    def _plan(self) -> tuple[Graph, Plan]:
        """The captured network, and the plan for it. What cannot be decoupled is refused here."""
        asked, data = self.asked, self.data
        graph, signature = capture_signed(asked.model, data.train_x[:2], name=asked.name)
        if not signature.one_tensor:
            raise InputError(
                f"{graph.name} returns {', '.join(graph.outputs)} as a {signature.returns.type.__name__}; "
                "where every device trains a network of its own, it must return one tensor"
            )
        outputs = graph.values[graph.output].shape[-1]
        plan = self._decide(graph)
        assert plan.peers is not None
        check_rule(asked.rule, plan, asked.timetable)
        if plan.peers.structured:
            read_classes(graph, plan.peers.last)  # a plan file may be of another network
            if outputs != data.classes:
                raise InputError(
                    f"{graph.name} gives {outputs} logits and {data.name} has {data.classes} classes; to be "
                    "decoupled a network needs one logit for each class"
                )
            if not is_cross_entropy(asked.loss):
                held = {len(peer.classes) for peer in plan.peers.peers}
                check_class_loss(asked.loss, outputs, held)
        return graph, plan

    def _decide(self, graph: Graph) -> Plan:
        asked = self.asked
        with_loss = capture_loss(graph, asked.loss, self.data.train_y[:64])
        if asked.place.emulated:
            state = state_of(asked.model, asked.loss if isinstance(asked.loss, nn.Module) else None)
            self.emulation = emulation(
                with_loss, state, asked.fleet, batch=asked.batch, training=True,
                optimizer=asked.rule, given=asked.profile,
            )  # fmt: skip
        if asked.plan is not None:
            return asked.plan
        profile = self.emulation.profile if self.emulation else asked.profile
        profile = profile or derive_profile(graph, asked.fleet)
        task = make_task(
            profile, asked.fleet, batch=asked.batch, options=asked.options, graph=graph,
            optimizer=asked.rule.words,
        )  # fmt: skip
        return decide(asked.strategy, task)

    def _rows(self) -> list[Tensor]:
        deal = self._peers.deal
        return class_rows(self.data.train_y, list(self.sets.values()), deal, seed=self.asked.seed)

    def _network(self) -> nn.Module:
        """What is handed out: the network itself, or decoupled."""
        peers = self._peers
        if not peers.structured:
            return self.dense
        x, y = self.public
        dense = Captured(self.dense_graph, state_of(self.dense))
        scores = score_filters(dense, x, y, last=peers.last)
        shares = read_classes(self.dense_graph, peers.last).shares(peers.filters_percent)
        net = decouple(dense, scores, last=peers.last, keep=by_layer(scores, shares))
        reestimate_norms(net, x)
        return net

    def _own(self, net: nn.Module) -> dict[str, Own]:
        classes = tuple(self.sets.values())
        deal = self._peers.deal
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
            return own_networks(net, self.sets, data, self.asked.loss)
        return whole_networks(net, self.dense_graph, data, self.asked.loss)

    def _exact(self, own: Mapping[str, Own]) -> Plan:
        """The plan with the sizes and, where it is emulated here, the times of the peers' networks."""
        peers = exact(self._peers, own, self._weights())
        first = own[peers.devices[0]].graph
        if self.emulation is None:
            profile = derive_profile(first, self.planned.fleet)
            times = {
                d: derive_profile(o.graph, self.planned.fleet).devices[d] for d, o in own.items()
            }
        else:
            times = self._measured(own)
            profile = graph_profile(
                first, dict.fromkeys(self.planned.fleet.names, times[peers.devices[0]])
            )
        profile = msgspec.structs.replace(
            profile, model=self.planned.model, devices={**profile.devices, **times}
        )
        return priced(
            msgspec.structs.replace(
                self.planned, peers=peers, profile=profile, shards=tuple(
                    msgspec.structs.replace(s, layers=(0, len(first.layers) - 1))
                    for s in self.planned.shards
                ),
            )
        )  # fmt: skip

    def _measured(self, own: Mapping[str, Own]) -> dict[str, DeviceTimes]:
        """Each peer's times, as slow as its device; equal networks are measured once."""
        assert self.emulation is not None
        found: dict[int, DeviceTimes] = {}
        for o in own.values():
            if id(o.graph) not in found:
                found[id(o.graph)] = measured_times(
                    measure(o.graph, o.state, batch=self.asked.batch, optimizer=self.asked.rule,
                            rest_s=REST_S)
                )  # fmt: skip
        return {d: found[id(o.graph)].scaled(self.emulation.slowdown[d]) for d, o in own.items()}

    def _weights(self) -> dict[str, dict[int, float]]:
        """How much each peer counts in means: FedAvg and decoupled+ go by samples."""
        if not self._peers.structured:
            return {d: {SHARED: float(len(rows))} for d, rows in self.rows.items()}
        if not self._peers.by_samples:
            return {}
        labels = self.data.train_y
        return {
            d: {c: float((labels[rows] == c).sum()) for c in self.sets[d]}
            for d, rows in self.rows.items()
        }

    def settings(self) -> Settings:
        asked = self.asked
        every = self.peers.every
        rule = msgspec.structs.replace(
            asked.rule, rounds=max(asked.steps // every, 1), round_steps=every
        )
        return Settings(
            optimizer=rule, seed=asked.seed, deadline_s=asked.deadline,
            patience_s=asked.patience, data=self.data.name,
            paced=self.emulation.paced if self.emulation else frozenset(),
        )  # fmt: skip

    # --- the end --------------------------------------------------------------------------------

    def put_together(self, net: nn.Module, own: Mapping[str, Own], states: States) -> nn.Module:
        weights = self._weights()
        if not isinstance(net, DecoupledNet):
            counts = {d: w[SHARED] for d, w in weights.items()}
            return recompose_whole(net, own, settled(states), counts)
        here = {d: weights[d] for d in states} if weights else None
        whole = recompose(net, own, settled(states), here)
        reestimate_norms(whole, self.public[0])
        calibrate(whole, *self.public, loss=self.asked.loss)
        return whole


def pretrain(net: nn.Module, x: Tensor, y: Tensor, steps: int, asked: Asked) -> None:
    """A trained network to begin with, from the public samples alone."""
    net.train()
    rule = asked.rule.build(list(net.parameters()))
    begin = time.monotonic()
    for step in range(steps):
        rows = batch_indices(len(x), min(asked.batch, len(x)), step, asked.seed)
        rule.zero_grad(set_to_none=True)
        loss = asked.loss(net(x[rows]), y[rows])
        loss.backward()
        rule.step()
        if asked.on_progress and step % 10 == 9:
            seconds = time.monotonic() - begin
            asked.on_progress(Step(step + 1, steps, loss.item(), seconds, None, asked.batch,
                                   what="pre-training"))  # fmt: skip
