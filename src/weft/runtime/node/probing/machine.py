"""What a node measures of itself: its effective speed, and the layers of a network that it is sent.

    measure_layers(MeasureLayers(graph, sizes=(8, 32)))     # LayersMeasured

Links, and what a message costs, are measured between two nodes (`prober`).
"""

from __future__ import annotations

import hashlib
import os
import platform
import statistics
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from weft.codecs.times import measure_codecs
from weft.dtypes import torch_dtype
from weft.graph.accelerator import PLAIN, Compute
from weft.graph.measure import measure
from weft.graph.network import State
from weft.runtime.node.memory import give_back, keep_memory, peak_bytes, status_bytes
from weft.runtime.node.results import check_results
from weft.runtime.wire.limits import check_nodes, memory_bytes, state_bytes
from weft.runtime.wire.measuring import LayersMeasured, MeasureLayers, check_measuring

ROOM = 4  # a measurement may take a fourth of this machine's memory


def probe_compute(rounds: int = 5) -> float:
    """Effective GFLOPS of a training step of a small convolutional network, one thread."""
    torch.set_num_threads(1)
    net = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1))
    x = torch.randn(8, 3, 32, 32)
    forward = 2 * 8 * 32 * 32 * 32 * (3 * 9 + 32 * 9)
    backward = 2 * forward - 2 * 8 * 32 * 32 * 32 * 3 * 9
    times = []
    for _ in range(rounds + 1):
        start = time.thread_time()
        net(x).sum().backward()
        times.append(time.thread_time() - start)
    return (forward + backward) / statistics.median(times[1:]) / 1e9


def cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_memory_mb(root: Path = Path("/")) -> float:
    """Memory that programs may still take here, by the kernel and by the limit of this process's group of
    processes (a container has one). 0 where the system does not say."""
    free = 0.0
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        (available,) = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
        free = int(available) / 1024
        group = root / "sys/fs/cgroup"
        most, used = ((group / f"memory.{name}").read_text() for name in ("max", "current"))
        if most.strip() != "max":
            free = min(free, max(0, int(most) - int(used)) / 2**20)
    except (OSError, ValueError):
        pass  # no such system, or no such limit
    return free


def measure_layers(command: MeasureLayers, compute: Compute = PLAIN) -> LayersMeasured:
    """Times each layer here by the wall clock, and each codec. InputError where it would take too much time
    or memory."""
    graph, room = command.graph, memory_bytes() // ROOM
    check_measuring(command, room, sum(state_bytes(state) for state in graph.state.values()))
    check_nodes([node for layer in graph.layers for node in layer.nodes], max(command.sizes))
    whole = graph.segment(0, len(graph.layers) - 1)
    check_results(whole, max(command.sizes), room)
    before = _forget_peak()
    keep_memory(free_memory_mb() * 2**20)  # as a run does
    try:
        times = measure(
            graph, drawn_state(graph.state), batch=max(command.sizes), sizes=command.sizes,
            repeats=command.repeats, training=command.training, optimizer=command.optimizer,
            rest_s=command.rest_s, wall=True, budget_s=command.budget_s,
            compute=compute,
        )  # fmt: skip
        taken = max(0, peak_bytes() - before) if before else 0
        return LayersMeasured(times, taken, measure_codecs(compute.threads))
    finally:
        give_back()


def drawn_state(states: Mapping[str, State], seed: int = 0) -> dict[str, Tensor]:
    """Weights and buffers at random: the speed of a network does not depend on what it has learned."""
    generator = torch.Generator().manual_seed(seed)
    drawn = {}
    for name, info in states.items():
        kind = torch_dtype(info.dtype)
        if not kind.is_floating_point:
            drawn[name] = torch.zeros(info.shape, dtype=kind)
            continue
        values = torch.randn(info.shape, generator=generator).to(kind) * 0.05
        drawn[name] = values if info.trainable else values.abs()  # a variance is not negative
    return drawn


def host_id() -> str:
    """A name for this machine that all of its nodes give, and that says nothing else about it."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        text = platform.node()
    return hashlib.sha256(text.strip().encode()).hexdigest()[:16]


def _forget_peak() -> int:
    """Makes the peak of this process's memory its present size; returns that. 0 where it is not known."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return 0
    return status_bytes("VmRSS")
