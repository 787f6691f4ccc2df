"""A node's own numbers for Prometheus: `weft node --metrics 9100`. docs/web.md has the names.

    with serve_metrics(9100, keys, lambda: node_samples(node)) as server: ...

Without keys only this machine can read them. With the fleet's keys every address of this machine answers, by
TLS, and only to a scraper that shows a certificate of the fleet which was not revoked.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import torch

from weft.errors import InputError
from weft.runtime.keys.folder import Folder, Keys
from weft.runtime.node.probing.machine import free_memory_mb
from weft.runtime.wire.reach import is_loopback
from weft.version import __version__

if TYPE_CHECKING:
    from weft.runtime.node.node import Node

Sample = tuple[str, Mapping[str, str], float]
ANSWER_S = 5.0  # for a scraper to send something
WHOLE_S = 10.0  # for all of a request and its answer
HELP = {
    "weft_node_info": "1; the labels say which node it is",
    "weft_node_busy": "1 if the node takes part in a run",
    "weft_node_minibatches_done": "Minibatches of the current run that the node has done",
    "weft_node_cpu_seconds_total": "CPU time of the node since it was started",
    "weft_node_resident_bytes": "The largest resident memory of the node so far",
    "weft_node_free_memory_bytes": "Memory that programs may still take on this device",
    "weft_node_up_seconds_total": "Seconds since the node was started",
    "weft_node_run_messages": "Messages of the current run, by what came of them",
    "weft_node_bad_commands_total": "Commands that could not be decoded and were dropped",
}


def exposition(words: Mapping[str, str], samples: Iterable[Sample]) -> str:
    """The text that Prometheus reads, one block for each name of `words`."""
    by_name: dict[str, list[str]] = {name: [] for name in words}
    for name, labels, value in samples:
        text = ",".join(f'{key}="{_escaped(word)}"' for key, word in labels.items())
        by_name[name].append(f"{name}{{{text}}} {value:.10g}")
    lines = []
    for name, rows in by_name.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        if rows:
            lines += [f"# HELP {name} {words[name]}", f"# TYPE {name} {kind}", *rows]
    return "\n".join(lines) + "\n"


def _escaped(word: str) -> str:
    return word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def node_samples(node: Node, since: float) -> Iterator[Sample]:
    """All that a node knows of itself. `since` is when it was started, by the monotonic clock."""
    label = {"node": node.name, "group": node.group}
    yield "weft_node_info", {**label, "version": __version__, "torch": str(torch.__version__)}, 1.0
    yield "weft_node_busy", label, float(node.assignment.job is not None)
    if node.assignment.done is not None:
        yield "weft_node_minibatches_done", label, float(node.assignment.done)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    yield "weft_node_cpu_seconds_total", label, usage.ru_utime + usage.ru_stime
    yield "weft_node_resident_bytes", label, usage.ru_maxrss * 1024.0
    if free := free_memory_mb():
        yield "weft_node_free_memory_bytes", label, free * 2**20
    yield "weft_node_up_seconds_total", label, time.monotonic() - since
    for kind, count in sorted(dict(node.fabric.counts).items()):
        yield "weft_node_run_messages", {**label, "kind": kind}, float(count)
    yield "weft_node_bad_commands_total", label, float(node.bad_commands)


class _Server(HTTPServer):
    """Answers one scraper after the other, so that nobody can make it start many threads."""

    allow_reuse_address = True
    context: ssl.SSLContext | None = None
    keys: Keys | None = None
    text: Callable[[], str]

    def get_request(self) -> tuple[socket.socket, Any]:
        plain, address = super().get_request()
        plain.settimeout(ANSWER_S)
        if self.context is None:
            return plain, address
        # The handshake happens at the first read, within the same time.
        wrapped = self.context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
        return wrapped, address

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Somebody who sends a byte now and then keeps others away, but not for long."""
        end = threading.Timer(WHOLE_S, _hang_up, (request,))
        end.daemon = True
        end.start()
        try:
            super().finish_request(request, client_address)
        finally:
            end.cancel()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A scraper that breaks off, or has no certificate, is no event."""


def _hang_up(request: socket.socket) -> None:
    with contextlib.suppress(OSError):
        socket.socket.shutdown(request, socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = ANSWER_S

    def do_GET(self) -> None:
        if words := self._refusal():
            self.send_error(403, "not allowed", words)
            return
        known = self.path.partition("?")[0] == "/metrics"
        body = self.server.text().encode() if known else b"the numbers are at /metrics\n"
        self.send_response(200 if known else 404)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _refusal(self) -> str:
        if self.server.keys is not None:
            return _not_of_the_fleet(self.connection, self.server.keys)
        # A page of a browser on this machine may ask under a name of its own.
        host = self.headers.get("Host", "")
        name = urlsplit(f"//{host}").hostname or ""
        return "" if is_loopback(name) else f"{host[:80]!r} is not a name of this machine"

    def log_message(self, format: str, *args: object) -> None:
        pass  # a scrape every few seconds is no news


@contextlib.contextmanager
def serve_metrics(port: int, keys: Keys | None, text: Callable[[], str]) -> Iterator[str]:
    """Answers at the yielded address while the block runs. InputError where the port is taken."""
    host = "127.0.0.1" if keys is None else "0.0.0.0"
    try:
        server = _Server((host, port), _Handler)
    except OSError as error:
        raise InputError(
            f"--metrics {port}: cannot listen on {host}, port {port}: {error.strerror or error}; "
            "give another port"
        ) from None
    if keys is not None:
        server.context, server.keys = _context(keys), keys
    server.text = text
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    scheme = "http" if keys is None else "https"
    try:
        yield f"{scheme}://{host}:{server.server_address[1]}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(ANSWER_S)


def _not_of_the_fleet(connection: Any, keys: Keys) -> str:
    """Why who shows this certificate may not read the numbers; "" if it may. The handshake knows no list: a
    certificate that was revoked passes it. The newest list counts, also while a run is under way."""
    shown = dict(word for words in connection.getpeercert()["subject"] for word in words)
    subject = str(shown.get("commonName", ""))
    members = Folder(keys.members.fleet).members().opened()
    known = next((d.name for d in members.devices if d.subject == subject), "")
    return members.verdict(subject, known)


def _context(keys: Keys) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(Path(keys.certificate), Path(keys.key))
    context.load_verify_locations(keys.authority)
    context.verify_mode = ssl.CERT_REQUIRED
    return context
