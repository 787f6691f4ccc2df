"""The work of `weft node`: opens a node and serves until it is told to stop."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import torch

from weft.errors import WeftError
from weft.graph.accelerator import PLAIN, Compute
from weft.runtime.keys.folder import Folder
from weft.runtime.node.memory import save_memory
from weft.runtime.node.node import Node
from weft.runtime.wire.beacon import Beacon, fleet_id
from weft.runtime.wire.session import Endpoints, parts_of

REOPEN_S = 10.0
LEAVE_S = 0.9  # from a signal to the end of the process, whatever the node is doing


def serve_node(
    name: str,
    endpoints: Endpoints,
    *,
    group: str = "weft",
    tether: bool = False,
    scratch: Path | None = None,
    ready: Callable[[Node], None] | None = None,
    findable: bool = False,
    metrics_port: int | None = None,
    told: Callable[[str], None] = lambda address: None,
    compute: Compute = PLAIN,
) -> None:
    """Blocks until SIGINT or SIGTERM or, with `tether`, until standard input closes.

    `findable`: it answers when the fleet is looked for.
    `metrics_port` is a port for the node's numbers; `told` gets its address.
    """
    torch.set_num_threads(1)  # many processes with spinning threads would slow down two cores
    sys.setswitchinterval(0.001)  # a message must not wait long for a thread that computes
    save_memory()
    # Imported objects stay alive, so the garbage collector need not check them again.
    gc.freeze()
    gc.set_threshold(20_000)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: _leave(stop))
    if tether:
        threading.Thread(target=_leave_with_parent, args=(stop,), daemon=True).start()
    patience_s, since = 0.0, time.monotonic()
    while not stop.is_set():
        with (
            _opened(partial(Node, name, endpoints, group, scratch, compute), patience_s) as node,
            _metrics(node, metrics_port, endpoints, since) as address,
            _beacon(name, group, endpoints if findable else None),
        ):
            if ready:
                ready(node)
                if address:
                    told(address)
            node.serve(stop)
        endpoints, ready, patience_s = _again(endpoints), None, REOPEN_S


def _beacon(
    name: str, group: str, endpoints: Endpoints | None
) -> contextlib.AbstractContextManager[object]:
    """Answers for those who look for the fleet, if the node may be found and has a port to tell."""
    if endpoints is None or endpoints.config is not None or not endpoints.listen:
        return contextlib.nullcontext()
    port = int(parts_of(endpoints.listen[0])[2].split("#")[0])
    wide = endpoints.keys is not None
    return Beacon(name, fleet_id(group, endpoints.keys), port, wide=wide)


def _metrics(
    node: Node, port: int | None, endpoints: Endpoints, since: float
) -> contextlib.AbstractContextManager[str]:
    """The node's port for Prometheus, if it has one."""
    if port is None:
        return contextlib.nullcontext("")
    from weft.runtime.node import metrics  # few nodes need it

    return metrics.serve_metrics(
        port,
        endpoints.keys,
        lambda: metrics.exposition(metrics.HELP, metrics.node_samples(node, since)),
    )


def _opened(make: Callable[[], Node], patience_s: float) -> Node:
    """A node. The port that it had a moment ago may not be free at once."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return make()
        except WeftError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.2)


def _again(endpoints: Endpoints) -> Endpoints:
    """How a node opens its session again, after the list of its fleet has changed: with the same port."""
    keys = endpoints.keys
    if keys is None:
        return endpoints
    known = endpoints.known or endpoints.join
    newest = Folder(keys.members.fleet).keys(keys.name)
    return msgspec.structs.replace(endpoints, keys=newest, join=(), known=known)


def _leave(stop: threading.Event) -> None:
    """Ends the node, and the process at the latest after LEAVE_S: a node has nothing to save."""
    if not stop.is_set():
        stop.set()
        last = threading.Timer(LEAVE_S, os._exit, args=(0,))
        last.daemon = True
        last.start()


def _leave_with_parent(stop: threading.Event) -> None:
    """Ends this process when the parent ends: the parent holds the other end of standard input."""
    while os.read(0, 4096):
        pass
    stop.set()
    threading.Timer(4.0, os._exit, args=(1,)).start()  # even if something hangs while it ends
