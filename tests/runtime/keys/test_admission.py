"""Who is let in: one certificate works, five are refused, each with its own words. And a member that turns
bad gets no further than its part."""

from __future__ import annotations

import shutil
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zenoh

from tests.runtime.keys.lab import FLEET, LONG_S, Lab, open_config, serving, until
from weft.errors import InputError, WeftError
from weft.graph.optimizers.optimizer import Optimizer
from weft.runtime.keys import certificates
from weft.runtime.keys.folder import Keys
from weft.runtime.keys.members import SignedMembers
from weft.runtime.keys.owner import authority_of, revoke
from weft.runtime.node.node import Node
from weft.runtime.node.serve import _again
from weft.runtime.wire import keeper
from weft.runtime.wire import messages as msg
from weft.runtime.wire.crew import Crew
from weft.runtime.wire.frames import Header, pack_header
from weft.runtime.wire.links.channel import Roads
from weft.runtime.wire.reach import reach
from weft.runtime.wire.revoking import hand_out
from weft.runtime.wire.seal import RunSecret, seal_header
from weft.runtime.wire.session import Endpoints, free_endpoint, open_session


def copied(lab: Lab, name: str, **files: bytes) -> Keys:
    """The fleet's keys on another machine, with some files replaced."""
    folder = lab.home / name
    shutil.copytree(lab.folder.path, folder)
    for file, data in files.items():
        (folder / file.replace("_", ".")).write_bytes(data)
    return Keys(str(folder), "pi", lab.folder.members().opened())


def test_the_owner_is_let_in(lab: Lab) -> None:
    with lab.crew() as crew:
        crew.wait_for(("nuc",), LONG_S)
        (welcome,) = crew.ask("nuc", msg.Hello(), LONG_S)
        assert isinstance(welcome, msg.Welcome)
        assert welcome.name == "nuc"


def refusal(endpoints: Endpoints) -> str:
    began = time.monotonic()
    with pytest.raises(WeftError) as caught:
        open_session(endpoints)
    words = str(caught.value)
    print(f"{time.monotonic() - began:.2f} s: {words}")
    return words


def test_none_a_foreign_and_an_expired_certificate_are_refused_each_in_its_words(lab: Lab) -> None:
    nobody = Endpoints(join=(f"tcp/{lab.address}",), asks_only=True)
    assert "wants a certificate, and this machine has no keys" in refusal(nobody)
    other = certificates.new_authority("other")
    pair = certificates.new_pair(other, "pi.1")
    foreign = copied(
        lab, "foreign", authority_pem=other.certificate, pi_pem=pair.certificate, pi_key=pair.key
    )
    guest = Endpoints(join=lab.join, asks_only=True, keys=foreign)
    assert "not of this fleet" in refusal(guest)
    half = copied(lab, "half", pi_pem=pair.certificate, pi_key=pair.key)
    words = refusal(Endpoints(join=lab.join, asks_only=True, keys=half))
    assert "does not know this fleet's authority" in words
    subject = certificates.subject_of(lab.folder.read("pi.pem"))
    over = certificates.new_pair(authority_of(lab.folder), subject, timedelta(days=-1))
    expired = copied(lab, "expired", pi_pem=over.certificate, pi_key=over.key)
    late = Endpoints(join=lab.join, asks_only=True, keys=expired)
    assert "this machine's certificate has expired" in refusal(late)


def test_a_revoked_device_is_told_so_by_another_device(lab: Lab) -> None:
    """It has the list of before, and the handshake succeeds: Zenoh knows no revocation."""
    newest = lab.folder.members()
    with (
        Node("old", lab.revoked, FLEET) as node,
        pytest.raises(WeftError, match=r"nuc refused old: .* was revoked by the owner"),
    ):
        node.serve(threading.Event())
    assert lab.folder.members() == newest


def test_a_device_with_another_s_name_is_refused_here_and_there(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = lab.home / "elsewhere"
    shutil.copytree(lab.home / "weft", elsewhere / "weft")
    folder = elsewhere / "weft" / FLEET
    for end in ("pem", "key"):
        shutil.copy(folder / f"pi.{end}", folder / f"nuc.{end}")
    with monkeypatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(elsewhere))
        with pytest.raises(InputError, match="this certificate is that of pi, not of nuc"):
            reach(FLEET, name="nuc")
    # The same without the check on its own machine.
    with open_session(lab.endpoints("pi")) as session:
        now = time.time()
        signature = certificates.sign(
            lab.folder.read("pi.key"), keeper.Introduce.words("nuc", FLEET, now)
        )
        question = keeper.Introduce("nuc", lab.folder.read("pi.pem"), now, signature)
        answers: list[keeper.Answer] = []
        until(lambda: bool(answers.extend(keeper.ask(session, f"{FLEET}/fence/nuc", question))
                           or answers))  # fmt: skip
        assert answers[0] == keeper.Verdict("this certificate is that of pi, not of nuc")


def asked(session: Any, key: str, payload: bytes) -> list[Any]:
    """The answers of nodes: "Timeout" is Zenoh's own."""
    replies = list(session.get(key, payload=payload, timeout=0.3))
    return [r for r in replies if r.ok is not None or r.err.payload.to_bytes() != b"Timeout"]


