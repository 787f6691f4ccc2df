"""Measures a node's effective speed, and its links to others."""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

import torch
from torch import nn

from weft.errors import InputError, LostDevice
from weft.runtime.wire import messages as msg
from weft.runtime.wire import topics as keys

PROBE_S = 10.0  # for one exchange with a peer
MAX_PROBE_BYTES = 16 << 20


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


def probe_link(session: Any, group: str, command: msg.ProbeLink) -> msg.Probed:
    """Measures a link: the latency by the quickest of a few small exchanges, the rate by the quickest large
    one."""
    if not 0 < command.bytes <= MAX_PROBE_BYTES:
        raise InputError(f"a probe of {command.bytes} bytes; 1 to {MAX_PROBE_BYTES} are allowed")
    small = min(_exchange(session, group, command.peer, b"") for _ in range(5))
    data = os.urandom(command.bytes)
    large = min(_exchange(session, group, command.peer, data) for _ in range(3))
    return msg.Probed(latency_s=small / 2, bytes_per_s=command.bytes / max(large - small, 1e-6))


def _exchange(session: Any, group: str, peer: str, data: bytes) -> float:
    start = time.monotonic()
    replies = session.get(keys.echo(group, peer), payload=msg.pack(msg.Echo(data)), timeout=PROBE_S)
    if not [reply for reply in replies if reply.ok is not None]:
        raise LostDevice(peer, f"{peer} did not answer a probe of {len(data)} bytes in {PROBE_S} s")
    return time.monotonic() - start
