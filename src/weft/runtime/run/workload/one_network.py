"""One network that all devices share: captured with its loss, measured where it is emulated, planned."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor, nn

from weft.errors import InputError
from weft.fleet.fleet import Fleet
from weft.fleet.owners import owners_of
from weft.graph.capture.module import capture_loss, capture_signed, state_of
from weft.graph.capture.signature import Signature
from weft.graph.network import Graph
from weft.graph.norms import by_norms
from weft.graph.optimizers.optimizer import Optimizer, split_memory
from weft.graph.precision import Precision, check_bf16, in_bf16
from weft.planning.decide import decide
from weft.planning.task import make_task
from weft.plans.derive import derive_profile
from weft.plans.plan import Plan
from weft.plans.profile import Profile
from weft.plans.registry import behind
from weft.plans.relayer import relayered
from weft.runtime.emulate.forked import warm
from weft.runtime.run.checks import check_layers_whole, check_loss, check_rule
from weft.runtime.run.feeds import Source, accuracy, source_of
from weft.runtime.run.jobs import Settings
from weft.runtime.run.measuring.known import known_profile
from weft.runtime.run.pace import Emulation, emulation
from weft.runtime.run.run import Run
from weft.runtime.run.workload.asked import Asked, Loss
from weft.runtime.run.workload.protocol import Trained, Workload
from weft.simulate.price import priced


@dataclass(frozen=True)
class Trainee:
    """A network ready to be planned: captured with its loss, and measured where it is emulated."""

    graph: Graph
    signature: Signature  # of the module: the form of its inputs and outputs
    state: dict[str, Tensor]
    emulation: Emulation | None

    @property
    def paced(self) -> frozenset[str]:
        return self.emulation.paced if self.emulation else frozenset()

    @property
    def too_fast(self) -> tuple[str, ...]:
        return self.emulation.too_fast if self.emulation else ()


def prepare(
    model: nn.Module,
    source: Source,
    loss: Loss,
    fleet: Fleet,
    *,
    batch: int,
    rule: Optimizer,
    emulated: bool,
    profile: Profile | None = None,
    name: str = "",
    precision: Precision = "float32",
) -> Trainee:
    """Captures the network and its loss; measures it where the fleet is emulated here."""
    graph, signature = capture_signed(model, source.example, name=name, mode="train")
    graph = capture_loss(graph, loss, source.target, signature, source.complete)
    if precision == "bf16":
        graph = in_bf16(graph)
        if emulated:
            check_bf16([n for layer in graph.layers for n in layer.nodes], "the emulated devices")
    state = state_of(model, loss if isinstance(loss, nn.Module) else None)
    measured = None
    if emulated:
        measured = emulation(
            graph, state, fleet, batch=batch, training=True, optimizer=rule, given=profile
        )
    return Trainee(graph, signature, state, measured)


def profile_for(trainee: Trainee, fleet: Fleet, given: Profile | None) -> Profile:
    """What a plan of this run is made for: the emulated times, else the given or derived ones."""
    if trainee.emulation is not None:
        return trainee.emulation.profile
    return given if given is not None else derive_profile(trainee.graph, fleet)


class OneNetwork(Workload):
    """The network is handed out in shards; its samples come from the devices with data, or from here."""

    def __init__(self, asked: Asked) -> None:
        if asked.place.emulated:
            warm()  # the emulated devices' process imports torch while this one captures
        self.asked = asked
        owners = asked.plan.owners if asked.plan else owners_of(asked.fleet, asked.batch)
        self.source = source_of(asked.data, asked.batch, asked.seed, owners)
        self.trainee = prepare(
            asked.model, self.source, asked.loss, asked.fleet, batch=asked.batch, rule=asked.rule,
            emulated=asked.place.emulated, profile=asked.profile, name=asked.name,
            precision=asked.precision,
        )  # fmt: skip
        self.graph, self.state = self.trainee.graph, self.trainee.state
        self.test = self.source.test
        self.feed = self.source.feed(self.graph, self.trainee.signature, self.state)
        self.too_fast = self.trainee.too_fast
        self.plan = self._decide()
        if self.plan.layering == "norms":
            self.graph = by_norms(self.graph)
        check_loss(self.graph, self.plan)
        check_rule(asked.rule, self.plan, asked.timetable)
        check_layers_whole(asked.precision, behind(self.plan), asked.options, self.plan)

    def _decide(self) -> Plan:
        asked = self.asked
        costs = self._costs()
        if asked.plan is None:
            task = make_task(costs, asked.fleet, batch=asked.batch, mode="train",
                                 options=asked.options, graph=self.graph,
                                 optimizer=asked.rule.words, objective=asked.objective)  # fmt: skip
            return decide(asked.strategy, task)
        graph = by_norms(self.graph) if asked.plan.layering == "norms" else self.graph
        if len(asked.plan.profile.layers) != len(graph.layers):
            raise InputError(
                f"the plan is for {len(asked.plan.profile.layers)} layers; "
                f"this network has {len(graph.layers)}"
            )
        if graph is not self.graph:
            costs = relayered(costs, self.graph, graph)
        plan = msgspec.structs.replace(asked.plan, profile=costs, optimizer=asked.rule.words)
        return priced(plan)

    def _costs(self) -> Profile:
        """Emulated times, else the given ones, else those that real nodes measure or have measured."""
        asked = self.asked
        if asked.place.emulated or asked.profile is not None or not asked.measure:
            return profile_for(self.trainee, asked.fleet, asked.profile)
        if asked.plan is not None and asked.plan.layering == "depth":
            return asked.plan.profile  # it runs as it is, so nothing has to be measured
        known = known_profile(
            self.graph, asked.fleet, asked.place, batch=asked.batch, training=True,
            optimizer=asked.rule, say=asked.say,
        )  # fmt: skip
        self.measured = known.notes
        return known.profile

    def settings(self) -> Settings:
        asked = self.asked
        return Settings(optimizer=asked.rule, timetable=asked.timetable, seed=asked.seed,
                        deadline_s=asked.deadline, patience_s=asked.patience, paced=self.trainee.paced,
                        data=self.source.name)  # fmt: skip

    def resume_with(self, weights: Mapping[str, Tensor]) -> None:
        """The weights of an earlier run, in place of the network's own."""
        mine, theirs = set(self.graph.state), set(weights)
        if mine != theirs:
            odd = sorted(mine ^ theirs)[:3]
            raise InputError(f"the folder holds another network: {', '.join(odd)} differ")
        for name in sorted(mine):
            kind, saved = (f"{t.dtype} {list(t.shape)}" for t in (self.state[name], weights[name]))
            if kind != saved:
                raise InputError(
                    f"the folder holds another network: {name} is {saved} there, and {kind} in this one"
                )
        self.state.update(weights)

    def complete(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """All of the network's state; what no layer reads stays as it was."""
        return {n: weights.get(n, self.state[n]) for n in self.graph.state}

    def passed(self, step: int) -> None:
        if self.source.stream is not None:
            self.source.stream.forget(step)

    def result(
        self, run: Run, early: tuple[Mapping[str, Tensor], Mapping[str, Tensor]] | None = None
    ) -> Trained:
        """The network with the weights of the last minibatch, or with those where it was stopped `early`."""
        weights, memory = early or run.collect()
        stream = self.source.stream
        if stream is not None and stream.left_out:
            why = "the last minibatch of a pass was smaller than the others"
            run.note(self.asked.steps, "samples_left_out", why, samples=stream.left_out)
        state = self.complete(weights)
        model = _with_state(self.asked.model, state)
        averaged = None
        if self.asked.rule.ema:
            means, _ = split_memory(memory)
            averaged = _with_state(copy.deepcopy(model), {**state, **means})
        score = None
        if self.source.test is not None and self.source.classes is not None:
            score = accuracy(model, self.source.test)
        return Trained(model, state, memory, score, averaged=averaged)


def _with_state(model: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    """The user's own module with the trained weights in place."""
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    with torch.no_grad():
        for name, tensor in state.items():
            if name in own:
                own[name].copy_(tensor)
    return model
