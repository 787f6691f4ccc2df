"""What a node takes from the network: every size, count and time is checked before anything is taken.

    check_job(job)                    # InputError names the value and the limit
    log_lines = Seldom(log)           # a stranger who sends junk does not fill the log
    log_lines.warning("dropped %s", what)

The limits are far above what a run needs, and far below what a machine has.
"""

from __future__ import annotations

import logging
import math
import os
import re
import threading
import time
from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from weft.dtypes import torch_dtype
from weft.errors import InputError
from weft.graph.network import Node, State
from weft.graph.operators.calls import LITERAL
from weft.runtime.wire.messages import Exchange, Job, TestNetwork

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
MAX_LINKS = 256  # channels of one device; each has a thread
MAX_DEADLINE_S = 24 * 3600.0
MAX_CODE = 1_000_000  # instructions
MAX_NODES = 100_000  # operators of a job
MAX_ELEMENTS = 1 << 28  # of a tensor whose size a job writes down
MAX_TEST_BYTES = 256 << 20  # weights and results of a test network
MAX_SERVERS = 256  # probed by one command
MAX_ROUNDS = 1000  # exchanges of one kind in a probe
MAX_FILL_S = 10.0  # for which a probe fills a link
MAX_COPIES = 16  # tensors that an optimizer keeps for one weight


def memory_bytes() -> int:
    """The memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def check_job(job: Job) -> None:
    """Raises InputError for a job that asks for more than a node gives."""
    _check_name("run", job.run)
    if job.lineage:
        _check_name("lineage", job.lineage)
    for link in job.roads.links:
        _check_name("neighbour", link.neighbour)
        _check_time("a link's rate", link.bytes_per_s, math.inf)
        _check_time("a link's latency", link.latency_s, MAX_DEADLINE_S)
    for place in job.roads.next_hop.values():
        _check_name("next hop", place)
    _check_count("links", len(job.roads.links), MAX_LINKS)
    _check_count("destinations", len(job.roads.next_hop), 4 * MAX_LINKS)
    _check_count("instructions", len(job.code), MAX_CODE)
    _check_count("rounds", job.tail, 10_000)
    if job.deadline_s <= 0:
        raise InputError(f"a deadline of {job.deadline_s:g} s; it must be above 0")
    _check_time("a deadline", job.deadline_s, MAX_DEADLINE_S)
    for pace in job.pace:
        _check_time("a pace", pace, MAX_DEADLINE_S)
    _check_count("operators", sum(len(s.nodes) for s in job.segments), MAX_NODES)
    _check_count("bytes of weights", job_bytes(job), memory_bytes())
    for segment in job.segments:
        _check_sizes(segment.nodes)


def check_servers(servers: Mapping[str, Exchange]) -> None:
    """Raises InputError for a command that probes too many servers, or for too long."""
    _check_count("servers", len(servers), MAX_SERVERS)
    for name, exchange in servers.items():
        _check_name("server", name)
        for seconds in (exchange.ping_s, exchange.train_s, exchange.data_s):
            _check_time("a probe", seconds, MAX_DEADLINE_S)
        _check_time("filling a link", exchange.fill_s, MAX_FILL_S)
        _check_count("rounds of a probe", exchange.rounds, MAX_ROUNDS)
        _check_count("bytes of a probe", exchange.bytes, MAX_TEST_BYTES)


def check_test_network(network: TestNetwork) -> None:
    """Raises InputError for a test network with large weights or inputs. `results.py` checks its results."""
    segment = network.segment
    _check_count("operators", len(segment.nodes), MAX_NODES)
    _check_time("a pace", network.pace_s, MAX_DEADLINE_S)
    _check_count("samples", network.samples, 1 << 20)
    size = sum(state_bytes(state) for state in segment.state.values())
    for value in segment.inputs.values():
        samples = 1 if value.batch_dim is None else network.samples
        size += samples * state_bytes(State(value.shape, value.dtype))
    _check_count("bytes of a test network", size, MAX_TEST_BYTES)
    _check_sizes(segment.nodes)


def check_nodes(nodes: Sequence[Node]) -> None:
    """Raises InputError for a network with too many operators, or with one whose result is too large."""
    _check_count("operators", len(nodes), MAX_NODES)
    _check_sizes(nodes)


def job_bytes(job: Job) -> int:
    """The bytes of a job's weights and buffers."""
    return sum(state_bytes(s) for segment in job.segments for s in segment.state.values())


