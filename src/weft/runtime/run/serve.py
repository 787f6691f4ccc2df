"""Runs a network on a fleet to answer: what is behind `weft infer` and `weft.serve`.

with open_service(model, example_input, fleet, Service(place=Place(local=True))) as net:
    y = net(x)
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from weft.errors import InputError
from weft.fleet.fleet import Fleet
from weft.fleet.trace import Trace
from weft.graph.capture.module import capture_signed, state_of
from weft.graph.capture.signature import Sample, Signature, leaves_of
from weft.graph.network import Graph
from weft.planning.decide import decide
from weft.planning.task import make_task
from weft.plans import registry
from weft.plans.derive import derive_profile
from weft.plans.plan import Objective, Plan
from weft.plans.profile import Profile
from weft.program.timeline import Timeline
from weft.runtime.emulate.forked import warm
from weft.runtime.run.advice import Adviser
from weft.runtime.run.jobs import Settings
from weft.runtime.run.launch import Place, open_crew
from weft.runtime.run.measuring.known import known_profile
from weft.runtime.run.measuring.survey import Say
from weft.runtime.run.pace import emulation
from weft.runtime.run.recovery.ask_again import AskAgain
from weft.runtime.run.recovery.stop import Stop
from weft.runtime.run.serving.answering import Answering, graph_for
from weft.runtime.run.serving.attendants import Attendants, Unchanging, check_outputs, with_copies
from weft.runtime.run.serving.clerk import Clerk, Pieces
from weft.runtime.run.serving.desk import Closed, Desk, Request
from weft.runtime.run.train import OnLoss
from weft.runtime.wire.closing import Closing
from weft.runtime.wire.messages import Spans
from weft.runtime.wire.silence import check_patience

CLOSE_S = 10.0  # for the clerk to notice that the service is closed
CHECK_S = 1.0  # a caller that waits for an answer sees in this time that nobody will give one


@dataclass(frozen=True)
class Service:
    """How a network is served."""

    place: Place = field(default_factory=Place)
    strategy: str | None = None
    plan: Plan | None = None
    batch: int | None = None
    profile: Profile | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    deadline: float = 30.0
    patience: float = 1.0
    on_loss: OnLoss = "recover"
    queue: int = 64  # requests that may wait
    trace: Trace | None = None  # emulated: how the fleet changes
    name: str = ""
    objective: Objective = "time"
    measure: bool = True  # real nodes measure the network where its times are not known yet
    say: Say = lambda text: None  # gets a line about that
    attendants: Callable[..., Attendants] = Attendants  # who plans again when something changes


class Served(Closing):
    """A network spread over a fleet that answers calls until it is closed. Any thread may call it."""

    def __init__(
        self, run: Answering, signature: Signature, stack: contextlib.ExitStack, service: Service
    ) -> None:
        self._run, self._signature, self._stack = run, signature, stack
        self._desk = Desk(service.queue, service.deadline, lambda: run.crew.events.put(None))
        self._clerk = Clerk(
            run, self._desk, self._put_together, service.on_loss == "stop", stack.close
        )

    def start(self) -> None:
        """From now on calls are answered."""
        self._clerk.start()

    @property
    def plan(self) -> Plan:
        """The plan that runs now: another one than at the beginning if devices were lost or became slow."""
        return self._run.plan

    @property
    def events(self) -> list[dict[str, Any]]:
        """What happened: lost devices, new plans, devices that are back. The newest thousand are kept."""
        return list(self._run.events)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the network returns for a batch of the planned size. It is called as the network is."""
        return self._wait(self.submit(*args, **kwargs))

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """Asks without waiting for the answer, which the Future will have. Do not write into the tensors
        before that. Waits only while the queue is full."""
        if args and kwargs:
            raise InputError(
                "positional and keyword inputs are mixed; give the inputs in the form of the example: "
                f"{self._signature.form}"
            )
        request = self._request(args[0] if len(args) == 1 else args or kwargs)
        self._desk.put([request])
        return request.answer

    def stream(self, batches: Sequence[Sample]) -> list[Any]:
        """Answers for several batches, one after the other without a pause between them.

        Each batch has the form of the example input: a tensor, a tuple, or a dict of inputs by keyword.
        """
        requests = [self._request(batch) for batch in batches]
        self._desk.put(requests)
        return [self._wait(request.answer) for request in requests]

    def _request(self, sample: Sample) -> Request:
        """InputError if a batch has another size, or other shapes or types, than the plan is for."""
        inputs = self._signature.named(sample)
        batch = {}
        for name in self._run.graph.inputs:
            tensor, value = inputs[name], self._run.graph.values[name]
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
            if tensor.layout != torch.strided:
                raise InputError(f"input {name} is {tensor.layout}; give a dense tensor")
            batch[name] = tensor.detach().cpu()
        return Request(batch)

    def _wait(self, answer: Future[Any]) -> Any:
        while True:
            try:
                return answer.result(CHECK_S)
            except NotYet:
                if answer.done():
                    return answer.result()
                if not self._clerk.alive:
                    raise self._desk.closed or Closed("the service has ended") from None

    def _put_together(self, pieces: Pieces) -> Any:
        """What the network returns, put together from the answers of the micro-batches."""
        graph = self._run.graph
        tensors = {
            name: torch.cat([piece[name] for piece in pieces], graph.values[name].batch_dim or 0)
            if len(pieces) > 1
            else pieces[0][name]
            for name in graph.outputs
        }
        return self._signature.rebuilt(tensors)

    def timeline(self) -> tuple[Timeline, dict[str, Spans]]:
        """What the devices did when: the newest requests of each."""
        timeline: tuple[Timeline, dict[str, Spans]] = self._wait(self._desk.ask(self._run.timeline))
        return timeline

    def close(self) -> None:
        """Ends the service. Requests without an answer get the error `Closed`."""
        self._desk.close(Closed("the service was closed before this request had an answer"))
        self._clerk.close(CLOSE_S)
        self._stack.close()


