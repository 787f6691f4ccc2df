"""One cell of the matrix: a strategy and a feature, really run and checked for what they promise.

prove("chain", "a device dies")        words on what was seen; Broken where the promise does not hold
refused("coopai", "adapt")             the refusal comes before anything is started
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

import weft
from proofs import served
from proofs.case import Broken, check
from proofs.subjects import (
    BATCH,
    RULE,
    SEED,
    Loss,
    Subject,
    alone,
    furthest,
    pairs,
    squares,
    subject,
)
from weft.errors import InputError, WeftError
from weft.fleet.faults import Faults
from weft.fleet.trace import Moment, Trace
from weft.planning.decide import load_plan
from weft.plans import registry
from weft.plans.protocols import CLONE, GO_BACK, PEERS, Feature
from weft.runtime.emulate.local import LocalFleet
from weft.runtime.run.results import TrainResult
from weft.runtime.wire.crew import Crew

SAME, REPLANNED, CODED = 1e-5, 1e-4, 0.05
SLOWER = 3.0
LOOKS = 10


def train(name: str, over: Subject | None = None, **asked: Any) -> TrainResult:
    """The strategy's own subject, trained on an emulated fleet here."""
    it = over or subject(name)
    options = {**it.options, **asked.pop("options", {})}
    given: dict[str, Any] = {"steps": it.steps, "fleet": it.fleet, "strategy": name, "data": it.data,
                             "loss": nn.CrossEntropyLoss(), "keep_every": 5}  # fmt: skip
    given |= asked
    if "plan" in asked:
        del given["fleet"], given["strategy"]
    data, loss = given.pop("data"), given.pop("loss")
    return weft.train(
        it.model(), data, loss, batch=BATCH, optimizer=RULE, seed=SEED, local=True, deadline=30.0,
        options=options, **given,
    )  # fmt: skip


def is_whole(
    result: TrainResult, name: str, tolerance: float = SAME, loss: Loss | None = None
) -> str:
    """Every minibatch was done; where the mathematics is that of one process, the weights are equal."""
    done, asked = len(result.losses), result.steps - result.first
    # A device that dies takes with it the losses that it had not reported yet.
    least = asked // 2 if "device_lost" in kinds(result) else asked
    check(least <= done <= asked, f"{done} losses of {asked} minibatches")
    check(all(math.isfinite(x) for x in result.losses), "a loss is not finite")
    failed = [e for e in result.events if e["kind"] == "advice_failed"]
    check(not failed, f"advice failed: {failed}")
    if registry.get(name).workload == PEERS:
        return f"accuracy {result.test_accuracy}"
    codecs = {result.plan.codec, *registry.get(name).options.get("codec", "").split(":")[:1]}
    limit = CODED if "int8" in codecs else tolerance
    off = furthest(result.model, alone(result.steps, loss or nn.functional.cross_entropy))
    check(off <= limit, f"weights are {off:.2g} from those of one process; {limit:.0e} is allowed")
    return f"off by {off:.1e}"


def kinds(result: TrainResult) -> list[str]:
    return [event["kind"] for event in result.events]


# --- features ---------------------------------------------------------------------------------------


def adapt(name: str) -> str:
    """A server becomes much slower on the way. The run may change its plan, and stays what it was."""
    slow = [Moment(0.5, device=d, slowdown=4.0) for d in ("nuc", "cloud")]
    result = train(name, adapt=True, look_every=LOOKS, steps=60, trace=Trace(tuple(slow)))
    return f"{is_whole(result, name, REPLANNED)}; {len(result.events)} events"


def trace(name: str) -> str:
    """All devices are slower from the first moment on, and so the run takes longer than it was planned for.
    (A run that watches its devices predicts anew what it then sees.)"""
    it = subject(name)
    planned = weft.plan(it.model(), pairs(0)[0], it.fleet, strategy=name, batch=BATCH,
                        options=it.options, optimizer=RULE.name)  # fmt: skip
    moments = tuple(Moment(0.0, device=d, slowdown=SLOWER) for d in it.fleet.names)
    result = train(name, trace=Trace(moments))
    assert planned.predicted is not None
    ratio = result.seconds / result.steps / planned.predicted.seconds
    check(
        ratio > (1 + SLOWER) / 2, f"a step takes {ratio:.2f} times what was planned, not {SLOWER}"
    )
    return f"{is_whole(result, name, REPLANNED)}; a step takes {ratio:.1f} times the planned time"


def own_loss(name: str) -> str:
    return is_whole(train(name, loss=squares), name, REPLANNED, loss=squares)


def own_data(name: str) -> str:
    fed: set[int] = set()

    def mine(step: int) -> Any:
        fed.add(step)
        return pairs(step)

    result = train(name, data=mine)
    check(fed >= set(range(result.steps)), "some minibatches were never asked for")
    return is_whole(result, name, REPLANNED)


