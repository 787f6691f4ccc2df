"""Opens Zenoh sessions: where a process listens, what it connects to, and whether shared memory may be
used."""

from __future__ import annotations

import atexit
import json
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import zenoh
from msgspec import Struct

from weft.errors import InputError, WeftError
from weft.runtime.keys import fence
from weft.runtime.keys.folder import Keys
from weft.runtime.keys.handshake import why_refused
from weft.runtime.wire.frames import MAX_PAYLOAD


class Endpoints(Struct, frozen=True, omit_defaults=True):
    """How a process joins the fleet."""

    listen: tuple[str, ...] = ()  # e.g. "tcp/0.0.0.0:7447"; empty: any free port
    join: tuple[str, ...] = ()  # e.g. "tcp/192.0.2.7:7447"
    multicast: bool = False  # look for others on the local network
    gossip: bool = True  # learn about further nodes from connected nodes
    asks_only: bool = False  # opens no port: for a process that talks to nodes but is no node
    shared_memory: bool = False  # several times faster between processes of one machine;
    # must be off if links are emulated, because it bypasses them
    config: str | None = None  # a Zenoh configuration file (TLS, access control)
    keys: Keys | None = None  # of the fleet: everything is then mutual TLS
    known: tuple[str, ...] = ()  # nodes to join when they are there


# One thread for all of Zenoh's work instead of five pools, which would pass every message between them. This
# takes a quarter less CPU time per message. Zenoh reads it when the first session opens.
ONE_THREAD = (
    "("
    + ", ".join(f"{pool}: (handover: app)" for pool in ("rx", "acc", "tx", "net"))
    + (", app: (worker_threads: 1))")
)


# How often a node tries again to join one that is not there.
CONNECT_MS = 2500  # until a node to join must have answered
RETRY = {"period_init_ms": 250, "period_max_ms": 2000, "period_increase_factor": 2}


def open_session(endpoints: Endpoints) -> Any:
    """A Zenoh peer. Errors say which endpoint could not be used and why."""
    os.environ.setdefault("ZENOH_RUNTIME", ONE_THREAD)
    config = _config(endpoints)
    for endpoint in endpoints.listen:
        check_free(endpoint)
    if endpoints.keys is not None:
        check_admitted(endpoints.join, endpoints.keys)
    try:
        session = zenoh.open(config)
    except zenoh.ZError as error:
        nobody = "Unable to connect" in str(error) and endpoints.config is None
        if nobody and endpoints.join and endpoints.keys is None:
            raise WeftError(_no_answer(endpoints.join)) from None
        asked = ", ".join([*endpoints.listen, *endpoints.join]) or "any free port"
        raise WeftError(f"cannot open the network on {asked}: {_first(error)}") from None
    _sessions[:] = [one for one in _sessions if not one.is_closed()] + [session]
    return session


_sessions: list[Any] = []  # that are open, or were not long ago


@atexit.register
def _close_all() -> None:
    """Closes what is still open when the interpreter ends: a message that arrives after that would crash it.
    Sessions have no Python threads (their callbacks are direct), so the interpreter does come to this."""
    for session in _sessions:
        if not session.is_closed():
            session.close()


def check_admitted(join: Sequence[str], keys: Keys) -> None:
    """Raises WeftError with the reason if none of these nodes lets this machine in."""
    reasons = {endpoint: why_refused(endpoint, keys) for endpoint in join}
    if reasons and all(reasons.values()):
        words = "; ".join(f"{endpoint} refused {keys.name}: {r}" for endpoint, r in reasons.items())
        raise WeftError(f"cannot join fleet {keys.members.fleet}: {words}")


def _no_answer(join: Sequence[str]) -> str:
    """Why nodes did not answer in plain TCP: they speak TLS, or nobody is there."""
    closed = [e for e in join if why_refused(e, None).startswith("it wants a certificate")]
    if closed:
        return (
            f"cannot join the fleet: {', '.join(closed)} wants a certificate, and this machine has no "
            "keys of that fleet: the owner makes some with `weft keys invite NAME`"
        )
    return (
        f"no node answers at {', '.join(join)} within {CONNECT_MS / 1e3:g} s. Is `weft node` running there, "
        f"and its port open? `weft doctor --join {join[0]}` looks"
    )


