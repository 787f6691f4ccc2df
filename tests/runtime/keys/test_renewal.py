"""Certificates near their end are renewed by the owner's commands, and only those that may be renewed."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest

from tests.runtime.keys.lab import FLEET, LONG_S, Lab, serving, until
from weft.errors import InputError
from weft.graph.optimizers.optimizer import Optimizer
from weft.runtime.keys import certificates
from weft.runtime.keys.certificates import Pair
from weft.runtime.keys.owner import authority_of, revoke
from weft.runtime.node.node import Node
from weft.runtime.node.serve import _again
from weft.runtime.wire import keeper
from weft.runtime.wire import messages as msg
from weft.runtime.wire.crew import Crew
from weft.runtime.wire.links.channel import Roads
from weft.runtime.wire.reach import reach
from weft.runtime.wire.session import Endpoints, free_endpoint


def near_its_end(lab: Lab, name: str, days: int = 3) -> Pair:
    """A member whose certificate ends soon."""
    if lab.folder.members().opened().named(name) is None:
        lab.member(name)
    subject = certificates.subject_of(lab.folder.read(f"{name}.pem"))
    pair = certificates.new_pair(authority_of(lab.folder), subject, timedelta(days=days))
    lab.folder.write(f"{name}.pem", pair.certificate)
    lab.folder.write(f"{name}.key", pair.key)
    return pair


def somewhere(name: str) -> tuple[Endpoints, tuple[str, ...]]:
    """How this node is reached, and how others join it."""
    where = free_endpoint().removeprefix("tcp/")
    return reach(FLEET, name=name, listen=(where,)), (f"tls/{where}",)


def test_a_certificate_near_its_end_is_renewed_by_the_owner_s_next_command(lab: Lab) -> None:
    """The device's key does not travel; the node opens its session again with the new certificate."""
    near = near_its_end(lab, "clock")
    endpoints, join = somewhere("clock")
    with Node("clock", endpoints, FLEET) as node:
        thread = threading.Thread(target=node.serve, args=(threading.Event(),), daemon=True)
        thread.start()
        with Crew(reach(FLEET, join=join), FLEET) as crew:  # nothing but its being there
            crew.wait_for(("clock",), LONG_S)
            thread.join(LONG_S)  # it is outdated and idle
        assert not thread.is_alive()
    later = lab.folder.read("clock.pem")
    assert not certificates.expiring(later)
    certificates.check_same_key(later, near.certificate)
    assert lab.folder.read("clock.key") == near.key
    with (
        serving(Node("clock", _again(endpoints), FLEET)),
        Crew(reach(FLEET, join=join), FLEET) as crew,
    ):
        crew.wait_for(("clock",), LONG_S)
        assert len(crew.ask("clock", msg.Hello(), LONG_S)) == 1
    revoke(lab.folder, "clock")


def test_a_node_at_work_takes_its_certificate_and_uses_it_after_the_run(lab: Lab) -> None:
    near = near_its_end(lab, "watch")
    endpoints, join = somewhere("watch")
    job = msg.Job(
        run="r1", version=0, mode="train", batch=1, layers=1, code=(), segments=(), inputs=("x",),
        optimizer=Optimizer(), roads=Roads(),
    )  # fmt: skip
    with Node("watch", endpoints, FLEET) as node:
        assert node._keeper is not None
        renew, node._keeper._take_certificate = node._keeper._take_certificate, lambda _: None  # type: ignore[method-assign]
        thread = threading.Thread(target=node.serve, args=(threading.Event(),), daemon=True)
        thread.start()
        with Crew(reach(FLEET, join=join), FLEET) as crew:
            crew.wait_for(("watch",), LONG_S)
            crew.claim("r1")
            assert crew.ask("watch", msg.Assign(job), LONG_S) == [msg.Done()]
            node._keeper._take_certificate = renew  # type: ignore[method-assign]
            until(lambda: lab.folder.read("watch.pem") != near.certificate)
            (welcome,) = crew.ask("watch", msg.Hello(), LONG_S)  # the same session, the same run
            assert isinstance(welcome, msg.Welcome)
            assert welcome.busy
            assert thread.is_alive()
            assert crew.ask("watch", msg.End("r1"), LONG_S) == [msg.Done()]
            thread.join(LONG_S)
            assert not thread.is_alive()
    assert not certificates.expiring(lab.folder.read("watch.pem"))
    revoke(lab.folder, "watch")


def test_a_node_takes_no_certificate_but_a_later_one_for_its_own_key(lab: Lab) -> None:
    """Anybody who may ask on the fence may offer one."""
    lab.member("tv")
    own = lab.folder.read("tv.pem")
    authority, subject = authority_of(lab.folder), certificates.subject_of(own)
    foreign = certificates.new_authority("other")
    offered = {
        "not of this fleet": certificates.renewed(foreign, own),
        "ended on": certificates.renewed(authority, own, timedelta(days=-1)),
        "for another device": lab.folder.read("pi.pem"),
        "for another": certificates.new_pair(authority, subject, timedelta(days=60)).certificate,
    }
    with Node("tv", reach(FLEET, name="tv", listen=("127.0.0.1:0",)), FLEET) as node:
        assert node._keeper is not None
        for words, certificate in offered.items():
            with pytest.raises(InputError, match=words):
                node._keeper._answer(keeper.TakeCertificate(certificate))
        earlier = certificates.renewed(authority, own, timedelta(days=2))
        answer = node._keeper._answer(keeper.TakeCertificate(earlier))
        assert isinstance(answer, keeper.Number)
        assert not answer.pending
        assert lab.folder.read("tv.pem") == own
    revoke(lab.folder, "tv")


def test_who_introduces_itself_by_an_old_letter_is_refused(lab: Lab) -> None:
    """Somebody overheard it, or a clock has jumped: its words say so."""
    assert lab.node._keeper is not None
    at = keeper.time.time() - keeper.FRESH_S - 10  # type: ignore[attr-defined]
    signed = keeper.Introduce.words("pi", FLEET, at)
    signature = certificates.sign(lab.folder.read("pi.key"), signed)
    question = keeper.Introduce("pi", lab.folder.read("pi.pem"), at, signature)
    with pytest.raises(InputError, match="pi's clock differs by more than 300 s"):
        lab.node._keeper._answer(question)


def test_a_revoked_device_s_certificate_is_not_renewed(lab: Lab) -> None:
    lab.member("thief2")
    subject = certificates.subject_of(lab.folder.read("thief2.pem"))
    near = certificates.new_pair(authority_of(lab.folder), subject, timedelta(days=3))
    revoke(lab.folder, "thief2")
    asked: list[Any] = []
    with lab.crew() as crew, pytest.MonkeyPatch.context() as patch:
        assert crew._keeper is not None
        patch.setattr(keeper, "ask", lambda *question: asked.append(question) or [])
        crew._keeper._renew("k", keeper.Number("thief2", 1, False, False, near.certificate))
    assert not any(isinstance(q[-1], keeper.TakeCertificate) for q in asked)