def state_bytes(state: State) -> int:
    """The bytes of one tensor; InputError where its shape or type is impossible."""
    if len(state.shape) > 16 or any(n < 0 for n in state.shape):
        raise InputError(f"a tensor of shape {state.shape[:16]} is not allowed")
    return math.prod(state.shape) * torch_dtype(state.dtype).itemsize


def check_memory(
    tensors: Mapping[str, Tensor], weights: Mapping[str, State], kept: set[str]
) -> None:
    """Raises InputError where an optimizer's tensors belong to no weight, or are larger than it."""
    counts: dict[str, int] = {}
    for name in kept | tensors.keys():
        weight = name.rpartition("/")[0]
        counts[weight] = counts.get(weight, 0) + 1
    for name, tensor in tensors.items():
        weight = name.rpartition("/")[0]
        if weight not in weights:
            raise InputError(f"the optimizer's {name[:80]} belongs to no shard")
        _check_count(f"tensors of {weight[:80]}", counts[weight], MAX_COPIES)
        most = 2 * state_bytes(weights[weight]) + 1024
        _check_count(f"bytes of the optimizer's {name[:80]}", tensor.nbytes, most)


# Operators whose single numbers say how large their result is.
_COUNTING = ("arange", "linspace", "eye", "_indices", "randperm", "one_hot", "repeat_interleave")


def _check_sizes(nodes: Iterable[Node]) -> None:
    """A list of numbers in an operator's arguments may be the shape of its result. A literal has its numbers
    first."""
    for node in nodes:
        counts = any(word in node.op for word in _COUNTING)
        for argument in (*node.args[node.op == LITERAL :], *node.kwargs.values()):
            sizes = argument if isinstance(argument, list) else [argument] if counts else []
            size = math.prod(n for n in sizes if isinstance(n, int) and n > 0)
            _check_count(f"elements of {node.op[:60]}", size, MAX_ELEMENTS)


def _check_name(what: str, name: str) -> None:
    if not NAME.fullmatch(name):
        raise InputError(f"the {what} {name[:80]!r}; 1 to 64 letters, digits, _ or - are allowed")


def _check_count(what: str, count: int, most: int) -> None:
    if count > most:
        raise InputError(f"{count} {what}; this node takes {most} at most")


def _check_time(what: str, seconds: float, most: float) -> None:
    if math.isnan(seconds) or not 0 <= seconds <= most:
        raise InputError(f"{what} of {seconds:g}; 0 to {most:g} are allowed")


class Seldom:
    """Writes a few lines to a log in a period, and then only how many were left out."""

    def __init__(self, log: logging.Logger, lines: int = 10, period_s: float = 10.0) -> None:
        self._log, self._lines, self._period_s = log, lines, period_s
        self._guard = threading.Lock()
        self._begun, self._count = -math.inf, 0

    def warning(self, text: str, *values: object) -> None:
        """Writes a line, if there were not too many already."""
        now = time.monotonic()
        with self._guard:
            left_out = 0
            if now - self._begun > self._period_s:
                left_out = max(0, self._count - self._lines)
                self._begun, self._count = now, 0
            self._count += 1
            write = self._count <= self._lines
        if left_out:
            self._log.warning("%d more such lines were left out", left_out)
        if write:
            self._log.warning(text, *(str(value)[:300] for value in values))