def _config(endpoints: Endpoints) -> Any:
    if endpoints.config:
        if not Path(endpoints.config).is_file():
            raise InputError(f"Zenoh configuration {endpoints.config}: no such file")
        try:
            config = zenoh.Config.from_file(endpoints.config)
        except zenoh.ZError as error:
            raise InputError(f"Zenoh configuration {endpoints.config}: {_first(error)}") from None
    else:
        config = zenoh.Config()
    settings: dict[str, Any] = {
        "mode": "peer",
        "scouting/multicast/enabled": endpoints.multicast,
        "scouting/gossip/enabled": endpoints.gossip,
        "transport/shared_memory/enabled": endpoints.shared_memory,
        "transport/link/rx/max_message_size": MAX_PAYLOAD,
        "timestamping/enabled": False,
        # A tensor is cut into batches of 64 kB. With room for 16 of them (the default is 2) and a
        # larger receive buffer a 1 MB message takes half the CPU time: fewer hand-overs.
        "transport/link/tx/queue/size/data": 16,
        "transport/link/rx/buffer_size": 256 * 1024,
    }
    if endpoints.listen:
        settings["listen/endpoints"] = list(endpoints.listen)
    elif endpoints.asks_only or (endpoints.config and _says_nothing(config)):
        # If a configuration has its own security, no open port may be added to it.
        settings["listen/endpoints"] = []
    elif not endpoints.config:
        settings["listen/endpoints"] = ["tls/[::]:0" if endpoints.keys else "tcp/127.0.0.1:0"]
    if endpoints.keys is not None:
        settings |= fence.settings(endpoints.keys)
    if endpoints.known:
        settings["connect/endpoints"] = list(endpoints.known)
        settings["connect/exit_on_failure"] = False
        settings["connect/retry"] = RETRY
    if endpoints.join:
        settings["connect/endpoints"] = list(endpoints.join)
        settings["connect/timeout_ms"] = CONNECT_MS
        settings["connect/exit_on_failure"] = True
    for key, value in settings.items():
        try:
            config.insert_json5(key, json.dumps(value))
        except zenoh.ZError as error:
            raise InputError(
                f"{value!r} is not a valid {key.replace('/', ' ')}: {_first(error)} "
                "(an endpoint looks like tcp/127.0.0.1:7447)"
            ) from None
    return config


def door_hosts(endpoints: Endpoints) -> tuple[str, ...]:
    """Where a node listens for connections with tensors: at the hosts of its own endpoints.

    Nowhere, where a configuration file has rules of its own, where a node speaks another protocol, or where
    WEFT_LINES=off says so (a firewall may allow one port only): then Zenoh carries everything.
    """
    if os.environ.get("WEFT_LINES") == "off":
        return ()
    own = endpoints.listen or ("tls/[::]:0" if endpoints.keys else "tcp/127.0.0.1:0",)
    parts = [parts_of(endpoint) for endpoint in own]
    expected = "tls" if endpoints.keys else "tcp"
    if endpoints.config or endpoints.asks_only or any(p[0] != expected for p in parts):
        return ()
    return tuple(dict.fromkeys(host.strip("[]") for _, host, _ in parts))


def _says_nothing(config: Any) -> bool:
    """Whether a configuration file does not say where to listen."""
    said = str(config.get_json("listen/endpoints"))
    return said == str(zenoh.Config().get_json("listen/endpoints"))


def parts_of(endpoint: str) -> tuple[str, str, str]:
    """(protocol, host, port). InputError for anything else."""
    protocol, _, rest = endpoint.partition("/")
    host, _, port = rest.rpartition(":")
    if protocol not in ("tcp", "udp", "tls", "quic", "ws") or not port.split("#")[0].isdigit():
        raise InputError(
            f"endpoint {endpoint!r} is not allowed; it must look like 192.0.2.7:7447 "
            "or tcp/127.0.0.1:7447"
        )
    return protocol, host, port


def check_free(endpoint: str) -> None:
    """Raises a clear error if the port is taken. Zenoh itself would only log it and try again."""
    protocol, host, port = parts_of(endpoint)
    if protocol in ("udp", "quic") or port == "0":
        return
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), int(port)))
        except OSError as error:
            raise WeftError(
                f"cannot listen on {endpoint}: {error.strerror or error}; "
                "is another node running there? give another --listen"
            ) from None


def free_endpoint(host: str = "127.0.0.1") -> str:
    """A TCP endpoint that is free at this moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return f"tcp/{host}:{probe.getsockname()[1]}"


def _first(error: Exception) -> str:
    """Zenoh's error message without the position in its source code."""
    return str(error).splitlines()[0].split(" at /")[0][:300]