def test_a_member_that_turns_bad_gets_no_further_than_its_part(lab: Lab) -> None:
    """pi has a valid certificate and keeps to no rule; nuc is in a run of the owner's."""
    secret, captured = RunSecret(), []
    session, spy = (zenoh.open(open_config(lab, "pi")) for _ in range(2))
    with lab.crew() as crew, session, spy:
        crew.wait_for(("nuc",), LONG_S)
        job = msg.Job(
            run="r1", version=0, mode="train", batch=1, layers=1, code=(), segments=(),
            inputs=("x",), optimizer=Optimizer(), roads=Roads(),
        )  # fmt: skip
        # It wants to answer in nuc's name, to be nuc, to hear nuc's data, and to speak for the owner.
        fake = spy.declare_queryable(f"{FLEET}/control/nuc", captured.append)
        token = spy.liveliness().declare_token(f"{FLEET}/alive/ghost/1")
        tapped = spy.declare_subscriber(f"{FLEET}/**", captured.append)
        for evil in (session, spy):
            until(lambda evil=evil: bool(asked(evil, f"{FLEET}/echo/nuc", msg.pack(msg.Echo()))))
        assert crew.ask("nuc", msg.Assign(job), LONG_S) == [msg.Done()]
        for command in (
            msg.Hello(), msg.GetState("r1"), msg.Cancel("r1", "no"), msg.End("r1"), msg.Assign(job),
            msg.ProbeCompute(),
        ):  # fmt: skip
            assert asked(session, f"{FLEET}/control/nuc", msg.pack(command)) == []
            replies = asked(session, f"{FLEET}/echo/nuc", msg.pack(command))
            assert [r.ok for r in replies] == [None]
        header = Header("r1", 0, 0, "act", 0, 0, "owner", "nuc", 1)
        attachment = seal_header(secret.tensors, pack_header(header))
        for sender in ("owner", "coordinator", "nuc"):
            session.put(f"{FLEET}/data/nuc/{sender}/r1", b"x", attachment=attachment)
        for _ in range(3):  # in its own name they arrive, and do not carry the run's key
            session.put(f"{FLEET}/data/nuc/pi/r1", b"x", attachment=attachment)
        forged = SignedMembers(lab.folder.members().body, b"x")
        for question in (
            keeper.TakeList(forged),
            keeper.TakeCertificate(lab.folder.read("pi.pem")),
        ):
            assert keeper.ask(session, f"{FLEET}/fence/nuc", question) == []
        (welcome,) = crew.ask("nuc", msg.Hello(), LONG_S)
        assert isinstance(welcome, msg.Welcome)
        assert welcome.busy
        assert crew.present == ("nuc",)
        assert captured == []
        assert lab.node.fabric.counts == {"forged": 3}
        assert crew.ask("nuc", msg.End("r1"), LONG_S) == [msg.Done()]
        for declared in (fake, token, tapped):
            declared.undeclare()


def test_a_new_device_is_let_in_by_those_that_had_not_heard_of_it(lab: Lab) -> None:
    """nuc opens its session again with the new list, when it is idle; revoking closes the door."""
    endpoints = reach(FLEET, name="nuc", listen=("127.0.0.1:0",))
    with Node("nuc", endpoints, FLEET) as node:
        lab.member("tv")
        assert node._keeper is not None
        node._keeper._take(lab.folder.members())
        node.serve(threading.Event())  # returns: it is outdated and idle
        again = _again(endpoints)
        assert again.keys is not None
        assert again.keys.members.named("tv") is not None
        assert again.listen == endpoints.listen


def test_a_command_waits_until_the_nodes_use_its_list(lab: Lab) -> None:
    """Seen in thought: `weft keys invite` and then `weft train`. The nodes took the new list and opened their
    sessions again, just when the run gave them their jobs."""
    where = free_endpoint().removeprefix("tcp/")
    stop, lives = threading.Event(), []

    def serve() -> None:
        endpoints = reach(FLEET, name="pi", listen=(where,))
        while not stop.is_set():
            with Node("pi", endpoints, FLEET) as node:
                lives.append(node)
                node.serve(stop)
            endpoints = _again(endpoints)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        until(lambda: len(lives) == 1)
        lab.member("radio")
        with Crew(reach(FLEET, join=(f"tls/{where}",)), FLEET) as crew:
            crew.wait_for(("pi",), LONG_S)
            crew.settle(("pi",), LONG_S)
            assert len(lives) == 2
            (welcome,) = crew.ask("pi", msg.Hello(), LONG_S)
            assert isinstance(welcome, msg.Welcome)
    finally:
        stop.set()
        thread.join(LONG_S)


def test_a_zenoh_configuration_of_one_s_own_still_works(lab: Lab, tmp_path: Path) -> None:
    """As printed in docs/runtime.md, with certificates that Weft did not make known to itself."""
    folder = lab.folder.path
    tls = {
        "root_ca_certificate": str(folder / "authority.pem"),
        "listen_private_key": str(folder / "pi.key"),
        "listen_certificate": str(folder / "pi.pem"),
        "connect_private_key": str(folder / "pi.key"),
        "connect_certificate": str(folder / "pi.pem"),
        "enable_mtls": True,
        "verify_name_on_connect": False,
    }
    config = tmp_path / "zenoh.json5"
    link = {"protocols": ["tls"], "tls": tls}
    text = msgspec.json.encode({"transport": {"link": link}, "listen": {"endpoints": []}})
    config.write_bytes(text)
    where = free_endpoint().replace("tcp/", "tls/")
    endpoints = reach("own", name="v1", listen=(where,), config=str(config))
    assert endpoints.keys is None
    with (
        serving(Node("v1", endpoints, "own")),
        Crew(reach("own", join=(where,), config=str(config)), "own") as crew,
    ):
        crew.wait_for(("v1",), LONG_S)
        assert len(crew.ask("v1", msg.Hello(), LONG_S)) == 1


def test_revoking_tells_those_that_are_there_and_names_the_others(lab: Lab) -> None:
    lab.member("thief")
    before = reach(FLEET, join=lab.join)
    assert hand_out(before, revoke(lab.folder, "thief"), 1.0) == {"nuc": False}
    members = lab.folder.members().opened()
    assert members.named("thief") is None
    assert {d.name for d in members.present} >= {"nuc", "pi"}
