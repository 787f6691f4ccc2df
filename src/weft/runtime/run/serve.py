"""Runs a network on a fleet to answer: the call behind `weft infer` and `weft.serve`.

with weft.serve(model, example_input, fleet, strategy="chain", local=True) as net:
    y = net(x)
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import InputError
from weft.fleet.fleet import Fleet
from weft.graph.capture import capture_signed, state_of
from weft.graph.network import Graph
from weft.graph.sequence import in_sequence
from weft.graph.signature import Sample, Signature, leaves_of
from weft.planning.decide import decide
from weft.planning.task import make_task
from weft.plans import registry
from weft.plans.derive import derive_profile
from weft.plans.plan import Objective, Plan
from weft.plans.profile import Profile
from weft.program.timeline import Timeline
from weft.runtime.emulate.forked import warm
from weft.runtime.run.jobs import Settings
from weft.runtime.run.known import known_profile
from weft.runtime.run.launch import Place, open_crew
from weft.runtime.run.outcome import Outcome
from weft.runtime.run.pace import emulation
from weft.runtime.run.recovery.clone import Clone, units_weigh
from weft.runtime.run.run import Run
from weft.runtime.run.survey import Say
from weft.runtime.wire.closing import Closing
from weft.runtime.wire.messages import Spans
from weft.simulate.price import priced
from weft.strategies.stitchnet.copies import copied


class Served(Closing):
    """A network spread over a fleet that answers calls until it is closed."""

    def __init__(
        self,
        plan: Plan,
        run: Run,
        signature: Signature,
        stack: contextlib.ExitStack,
        inputs: dict[int, dict[str, Tensor]],
    ) -> None:
        self.plan = plan
        self._run = run
        self._signature = signature
        self._stack = stack
        self._inputs = inputs
        self._next = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the network returns for a batch of the planned size. It is called as the network is."""
        if args and kwargs:
            raise InputError(
                "positional and keyword inputs are mixed; give the inputs in the form of the example: "
                f"{self._signature.form}"
            )
        return self.stream([args[0] if len(args) == 1 else args or kwargs])[0]

    def stream(self, batches: Sequence[Sample]) -> list[Any]:
        """Answers for several batches, one after the other without a pause between them.

        Each batch has the form of the example input: a tensor, a tuple, or a dict of inputs by keyword.
        """
        named = [self._signature.named(batch) for batch in batches]
        for batch in named:
            self._check_batch(batch)
        first, last = self._next, self._next + len(batches)
        self._inputs.update(zip(range(first, last), named, strict=True))
        outcome = self._run.steps(first, last)
        self._next = last
        for step in range(first, last):
            self._inputs.pop(step, None)
        return [self._answer(outcome, step) for step in range(first, last)]

    def _check_batch(self, batch: Mapping[str, Tensor]) -> None:
        """InputError if a batch has another size, or other shapes or types, than the plan is for."""
        for name in self._run.graph.inputs:
            tensor, value = batch[name], self._run.graph.values[name]
            if len(tensor) != self.plan.batch:
                raise InputError(
                    f"{len(tensor)} samples given, but the plan is for batch {self.plan.batch}"
                )
            dtype = str(tensor.dtype).removeprefix("torch.")
            if tuple(tensor.shape[1:]) != value.shape[1:] or dtype != value.dtype:
                raise InputError(
                    f"input {name} is {dtype} {list(tensor.shape[1:])} for each sample; the network was "
                    f"captured for {value.dtype} {list(value.shape[1:])}"
                )

    def _answer(self, outcome: Outcome, step: int) -> Any:
        """What the network returns, put together from the answers of the micro-batches."""
        graph = self._run.graph
        pieces = [outcome.answers[step, m] for m in range(self.plan.micro_batches)]
        tensors = {
            name: torch.cat([piece[name] for piece in pieces], graph.values[name].batch_dim or 0)
            if len(pieces) > 1
            else pieces[0][name]
            for name in graph.outputs
        }
        return self._signature.rebuilt(tensors)

    def timeline(self) -> tuple[Timeline, dict[str, Spans]]:
        return self._run.timeline()

    def close(self) -> None:
        self._stack.close()


