"""Runs a network on a fleet to answer: the call behind `weft infer` and `weft.serve`.

with weft.serve(model, example_input, fleet, strategy="chain", local=True) as net:
    y = net(x)
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from weft.errors import InputError
from weft.fleet.fleet import Fleet
from weft.graph.capture import capture, state_of
from weft.graph.sequence import in_sequence
from weft.planning.decide import decide
from weft.planning.task import make_task
from weft.plans import registry
from weft.plans.derive import derive_profile
from weft.plans.plan import Plan
from weft.plans.profile import Profile
from weft.program.timeline import Timeline
from weft.runtime.emulate.forked import warm
from weft.runtime.emulate.pace import emulation
from weft.runtime.run.jobs import Settings
from weft.runtime.run.launch import Place, open_crew
from weft.runtime.run.recovery.clone import Clone, units_weigh
from weft.runtime.run.run import Run
from weft.runtime.wire.closing import Closing
from weft.runtime.wire.messages import Spans
from weft.simulate.price import priced
from weft.strategies.stitchnet.copies import copied


class Served(Closing):
    """A network spread over a fleet that answers calls until it is closed."""

    def __init__(
        self, plan: Plan, run: Run, stack: contextlib.ExitStack, inputs: dict[int, Tensor]
    ) -> None:
        self.plan = plan
        self._run = run
        self._stack = stack
        self._inputs = inputs
        self._next = 0

    def __call__(self, x: Tensor) -> Tensor:
        """The network's output for a batch of the planned size."""
        return self.stream([x])[0]

    def stream(self, batches: Sequence[Tensor]) -> list[Tensor]:
        """Outputs for several batches, one after the other without a pause between them."""
        for x in batches:
            if len(x) != self.plan.batch:
                raise InputError(
                    f"{len(x)} samples given, but the plan is for batch {self.plan.batch}"
                )
        first, last = self._next, self._next + len(batches)
        self._inputs.update(zip(range(first, last), batches, strict=True))
        outcome = self._run.steps(first, last)
        self._next = last
        for step in range(first, last):
            self._inputs.pop(step, None)
        output = self._run.graph.output
        dim = self._run.graph.values[output].batch_dim or 0
        pieces = range(self.plan.micro_batches)
        return [
            torch.cat([outcome.answers[step, m][output] for m in pieces], dim)
            for step in range(first, last)
        ]

    def timeline(self) -> tuple[Timeline, dict[str, Spans]]:
        return self._run.timeline()

    def close(self) -> None:
        self._stack.close()


def serve(
    model: nn.Module,
    example_input: Tensor,
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
) -> Served:
    """Plans, opens the fleet and loads the weights; the result answers calls. Close it after use."""
    place = Place(local, netns, (join,) if isinstance(join, str) else tuple(join or ()),
                  group=group, config=config)  # fmt: skip
    if batch is None:
        batch = plan.batch if plan else len(example_input)
    if batch < 1:
        raise InputError(f"batch {batch} is not allowed; it must be at least 1")
    if place.emulated:
        warm()
    graph = capture(model, example_input, name=name)
    state = state_of(model)
    paced: frozenset[str] = frozenset()
    if place.emulated:
        measured = emulation(graph, state, fleet, batch=batch, training=False, given=profile)
        profile, paced = measured.profile, measured.paced
    elif profile is None:
        profile = derive_profile(graph, fleet)
    if plan is None:
        task = make_task(profile, fleet, batch=batch, mode="infer", options=options, graph=graph)
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
    inputs: dict[int, Tensor] = {}
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
                lambda step: ({graph.inputs[0]: inputs[step]}, None),
                recovery=Clone() if plan.swarm is not None else None,
            )
        )
        run.prepare()
        return Served(plan, run, opening.pop_all(), inputs)


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