def save_and_resume(name: str) -> str:
    """Half of the run, then the other half in a new fleet: as if it had been one."""
    steps = subject(name).steps
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        train(name, steps=steps // 2, out=out, save_every=5)
        result = train(name, steps=steps, out=out, save_every=5, resume=True)
    check(result.first == steps // 2, f"it went on from minibatch {result.first}")
    return is_whole(result, name, REPLANNED)


def plan_file(name: str) -> str:
    """A plan that was saved and read again trains, or answers, as its strategy does."""
    record, it = registry.get(name), subject(name)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        if "train" not in record.modes:
            return _answers(name, path)
        first = train(name)
        first.plan.save(path)
        second = train(name, plan=load_plan(path))
    same = furthest(second.model, first.model.state_dict())
    if record.exact or record.workload != PEERS:
        check(same <= REPLANNED, f"by plan and by strategy the weights are {same:.2g} apart")
    check(second.plan.strategy == first.plan.strategy == name, "another strategy ran")
    return f"{is_whole(second, name, REPLANNED)}; {it.steps} steps twice"


def _answers(name: str, path: Path) -> str:
    it = subject(name)
    model, x = it.model().eval(), pairs(0)[0]
    weft.plan(model, x, it.fleet, strategy=name, batch=BATCH, mode="infer").save(path)
    plan = load_plan(path)
    with torch.no_grad(), weft.serve(model, x, plan.fleet, plan=plan, local=True) as net:
        off = float((net(x) - model(x)).abs().max())
    check(off <= SAME, f"the answer is {off:.2g} from the whole network's")
    return f"answers off by {off:.1e}"


def dies(name: str) -> str:
    """Killed by force on the way: the run ends with all of its minibatches."""
    result = _faulty(name, Faults().kill(step=12), steps=60)
    return f"{result.faults[0].device} killed; {_recovered(result, name)}"


def silent(name: str) -> str:
    """The device stays connected and says nothing. Who only waits for slots of time goes on without it."""
    slots = {"slot_ms": "20"} if registry.get(name).recovery == CLONE else {}
    script = Faults().silence(step=12, for_s=2.5 if slots else 4.0)
    result = _faulty(name, script, steps=100 if slots else 60, options=slots)
    device, seen = result.faults[0].device, kinds(result)
    if slots:
        check("device_silent" in seen, f"nobody noted that {device} is silent: {seen}")
        return f"{device} stopped; {seen}"
    return f"{device} stopped; {_recovered(result, name)}"


def comes_back(name: str) -> str:
    """Killed, and started again: it gets a part again, where the strategy has one for it."""
    # Long enough for a new process to start, and for the run to look for it, on a busy machine.
    steps = 170 if registry.get(name).workload == PEERS else 340
    result = _faulty(name, Faults().kill(step=12).restart(step=25), steps=steps)
    fault, seen = result.faults[0], kinds(result)
    if fault.had_part:
        check("device_joined" in seen, f"nobody noted that {fault.device} is back: {seen}")
    return f"{fault.device} back; {_recovered(result, name)}"


def _faulty(name: str, script: Faults, **asked: Any) -> TrainResult:
    if registry.get(name).online is not None:
        asked["look_every"] = LOOKS
    result = train(name, faults=script, **asked)
    came, planned = len(result.faults), len(script.fault)
    check(came == planned, f"{came} of {planned} faults came before the run was over")
    return result


def _recovered(result: TrainResult, name: str) -> str:
    record, seen, fault = registry.get(name), kinds(result), result.faults[0]
    if fault.had_part:
        check("device_lost" in seen, f"nobody noted the loss of {fault.device}: {seen}")
        check(record.workload == PEERS or "recovered" in seen, f"nobody recovered: {seen}")
    done = max(result.done.values())  # where nobody waits, some end earlier than others
    check(done == result.steps - 1, f"the run ended with minibatch {done}")
    if record.recovery != GO_BACK:  # what was not yet reported may be lost
        return f"{seen}"
    return f"{is_whole(result, name, REPLANNED)}; {seen}"


RUNS: dict[Feature, Callable[[str], str]] = {
    "adapt": adapt,
    "trace": trace,
    "own loss": own_loss,
    "own data": own_data,
    "save and resume": save_and_resume,
    "plan file": plan_file,
    "a device dies": dies,
    "falls silent": silent,
    "comes back": comes_back,
}


def prove(name: str, feature: Feature) -> str:
    torch.set_num_threads(1)
    if "train" not in registry.get(name).modes and feature in served.RUNS:
        return served.RUNS[feature](name)
    return RUNS[feature](name)


# --- refusals ---------------------------------------------------------------------------------------

# How each feature that can be asked for is asked for. The others happen to a run.
ASKED: dict[Feature, Callable[[Path], dict[str, Any]]] = {
    "adapt": lambda _: {"adapt": True},
    "trace": lambda _: {"trace": Trace((Moment(0.0, device="desk", slowdown=2.0),))},
    "own loss": lambda _: {"loss": squares},
    "own data": lambda _: {"data": pairs},
    "save and resume": lambda folder: {"out": folder / "run", "save_every": 5},
}


@contextmanager
def nothing_starts() -> Iterator[None]:
    """Broken where a fleet or a crew is opened meanwhile."""
    enter, make = LocalFleet.__enter__, Crew.__init__

    def started(*_: Any, **__: Any) -> Any:
        raise Broken("something was started")

    LocalFleet.__enter__, Crew.__init__ = started, started  # type: ignore[method-assign]
    try:
        yield
    finally:
        LocalFleet.__enter__, Crew.__init__ = enter, make  # type: ignore[method-assign]


def refused(name: str, feature: Feature) -> str:
    """What can be asked for is refused with its reason; what happens to a run has a reason in words."""
    why = registry.get(name).refuses[feature]
    check(len(why.split()) > 3, f"{why!r} says too little")
    if feature not in ASKED:
        return why
    it = subject(name)
    data = "digits" if isinstance(it.data, str) or feature == "own data" else it.data
    with tempfile.TemporaryDirectory() as folder, nothing_starts():
        try:
            train(
                name, Subject(it.fleet, it.model, data, it.options), **ASKED[feature](Path(folder))
            )
        except InputError as error:
            check(why in str(error), f"another reason was given: {error}")
            check(not any(Path(folder).iterdir()), "a folder was made")
            return why
        except WeftError as error:
            raise Broken(f"refused by another error than InputError: {error}") from error
    raise Broken("it was not refused")