def serve(
    model: nn.Module,
    example_input: Sample,
    fleet: Fleet,
    *,
    strategy: str | None = None,
    plan: Plan | None = None,
    batch: int | None = None,
    local: bool = False,
    netns: bool = False,
    join: str | Sequence[str] | None = None,
    profile: Profile | None = None,
    options: Mapping[str, object] | None = None,
    deadline: float = 30.0,
    name: str = "",
    group: str = "weft",
    config: str | None = None,
    objective: Objective = "time",
    measure: bool = True,
    say: Say = lambda text: None,
) -> Served:
    """Plans, opens the fleet and loads the weights; the result answers calls. Close it after use.

    `example_input` is a tensor, a tuple of tensors (positional inputs) or a dict (inputs by keyword). The
    result is called as the network is, and returns what the network returns. On real nodes the network is
    measured where its times are not known yet, unless `measure` is False; `say` gets a line about that.
    """
    place = Place(local, netns, (join,) if isinstance(join, str) else tuple(join or ()),
                  group=group, config=config)  # fmt: skip
    if batch is None:
        batch = plan.batch if plan else len(leaves_of(example_input, "the example input")[0])
    if batch < 1:
        raise InputError(f"batch {batch} is not allowed; it must be at least 1")
    if place.emulated:
        warm()
    graph, signature = capture_signed(model, example_input, name=name)
    state = state_of(model)
    paced: frozenset[str] = frozenset()
    if place.emulated:
        measured = emulation(graph, state, fleet, batch=batch, training=False, given=profile)
        profile, paced = measured.profile, measured.paced
    elif profile is None and measure:
        profile = known_profile(graph, fleet, place, batch=batch, training=False, say=say).profile
    elif profile is None:
        profile = derive_profile(graph, fleet)
    if plan is None:
        task = make_task(profile, fleet, batch=batch, mode="infer", options=options, graph=graph,
                         objective=objective)  # fmt: skip
        plan = decide(strategy or registry.DEFAULT, task)
    if plan.mode != "infer":
        raise InputError(f"this plan of {plan.strategy} is for training, not for inference")
    if plan.swarm is not None and plan.swarm.copied:
        plan = priced(copied(plan, units_weigh(graph, state)))
    if plan.layering == "sequence":
        graph = in_sequence(graph)
    if len(plan.profile.layers) != len(graph.layers) or plan.batch != batch:
        raise InputError(
            f"the plan is for {len(plan.profile.layers)} layers and batch {plan.batch}; "
            f"this is {len(graph.layers)} layers and batch {batch}"
        )
    _check_outputs(graph, plan)
    inputs: dict[int, dict[str, Tensor]] = {}
    settings = Settings(deadline_s=deadline, paced=paced)
    with contextlib.ExitStack() as opening:
        crew, fitted = opening.enter_context(open_crew(plan, place, settings))
        run = opening.enter_context(
            Run(
                crew,
                plan,
                graph,
                state,
                fitted,
                lambda step: ({name: inputs[step][name] for name in graph.inputs}, None),
                recovery=Clone() if plan.swarm is not None else None,
            )
        )
        run.prepare()
        return Served(plan, run, signature, opening.pop_all(), inputs)


def _check_outputs(graph: Graph, plan: Plan) -> None:
    """InputError if the plan cannot compute all outputs, or cannot put them together."""
    if (plan.rounds or plan.swarm) and (len(graph.inputs) > 1 or graph.further_outputs):
        raise InputError(
            f"the plan of {plan.strategy} parts the layers of networks with one input and one output; "
            f"{graph.name} has {len(graph.inputs)} inputs and {len(graph.outputs)} outputs"
        )
    whole = [name for name in graph.outputs if graph.values[name].batch_dim is None]
    if whole and plan.micro_batches > 1:
        raise InputError(
            f"{graph.name} returns {', '.join(whole)}, which has no row for each sample, so that the answer "
            f"of a batch does not follow from its {plan.micro_batches} micro-batches; plan with "
            "--set micro_batches=1"
        )


def latency_s(timeline: Timeline) -> float:
    """Median seconds from loading a batch to having its answer, the first one left out."""
    begin: dict[int, float] = {}
    end: dict[int, float] = {}
    for span in timeline.spans:
        if span.what == "load":
            begin[span.step] = min(begin.get(span.step, span.start), span.start)
        elif span.what == "emit":
            end[span.step] = max(end.get(span.step, span.end), span.end)
    times = [end[s] - begin[s] for s in sorted(end) if s in begin]
    return statistics.median(times[1:] or times)
