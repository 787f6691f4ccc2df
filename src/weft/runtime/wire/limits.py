"""What a node takes from the network: every size, count and time is checked before anything is taken.

    check_test_network(network)       # InputError names the value and the limit
    log_lines = Seldom(log)           # a stranger who sends junk does not fill the log
    log_lines.warning("dropped %s", what)

The limits are far above what a run needs, and far below what a machine has. Those of a job are in
`job_limits.py`.
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
from weft.errors import InputError, printable
from weft.graph.network import Batch, Node, State
from weft.graph.operators.calls import LITERAL
from weft.runtime.wire.messages import Exchange, Job, Run, TestNetwork

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
MAX_LINKS = 256  # channels of one device; each has a thread
MAX_STEPS = 1_000_000_000  # minibatches of a run
MAX_SAMPLES = 1 << 24  # of a minibatch
MAX_DEADLINE_S = 24 * 3600.0
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


def check_run(command: Run, now: float) -> None:
    """Raises InputError for minibatches that no run reaches, or that begin on another day."""
    check_count("minibatches", command.last, MAX_STEPS)
    check_count("minibatches before the last one", command.first, command.last)
    check_time("a start", command.start, now + MAX_DEADLINE_S)


def check_servers(servers: Mapping[str, Exchange]) -> None:
    """Raises InputError for a command that probes too many servers, or for too long."""
    check_count("servers", len(servers), MAX_SERVERS)
    for name, exchange in servers.items():
        check_name("server", name)
        for seconds in (exchange.ping_s, exchange.train_s, exchange.data_s):
            check_time("a probe", seconds, MAX_DEADLINE_S)
        check_time("filling a link", exchange.fill_s, MAX_FILL_S)
        check_count("rounds of a probe", exchange.rounds, MAX_ROUNDS)
        check_count("bytes of a probe", exchange.bytes, MAX_TEST_BYTES)


def check_test_network(network: TestNetwork) -> None:
    """Raises InputError for a test network with large weights or inputs. `results.py` checks its results."""
    segment = network.segment
    check_count("operators", len(segment.nodes), MAX_NODES)
    check_time("a pace", network.pace_s, MAX_DEADLINE_S)
    check_count("samples", network.samples, 1 << 20)
    size = sum(state_bytes(state) for state in segment.state.values())
    for value in segment.inputs.values():
        samples = 1 if value.batch_dim is None else network.samples
        size += samples * state_bytes(State(value.shape, value.dtype))
    check_count("bytes of a test network", size, MAX_TEST_BYTES)
    check_sizes(segment.nodes, network.samples)


def check_nodes(nodes: Sequence[Node], samples: int) -> None:
    """Raises InputError for a network with too many operators, or with one whose result is too large."""
    check_count("operators", len(nodes), MAX_NODES)
    check_sizes(nodes, samples)


def job_bytes(job: Job) -> int:
    """The bytes of a job's weights and buffers."""
    return sum(state_bytes(s) for segment in job.segments for s in segment.state.values())


def state_bytes(state: State) -> int:
    """The bytes of one tensor; InputError where its shape or type is impossible."""
    if len(state.shape) > 16 or any(n < 0 for n in state.shape):
        raise InputError(f"a tensor of shape {state.shape[:16]} is not allowed")
    return math.prod(state.shape) * torch_dtype(state.dtype).itemsize


def check_memory(
    tensors: Mapping[str, Tensor], weights: Mapping[str, State], kept: set[str], in_flight: int = 0
) -> None:
    """Raises InputError where an optimizer's tensors belong to no weight, or are larger than it. Each
    minibatch in flight may have a version of a weight."""
    counts: dict[str, int] = {}
    for name in kept | tensors.keys():
        weight = name.rpartition("/")[0]
        counts[weight] = counts.get(weight, 0) + 1
    for name, tensor in tensors.items():
        weight = name.rpartition("/")[0]
        if weight not in weights:
            raise InputError(f"the optimizer's {name[:80]} belongs to no shard")
        check_count(f"tensors of {weight[:80]}", counts[weight], MAX_COPIES + in_flight)
        most = 2 * state_bytes(weights[weight]) + 1024
        check_count(f"bytes of the optimizer's {name[:80]}", tensor.nbytes, most)


# Operators whose single numbers say how large their result is.
_COUNTING = ("arange", "linspace", "eye", "_indices", "randperm", "one_hot", "repeat_interleave")


def check_sizes(nodes: Iterable[Node], samples: int) -> None:
    """A list of numbers in an operator's arguments may be the shape of its result. A literal has its numbers
    first. What grows with the samples may be as large as this machine's memory."""
    for node in nodes:
        counts = any(word in node.op for word in _COUNTING)
        for argument in (*node.args[node.op == LITERAL :], *node.kwargs.values()):
            sizes = argument if isinstance(argument, list) else [argument] if counts else []
            numbers = (n.times * samples + n.plus if isinstance(n, Batch) else n for n in sizes)
            size = math.prod(n for n in numbers if isinstance(n, int) and n > 0)
            grows = any(isinstance(n, Batch) for n in sizes)
            most = max(MAX_ELEMENTS, memory_bytes() // 4) if grows else MAX_ELEMENTS
            check_count(f"elements of {node.op[:60]}", size, most)


def check_name(what: str, name: str) -> None:
    """Raises InputError for a name that is too long, or that means something to the network or to files."""
    if not NAME.fullmatch(name):
        raise InputError(f"the {what} {name[:80]!r}; 1 to 64 letters, digits, _ or - are allowed")


def check_count(what: str, count: int, most: int) -> None:
    """Raises InputError for a number that is negative or above its limit."""
    if count < 0:
        raise InputError(f"{count} {what}; it cannot be negative")
    if count > most:
        raise InputError(f"{count} {what}; this node takes {most} at most")


def check_time(what: str, seconds: float, most: float) -> None:
    """Raises InputError for a time or a rate that is no number, is negative, or is above its limit."""
    if math.isnan(seconds) or not 0 <= seconds <= most:
        raise InputError(f"{what} of {seconds:g}; 0 to {most:g} are allowed")


class Seldom:
    """Writes a few lines to a log in a period, and then only how many were left out."""

    def __init__(self, log: logging.Logger, lines: int = 10, period_s: float = 10.0) -> None:
        self._log, self._lines, self._period_s = log, lines, period_s
        self._guard = threading.Lock()
        self._begun, self._count = -math.inf, 0

    def exception(self, text: str, *values: object) -> None:
        """The same with the error that is being handled, and where it comes from."""
        self.warning(text, *values, error=True)

    def warning(self, text: str, *values: object, error: bool = False) -> None:
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
            self._log.warning(text, *(_in_a_line(value) for value in values), exc_info=error)


def _in_a_line(value: object) -> str:
    """Another device's words: they cannot command a terminal, and write no lines of their own."""
    return printable(str(value)[:300]).replace("\n", " ")
