"""What a node refuses in a job: everything that would take memory, threads or time without a limit.

    check_job(job)                    # InputError names the value and the limit

A job comes from the network. On a node with keys only the owner can send one; on an open node anybody can.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from weft.errors import InputError
from weft.graph.network import Blank, Loss, Node, Segment, State
from weft.program import instructions as ins
from weft.runtime.wire.limits import (
    MAX_DEADLINE_S,
    MAX_ELEMENTS,
    MAX_LINKS,
    MAX_SAMPLES,
    MAX_STEPS,
    check_count,
    check_name,
    check_nodes,
    check_time,
    job_bytes,
    memory_bytes,
    state_bytes,
)
from weft.runtime.wire.links.changes import Changes
from weft.runtime.wire.links.channel import Roads
from weft.runtime.wire.messages import Data, Job
from weft.runtime.wire.radio import RadioRules

MAX_CODE = 1_000_000  # instructions
MAX_LAG = 200_000  # minibatches that an instruction may be behind
MAX_PACKETS = 256  # that one best-effort message is sent as
MAX_DRAWS = 1 << 24  # packets of one minibatch whose losses are drawn
MAX_ROUNDS = 10_000  # whose weights are kept for their mean
MAX_INTERVALS = 64  # at which copies are made
MAX_LABEL = 256  # letters of a channel's name
MAX_DEALT = 10_000_000  # classes times peers
MAX_SLOWDOWN = 1e6


def check_job(job: Job) -> None:
    """Raises InputError for a job that asks for more than a node gives."""
    check_name("run", job.run)
    if job.lineage:
        check_name("lineage", job.lineage)
    if job.heir:
        check_name("heir", job.heir)
    if job.deadline_s <= 0:
        raise InputError(f"a deadline of {job.deadline_s:g} s; it must be above 0")
    check_time("a deadline", job.deadline_s, MAX_DEADLINE_S)
    check_count("samples in a minibatch", job.batch, MAX_SAMPLES)
    check_count("intervals between copies", len(job.keep_every), MAX_INTERVALS)
    if any(every < 1 for every in job.keep_every):
        raise InputError("copies after every 0 minibatches; at least 1 is needed")
    check_count("minibatches between copies to go back to", job.go_back_every, MAX_STEPS)
    _check_roads(job.roads)
    _check_code(job)
    _check_network(job)
    _check_data(job.data)
    if job.radio is not None:
        _check_radio(job.radio)
    if job.changes is not None:
        _check_changes(job.changes)


def _check_roads(roads: Roads) -> None:
    check_count("links", len(roads.links), MAX_LINKS)
    check_count("destinations", len(roads.next_hop), 4 * MAX_LINKS)
    for link in roads.links:
        check_name("neighbour", link.neighbour)
        check_count("letters of a channel's name", len(link.channel), MAX_LABEL)
        check_time("a link's rate", link.bytes_per_s, math.inf)
        check_time("a link's latency", link.latency_s, MAX_DEADLINE_S)
    for dest, place in roads.next_hop.items():
        check_name("destination", dest)
        check_name("next hop", place)


def _check_code(job: Job) -> None:
    check_count("instructions", len(job.code), MAX_CODE)
    if job.pace and len(job.pace) != len(job.code):
        raise InputError(f"{len(job.pace)} paces for {len(job.code)} instructions")
    for pace in job.pace:
        check_time("a pace", pace, MAX_DEADLINE_S)
    names: set[str] = set()
    for instruction in job.code:
        check_count("minibatches of lag", instruction.lag, MAX_LAG)
        if ins.every(instruction) < 1:
            raise InputError("an instruction at every 0 minibatches; at least 1 is needed")
        match instruction:
            case ins.Load(samples=(first, last)):
                check_count("samples to load", last, MAX_SAMPLES)
                check_count("samples before the last one", first, last)
            case ins.Recv():
                names.add(instruction.source)
                _check_blanks(instruction.blanks, instruction.samples)
            case ins.Miss():
                _check_blanks(instruction.blanks, instruction.samples)
            case ins.Send():
                names.add(instruction.dest)
                if instruction.radio is not None:
                    names |= _check_packets(instruction.radio)
    for name in names:
        check_name("device", name)


def _check_blanks(blanks: Iterable[Blank], samples: int) -> None:
    """What replaces a message that did not arrive is made here."""
    check_count("samples", samples, MAX_SAMPLES)
    for blank in blanks:
        state_bytes(State(blank.shape, blank.dtype))
        check_count("elements of a substitute", samples * math.prod(blank.shape[1:]), MAX_ELEMENTS)


def _check_packets(radio: ins.Radio) -> set[str]:
    """The relay of a message, if it has one."""
    check_count("direct packets", radio.direct, MAX_PACKETS)
    check_count("relayed packets", radio.relayed, MAX_PACKETS)
    return {radio.via} if radio.via else set()


def _check_network(job: Job) -> None:
    size = job_bytes(job)
    check_count("bytes of weights", size, memory_bytes())
    check_count("rounds", job.tail, MAX_ROUNDS)
    check_count("bytes of weights of the last rounds", job.tail * size, memory_bytes())
    losses = [segment.loss for segment in job.segments]
    if job.data.totals is not None:
        losses.append(job.data.totals.loss)
    nodes = [n for segment in job.segments for n in segment.nodes]
    nodes += [n for loss in losses if loss is not None for n in _loss_nodes(loss)]
    check_nodes(nodes, job.batch)
    for segment in job.segments:
        _check_norms(segment)


def _loss_nodes(loss: Loss) -> Iterator[Node]:
    yield from loss.nodes
    if loss.cut is not None:
        yield from loss.cut.nodes
        yield from loss.cut.sums


def _check_norms(segment: Segment) -> None:
    for norm in segment.norms:
        check_count("channels of a norm", norm.channels, MAX_ELEMENTS)


def _check_data(data: Data) -> None:
    check_count("minibatches fed ahead", data.ahead, MAX_LAG)
    check_count("samples in a minibatch", sum(data.shares), MAX_SAMPLES)
    if any(share < 0 for share in data.shares):
        raise InputError("a share of the samples cannot be negative")
    if data.classes is not None:
        sets = data.classes.sets
        check_count("the peer's number", data.classes.peer, max(0, len(sets) - 1))
        check_count("classes of peers", sum(map(len, sets)) * len(sets), MAX_DEALT)


def _check_radio(radio: RadioRules) -> None:
    """The losses of a whole minibatch are drawn at once."""
    count = len(radio.devices)
    for name in radio.devices:
        check_name("device", name)
    for what, number in (("slots", radio.slots), ("attempts", radio.attempts)):
        check_count(what, number, MAX_DRAWS)
    check_count("packets to draw", radio.slots * radio.attempts * count * count, MAX_DRAWS)
    if radio.delivery and {len(radio.delivery), *map(len, radio.delivery)} != {count}:
        raise InputError(f"delivery rates that are not {count} rows of {count}")
    check_time("a slot", radio.slot_s, MAX_DEADLINE_S)
    for worker in radio.workers:
        check_count("the worker's number", worker, max(0, count - 1))


def _check_changes(changes: Changes) -> None:
    check_time("the start of the changes", changes.start, math.inf)  # infinite: not yet
    if not changes.pace or not all(changes.links.values()):
        raise InputError("a change without a single entry")
    check_count("changing links", len(changes.links), 4 * MAX_LINKS)
    for at, slowdown in changes.pace:
        check_time("a time of a change", at, 1e15)
        check_time("a slowdown", slowdown, MAX_SLOWDOWN)
    for states in changes.links.values():
        for state in states:
            check_time("a time of a change", state.at_s, 1e15)
            check_time("a link's rate", state.bytes_per_s, math.inf)
            check_time("a link's latency", state.latency_s, MAX_DEADLINE_S)
