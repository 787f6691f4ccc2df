"""What must hold for every plan, its program and its price.

    examine(draw)         # an Outcome: refused with a reason, or planned; and what was violated

Each check is a function of a Planned. It yields a sentence for everything that is wrong.
"""

from __future__ import annotations

import math
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from weft.errors import InputError, WeftError
from weft.loom.computing import computes_the_same
from weft.loom.draw import Draw
from weft.loom.planned import Outcome, Planned, Violation, task_of, where
from weft.planning.decide import decide, simulate_plan
from weft.plans import registry
from weft.plans.plan import Plan
from weft.program.instructions import Send
from weft.program.lower.lower import lower
from weft.program.memory import memory_bytes
from weft.program.validate import validate
from weft.simulate.price import price
from weft.simulate.simulate import simulate

CLOSE = 1e-6  # relative: sums in another order
SETTLING = 1e-2  # relative: with minibatches in flight, and in rounds, the first few differ
NOT_SLOWER = 1.001


def examine(draw: Draw) -> Outcome:
    """Plans, lowers, simulates and checks a draw."""
    try:
        task = task_of(draw)
        plan = decide(draw.strategy, task)
    except WeftError as error:
        if not str(error).strip():
            return Outcome(violations=(Violation("refusal", "the refusal has no words"),))
        return Outcome(refused=str(error))
    except Exception as error:
        return Outcome(violations=(Violation("exception", where(error)),))
    try:
        program = lower(plan)
        timeline = simulate(program, steps=1)
        planned = Planned(draw, task, plan, program, timeline)
        found = tuple(
            Violation(name, says) for name, check in CHECKS.items() for says in check(planned)
        )
    except Exception as error:
        found = (Violation("after planning", where(error)),)
    return Outcome(violations=found, plan=plan)


def flows(it: Planned) -> Iterator[str]:
    """The program runs to its end and fits into memory."""
    try:
        validate(it.program)
    except WeftError as error:
        yield str(error)


def survives_json(it: Planned) -> Iterator[str]:
    """A plan file holds the same plan, which lowers to the same program and simulates alike."""
    with tempfile.TemporaryDirectory(prefix="loom-") as folder:
        path = Path(folder) / "plan.json"
        it.plan.save(path)
        read = Plan.load(path)
        if read != it.plan:
            fields = it.plan.__struct_fields__
            odd = [f for f in fields if getattr(read, f) != getattr(it.plan, f)]
            yield f"the plan read from its file differs in {', '.join(odd)}"
        elif lower(read).code != it.program.code:
            yield "the plan read from its file has another program"
        try:
            again = simulate_plan(path, steps=1)[1]
        except InputError as error:
            yield f"`weft simulate` refuses the plan's own file: {error}"
            return
        if again.step_ends != it.timeline.step_ends:
            yield f"its file simulates to {again.step_ends}, the plan to {it.timeline.step_ends}"


def mistakes_are_refused(it: Planned) -> Iterator[str]:
    """A wrong value of an option is refused."""
    if it.draw.wrong in it.draw.options:
        yield f"--set {it.draw.wrong}={it.draw.options[it.draw.wrong]} is accepted"


def runs_as_asked(it: Planned) -> Iterator[str]:
    """A codec or a route that the user gave is the plan's own."""
    for key in ("codec", "input_codec", "route"):
        if key == "input_codec" and it.plan.peers is not None:
            continue  # peers send no samples
        asked, planned = it.draw.options.get(key), getattr(it.plan, key)
        if asked not in (None, planned):
            yield f"--set {key}={asked} was given, the plan has {planned}"


def prints(it: Planned) -> Iterator[str]:
    """The plan can be shown."""
    if it.plan.strategy not in str(it.plan):
        yield "the plan's table does not name its strategy"


def deterministic(it: Planned) -> Iterator[str]:
    """The same task gives the same plan."""
    again = decide(it.draw.strategy, task_of(it.draw))
    first, second = (msgspec.structs.replace(plan, planning_s=0.0) for plan in (it.plan, again))
    odd = [f for f in first.__struct_fields__ if getattr(first, f) != getattr(second, f)]
    if odd:
        yield f"planned again, it differs in {', '.join(odd)}"


def priced_right(it: Planned) -> Iterator[str]:
    """The price is that of the program. It is finite, and not below the time of any device or channel
    alone."""
    predicted = it.plan.predicted
    assert predicted is not None
    seconds = predicted.seconds
    if not math.isfinite(seconds) or seconds < 0:
        yield f"the price is {seconds} s"
        return
    if predicted != price(it.plan):
        yield "priced again, the plan has another price"
    rest = it.program.beat > 1 or it.program.max_lag > 0
    for place, least in lower_bounds(it):
        if seconds < least * (1 - (SETTLING if rest else CLOSE)):
            yield f"it takes {seconds:.6g} s, but {place} alone {least:.6g} s"
    if seconds == 0 and any(least > 0 for _, least in lower_bounds(it)):
        yield "the price is 0 s"


