"""Coverage-guided fuzzing of everything that decodes bytes from the network, and of the limits of a job.

It needs the package atheris, which Weft does not install: `pip install atheris`. It changes inputs so that
they reach new lines of Weft, begins with valid messages, and stops at the first error that nobody expects.

python benchmarks/fuzz_guided.py [SECONDS]
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

try:
    import atheris

    watched = atheris.instrument_imports(include=["weft.runtime", "weft.codecs", "weft.stored"])
except ImportError:  # `main` says so
    atheris, watched = None, contextlib.nullcontext()

with watched:
    from proofs.fuzz import _commands, _headers, _reports
    from weft.errors import InputError
    from weft.runtime.keys.invite import MARK, read_invite
    from weft.runtime.keys.members import SignedMembers
    from weft.runtime.wire import keeper
    from weft.runtime.wire import messages as msg
    from weft.runtime.wire.carrier import tickets
    from weft.runtime.wire.carrier.caller import Caller, Gone
    from weft.runtime.wire.carrier.pool import Pool
    from weft.runtime.wire.carrier.records import LENGTHS, Opener
    from weft.runtime.wire.frames import (
        BadMessage,
        Header,
        pack_header,
        unpack_header,
        unpack_tensors,
    )
    from weft.runtime.wire.job_limits import check_job
    from weft.runtime.wire.limits import check_run, check_servers, check_test_network
    from weft.runtime.wire.seal import RunSecret
    from weft.stored import tensors_in


def one(data: bytes) -> None:
    """One input, to every decoder. Only the errors that callers expect may come out."""
    with contextlib.suppress(BadMessage, InputError):
        checked(msg.unpack_command(data))
    for decode in (msg.unpack_reply, msg.unpack_report):
        with contextlib.suppress(BadMessage):
            decode(data)
    with contextlib.suppress(BadMessage):
        header = unpack_header(data)
        unpack_tensors(header, bytes(min(header.bytes, 1 << 16)))
    for decoder in (keeper._questions, keeper._answers):
        with contextlib.suppress(InputError):
            keeper._decoded(decoder, data)
    with contextlib.suppress(InputError):
        SignedMembers(data, b"").opened()
    with contextlib.suppress(InputError):
        tensors_in(data)
    for unpack in (tickets.unpack_question, tickets.unpack_ticket):
        with contextlib.suppress(BadMessage):
            unpack(data)
    for key in (b"", bytes(32)):
        on_a_connection(data, key)
    with contextlib.suppress(InputError):
        read_invite(MARK + data.decode("latin-1"))


class Bytes:
    """As much of a socket as a caller reads from: all that there is, and then nothing."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def recv_into(self, view: memoryview) -> int:
        part, self._data = self._data[: len(view)], self._data[len(view) :]
        view[: len(part)] = part
        return len(part)


def on_a_connection(data: bytes, key: bytes) -> None:
    """Whatever comes on a connection with a ticket, in clear and encrypted."""
    greeting = bytes(tickets.GREETING_BYTES)
    connection: Any = Bytes(greeting + data)
    caller = Caller(connection, lambda caller, data: Opener(key), Pool(), 0)
    with contextlib.suppress(BadMessage, Gone):
        while True:
            caller.read(admitted, lambda header, payload: None, lambda size: size < 1 << 16)


def admitted(packed: bytes, size: int) -> Header | None:
    header = unpack_header(packed)
    return header if header.bytes == size else None


def checked(command: msg.Command) -> None:
    """What a node does first with a command."""
    match command:
        case msg.Assign():
            check_job(command.job)
        case msg.Run():
            check_run(command, 1000.0)
        case msg.TestNetwork():
            check_test_network(command)
        case msg.ProbeServers():
            check_servers(command.servers)


def main() -> None:
    if atheris is None:
        sys.exit("fuzz_guided.py needs the package atheris: pip install atheris")
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 600
    with tempfile.TemporaryDirectory() as corpus:
        valid = [msg.pack(m) for m in (*_commands(RunSecret().keys("v1")), *_reports())]
        headers = [pack_header(header) for header in _headers()]
        records = [LENGTHS.pack(len(header), 16) + header + bytes(16) for header in headers]
        questions = [tickets.ask("fuzz", "pi", "v1", bytes(32))]
        state = [save({"w": torch.zeros(2, 3), "n": torch.tensor(4)}), save({})]
        for number, data in enumerate([*valid, *headers, *records, *questions, *state]):
            (Path(corpus) / str(number)).write_bytes(data)
        options = [f"-max_total_time={seconds}", "-max_len=8192", "-rss_limit_mb=4096"]
        atheris.Setup([sys.argv[0], *options, corpus], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