def open_service(model: nn.Module, example_input: Sample, fleet: Fleet, service: Service) -> Served:
    """Plans, opens the fleet and loads the weights; the result answers calls. Close it after use."""
    _check(service)
    plan, place, profile = service.plan, service.place, service.profile
    batch = service.batch
    if batch is None:
        batch = plan.batch if plan else len(leaves_of(example_input, "the example input")[0])
    if batch < 1:
        raise InputError(f"batch {batch} is not allowed; it must be at least 1")
    if place.emulated:
        warm()
    graph, signature = capture_signed(model, example_input, name=service.name, mode="infer")
    state = state_of(model)
    paced: frozenset[str] = frozenset()
    if place.emulated:
        measured = emulation(graph, state, fleet, batch=batch, training=False, given=profile)
        profile, paced = measured.profile, measured.paced
    elif profile is None and service.measure:
        profile = known_profile(
            graph, fleet, place, batch=batch, training=False, say=service.say
        ).profile
    elif profile is None:
        profile = derive_profile(graph, fleet)
    if plan is None:
        task = make_task(
            profile, fleet, batch=batch, mode="infer", options=service.options, graph=graph,
            objective=service.objective,
        )  # fmt: skip
        plan = decide(service.strategy or registry.DEFAULT, task)
    if plan.mode != "infer":
        raise InputError(f"this plan of {plan.strategy} is for training, not for inference")
    plan = with_copies(plan, graph, state)
    check_outputs(graph, plan)
    _check_layers(graph_for(plan, graph), plan, batch)
    settings = Settings(
        deadline_s=service.deadline, patience_s=service.patience, paced=paced, trace=service.trace
    )
    adviser: Adviser = Unchanging()
    if service.on_loss == "recover":
        adviser = service.attendants(plan.strategy, plan, profile, service.options, graph, state)
    with contextlib.ExitStack() as opening:
        crew, fitted = opening.enter_context(open_crew(plan, place, settings, adviser.also(plan)))
        recovery = Stop() if service.on_loss == "stop" else AskAgain()
        run = opening.enter_context(
            Answering(crew, plan, graph, state, fitted, recovery=recovery, adviser=adviser)
        )
        run.prepare()
        if service.trace is not None:
            run.start_trace()
        net = Served(run, signature, opening.pop_all(), service)
        net.start()
        return net


def _check(service: Service) -> None:
    check_patience(service.patience)
    if service.deadline <= 0:
        raise InputError(f"deadline {service.deadline} is not allowed; it must be above 0 seconds")
    if service.queue < 1:
        raise InputError(f"queue {service.queue} is not allowed; it must be at least 1")
    if service.trace is not None and not service.place.local:
        raise InputError("a trace is for an emulated fleet: it goes with --local")


def _check_layers(graph: Graph, plan: Plan, batch: int) -> None:
    if len(plan.profile.layers) != len(graph.layers) or plan.batch != batch:
        raise InputError(
            f"the plan is for {len(plan.profile.layers)} layers and batch {plan.batch}; "
            f"this is {len(graph.layers)} layers and batch {batch}"
        )


def latency_s(timeline: Timeline) -> float:
    """Median seconds from loading a batch to having its answer, without the first one. 0: unknown."""
    times = latencies_s(timeline)
    return statistics.median(times[1:] or times or [0.0])


def latencies_s(timeline: Timeline) -> list[float]:
    """Seconds from loading a batch to having its answer, for each batch in order."""
    begin: dict[int, float] = {}
    end: dict[int, float] = {}
    for span in timeline.spans:
        if span.what == "load":
            begin[span.step] = min(begin.get(span.step, span.start), span.start)
        elif span.what == "emit":
            end[span.step] = max(end.get(span.step, span.end), span.end)
    return [end[s] - begin[s] for s in sorted(end) if s in begin]