def lower_bounds(it: Planned) -> Iterator[tuple[str, float]]:
    """The seconds for which the program alone keeps each device and each channel busy."""
    predicted, plan = it.plan.predicted, it.plan
    assert predicted is not None
    if plan.peers is not None and plan.peers.late == "newest":
        return  # peers do not wait: the price is that of the median peer
    if plan.swarm is not None and plan.swarm.slot_ms:
        return  # the clock ends a slot: a message that has not arrived by then counts as lost
    yield from predicted.compute_s.items()
    radio = plan.swarm is not None
    rates: dict[str, float] = {}
    for hop in plan.fleet.hops():
        rate = hop.bytes_per_s / (1 - hop.loss) if radio else hop.bytes_per_s
        rates[hop.channel] = max(rate, rates.get(hop.channel, 0.0))
    for channel, size in predicted.transfer_bytes.items():
        yield channel, size / rates[channel]


def bytes_as_planned(it: Planned) -> Iterator[str]:
    """Bytes by channel are those of the program's sends, and those of the simulated transfers."""
    predicted = it.plan.predicted
    assert predicted is not None
    if it.plan.swarm is not None:
        return  # packets are sent several times on several paths: the swarm's tests count them
    sums: dict[str, float] = defaultdict(float)
    for device, code in it.program.code.items():
        for i in code:
            if isinstance(i, Send):
                for hop in it.plan.fleet.route(device, i.dest):
                    sums[hop.channel] += i.bytes / i.every
    wanted = {channel: round(size) for channel, size in sums.items()}
    if wanted != predicted.transfer_bytes:
        yield f"predicted {predicted.transfer_bytes}, the program sends {wanted}"
    if it.program.beat == 1 and it.program.max_lag == 0:
        crossed: dict[str, int] = defaultdict(int)
        for span in it.timeline.spans:
            if span.what == "transfer":
                crossed[span.where] += span.bytes
        if dict(crossed) != {c: size for c, size in wanted.items() if c in crossed or size}:
            yield f"the simulator moved {dict(crossed)}, planned are {wanted}"


def memory_holds(it: Planned) -> Iterator[str]:
    """Memory is predicted for every device with work, is enough for its weights, and is available."""
    predicted = it.plan.predicted
    assert predicted is not None
    need = predicted.memory_bytes
    if need != memory_bytes(it.plan):
        yield "the predicted memory is not that of the plan"
    missing = [device for device in it.plan.devices if device not in need]
    if missing:
        yield f"no memory is predicted for {', '.join(missing)}"
    for device, size in need.items():
        limit = it.plan.fleet.device(device).memory_mb
        if size < 0 or (limit is not None and size > limit * 1e6):
            yield f"{device} needs {size} bytes, has {limit} MB"
    for shard in it.plan.shards:
        if shard.part.units or shard.part.classes or it.plan.rounds:
            continue
        first, last = shard.layers
        weights = sum(layer.param_bytes for layer in it.plan.profile.layers[first : last + 1])
        if need.get(shard.device, 0) < weights:
            yield f"{shard.device} needs {need.get(shard.device)} bytes, its weights take {weights}"


def plus_not_slower(it: Planned) -> Iterator[str]:
    """The strategy with a plus is not slower than the paper's strategy with the same codecs."""
    plan, faithful = it.plan, it.draw.strategy.removesuffix("+")
    if faithful == it.draw.strategy or faithful not in registry.names():
        return
    if plan.swarm is not None or plan.peers is not None:
        return  # these trade time for what is learned; their own tests compare that
    known = registry.get(faithful).options
    options = {key: value for key, value in it.draw.options.items() if key in known}
    options |= {"codec": plan.codec, "input_codec": plan.input_codec}
    if it.draw.options.get("objective") == "throughput" and "micro_batches" in known:
        options["micro_batches"] = str(plan.micro_batches)  # a stream: frames one by one
    task = task_of(msgspec.structs.replace(it.draw, options=options))
    try:
        other = registry.make_plan(faithful, task)
    except WeftError:
        return
    seconds = task.price(msgspec.structs.replace(other, gradient_codec=plan.gradient_codec))
    if it.seconds > seconds * NOT_SLOWER:
        yield f"{plan.strategy} takes {it.seconds:.6g} s, {faithful} {seconds:.6g} s"


CHECKS: dict[str, Callable[[Planned], Iterator[str]]] = {
    "mistake": mistakes_are_refused,
    "as asked": runs_as_asked,
    "program": flows,
    "price": priced_right,
    "bytes": bytes_as_planned,
    "memory": memory_holds,
    "json": survives_json,
    "print": prints,
    "same plan": deterministic,
    "plus": plus_not_slower,
    "computes": computes_the_same,
}
