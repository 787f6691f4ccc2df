"""Who is let in: how soon a wrong certificate is refused, and in which words.

python benchmarks/refusals.py
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from weft.errors import WeftError
from weft.runtime.keys import certificates
from weft.runtime.keys.folder import Keys
from weft.runtime.keys.invite import take_invite
from weft.runtime.keys.owner import authority_of, invite, new_fleet, revoke
from weft.runtime.node.node import Node
from weft.runtime.wire.reach import reach
from weft.runtime.wire.session import Endpoints, free_endpoint, open_session

FLEET = "bench-refusals"


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        os.environ["XDG_CONFIG_HOME"] = home
        measure(Path(home))


def measure(home: Path) -> None:
    folder, address = new_fleet(FLEET), free_endpoint().removeprefix("tcp/")
    for name, where in (("nuc", address), ("pi", ""), ("old", "")):
        take_invite(invite(folder, name, where), name)
    join = (f"tls/{address}",)
    revoked = reach(FLEET, name="old", join=join, listen=("127.0.0.1:0",))
    revoke(folder, "old")

    def with_files(name: str, pair: certificates.Pair, authority: bytes = b"") -> Endpoints:
        """pi on another machine, with another certificate."""
        copy = home / name
        shutil.copytree(folder.path, copy)
        (copy / "pi.pem").write_bytes(pair.certificate)
        (copy / "pi.key").write_bytes(pair.key)
        if authority:
            (copy / "authority.pem").write_bytes(authority)
        keys = Keys(str(copy), "pi", folder.members().opened())
        return Endpoints(join=join, asks_only=True, keys=keys)

    other = certificates.new_authority("other")
    foreign = with_files("foreign", certificates.new_pair(other, "pi.1"), other.certificate)
    subject = certificates.subject_of(folder.read("pi.pem"))
    over = certificates.new_pair(authority_of(folder), subject, timedelta(days=-1))
    expired = with_files("expired", over)
    nobody = Endpoints(join=(f"tcp/{address}",), asks_only=True)

    def wrong_name() -> None:
        for end in ("pem", "key"):
            shutil.copy(folder.path / f"pi.{end}", folder.path / f"tv.{end}")
        reach(FLEET, name="tv")

    def serve_revoked() -> None:
        with Node("old", revoked, FLEET) as node:
            node.serve(threading.Event())

    stop = threading.Event()
    with Node("nuc", reach(FLEET, name="nuc"), FLEET) as node:
        threading.Thread(target=node.serve, args=(stop,), daemon=True).start()
        right = reach(FLEET, name="pi", join=join, listen=("127.0.0.1:0",))
        for name, attempt in (
            ("right", lambda: open_session(right).close()),
            ("none", lambda: open_session(nobody).close()),
            ("foreign", lambda: open_session(foreign).close()),
            ("expired", lambda: open_session(expired).close()),
            ("revoked", serve_revoked),
            ("another device's name", wrong_name),
        ):
            print(f"{name:<22} {outcome(attempt)}", flush=True)
        stop.set()


def outcome(attempt: Callable[[], object]) -> str:
    begin = time.monotonic()
    try:
        attempt()
        words = "let in"
    except WeftError as error:
        words = str(error)
    return f"{time.monotonic() - begin:.2f} s  {words}"


if __name__ == "__main__":
    main()
