"""A member of the fleet that turned bad answers the owner: nobody else suffers, and it speaks for itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
import zenoh

from tests.runtime.keys.lab import FLEET, LONG_S, Lab, open_config, until
from weft.runtime.keys import certificates
from weft.runtime.keys.folder import Folder
from weft.runtime.keys.owner import revoke
from weft.runtime.wire import keeper
from weft.runtime.wire.crew import Crew
from weft.runtime.wire.reach import reach
from weft.runtime.wire.revoking import hand_out
from weft.runtime.wire.session import free_endpoint

QUESTION = msgspec.msgpack.encode(keeper.AskNumber())


@contextmanager
def answering(lab: Lab, answer: keeper.Answer, times: int = 1) -> Iterator[tuple[str, ...]]:
    """pi turned bad: it answers the fence with whatever it likes, in its own name and in nuc's. What is
    yielded are the endpoints of the fleet."""
    where = free_endpoint().removeprefix("tcp/")

    def reply(query: Any) -> None:
        with query:
            for _ in range(times):
                query.reply(f"{FLEET}/fence/pi", msgspec.msgpack.encode(answer))
            if "*" in str(query.key_expr):
                query.reply(f"{FLEET}/fence/nuc", msgspec.msgpack.encode(answer))

    config = open_config(lab, "pi")
    keys = Folder(FLEET).keys("pi")
    config.insert_json5("listen/endpoints", msgspec.json.encode([f"tls/{where}"]).decode())
    for name, file in (("private_key", keys.key), ("certificate", keys.certificate)):
        config.insert_json5(f"transport/link/tls/listen_{name}", msgspec.json.encode(file).decode())
    with zenoh.open(config) as session:
        queryable = session.declare_queryable(f"{FLEET}/fence/pi", reply, complete=True)
        yield (*lab.join, f"tls/{where}")
        queryable.undeclare()


def owner(join: tuple[str, ...]) -> Crew:
    return Crew(reach(FLEET, join=join), FLEET)


def heard(crew: Crew) -> None:
    """Returns when both answer."""
    crew.wait_for(("nuc",), LONG_S)
    key = f"{FLEET}/fence/*"
    until(lambda: {str(r.ok.key_expr) for r in crew.session.get(key, payload=QUESTION, timeout=1.0) if r.ok}
          >= {f"{FLEET}/fence/nuc", f"{FLEET}/fence/pi"})  # fmt: skip


@pytest.mark.parametrize("certificate", [b"junk", b"foreign"])
def test_a_bad_member_s_certificate_keeps_nobody_else_from_the_owner(
    lab: Lab, certificate: bytes
) -> None:
    """Seen: an answer with a certificate of another fleet ended the owner's command."""
    if certificate == b"foreign":
        other = certificates.new_authority("other")
        certificate = certificates.new_pair(other, "pi.1").certificate
    with (
        answering(lab, keeper.Number("pi", 1, False, False, certificate)) as asked,
        lab.crew() as crew,
    ):
        crew.wait_for(("nuc",), LONG_S)
        until(lambda: bool(asked))
        crew.settle(("nuc",), LONG_S)
        assert crew._keeper is not None
        crew._keeper.look()


def test_a_member_answers_for_itself_alone_and_once(lab: Lab) -> None:
    """Seen: it said that others had taken the owner's list."""
    lab.member("away")
    number = lab.folder.members().opened().number + 1
    with answering(lab, keeper.Number("away", number + 9), times=500) as join, owner(join) as crew:
        heard(crew)
        answers = keeper.ask(crew.session, f"{FLEET}/fence/*", keeper.AskNumber())
        assert [answer.name for answer in answers if isinstance(answer, keeper.Number)] == ["nuc"]
        assert "away" not in hand_out(reach(FLEET, join=join), revoke(lab.folder, "away"), 1.0)
