"""The files of a fleet's keys: made, handed over, revoked, renewed."""

from __future__ import annotations

import stat
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from weft.errors import InputError
from weft.runtime.keys import certificates
from weft.runtime.keys.folder import Folder
from weft.runtime.keys.invite import read_invite, take_invite
from weft.runtime.keys.owner import authority_of, invite, new_fleet, renew_owner, revoke
from weft.runtime.wire.reach import keys_of, reach


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The owner's settings."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "owner"))
    return tmp_path


def on_another_machine(home: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / name))


def test_only_the_user_can_read_the_files(home: Path) -> None:
    folder = new_fleet("lab")
    assert folder.path == home / "owner" / "weft" / "lab"
    for path in folder.path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    with pytest.raises(InputError, match="has keys already"):
        new_fleet("lab")


def test_an_invitation_makes_a_member_of_another_machine(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = new_fleet("lab")
    invite(folder, "nuc", "192.0.2.7:7447")
    line = invite(folder, "pi").line()
    on_another_machine(home, "pi", monkeypatch)
    assert keys_of("lab", "pi") is None
    take_invite(read_invite(f" {line}\n"), "pi")
    endpoints = reach("lab", name="pi")
    assert endpoints.known == ("tls/192.0.2.7:7447",)
    assert endpoints.listen[0].startswith("tls/")
    with pytest.raises(InputError, match="commands need the owner's"):
        reach("lab")
    with pytest.raises(InputError, match=r"no certificate for nuc.*it has one for pi"):
        reach("lab", name="nuc")
    with pytest.raises(InputError, match="leave tcp/ out"):
        reach("lab", name="pi", join=("tcp/192.0.2.7:7447",))
    with pytest.raises(InputError, match="not its owner's"):
        invite(Folder("lab"), "more")


def test_an_invitation_that_does_not_fit_writes_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = invite(new_fleet("lab"), "pi")
    foreign = invite(new_fleet("other"), "pi")
    on_another_machine(home, "pi", monkeypatch)
    line = good.line()
    for text, words in (
        (line[:-40], "damaged"),
        (line[:100] + "AAAA" + line[104:], "damaged"),
        ("weft1:", "damaged"),
        ("hello", "begins with weft1:"),
        ("weft1:" + "A" * (1 << 21), "begins with weft1:"),
    ):
        with pytest.raises(InputError, match=words):
            read_invite(text)
    replace = msgspec.structs.replace
    for wrong, name, words in (
        (good, "nuc", "is for the device pi"),
        (replace(good, certificate=foreign.certificate), "pi", "not of this fleet"),
        (replace(good, members=foreign.members), "pi", "signature"),
        (replace(good, name="../pi"), "../pi", "not on the list|not of"),
    ):
        with pytest.raises(InputError, match=words):
            take_invite(wrong, name)
    with pytest.raises(InputError, match="not allowed"):
        read_invite(replace(good, name="../pi").line())
    assert not (home / "pi").exists()


def test_a_fleet_of_the_same_name_does_not_replace_the_keys_of_another(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = invite(new_fleet("lab"), "pi")
    on_another_machine(home, "second", monkeypatch)
    second = invite(new_fleet("lab"), "pi")
    on_another_machine(home, "pi", monkeypatch)
    take_invite(first, "pi")
    with pytest.raises(InputError, match="another fleet of the same name"):
        take_invite(second, "pi")


def test_who_is_revoked_and_invited_again_has_another_certificate(home: Path) -> None:
    folder = new_fleet("lab")
    old = certificates.subject_of(invite(folder, "pi").certificate)
    revoke(folder, "pi")
    with pytest.raises(InputError, match="not a member"):
        revoke(folder, "pi")
    new = certificates.subject_of(invite(folder, "pi").certificate)
    members = folder.members().opened()
    assert members.number == 4
    assert "revoked" in members.verdict(old, "pi")
    assert members.verdict(new, "pi") == ""
    assert "that of pi, not of nuc" in members.verdict(new, "nuc")
    assert "not on the list" in members.verdict("stranger.1", "pi")


def test_certificates_end_and_are_renewed(home: Path) -> None:
    folder = new_fleet("lab")
    authority = authority_of(folder)
    subject = folder.members().opened().owner
    almost = certificates.new_pair(authority, subject, timedelta(days=3))
    folder.write("owner.pem", almost.certificate)
    folder.write("owner.key", almost.key)
    assert certificates.expiring(almost.certificate)
    renew_owner(folder)
    later = folder.read("owner.pem")
    assert not certificates.expiring(later)
    certificates.check_same_key(later, almost.certificate)
    certificates.check_issued(later, authority.certificate)
    over = certificates.new_pair(authority, "pi.1", timedelta(days=-1))
    with pytest.raises(InputError, match="ended on"):
        certificates.check_issued(over.certificate, authority.certificate)


def test_a_node_without_keys_is_closed_to_other_machines(home: Path) -> None:
    (own,) = reach("lab", name="pi").listen
    assert own.startswith("tcp/127.0.0.1:")
    assert reach("lab", name="pi", listen=("127.0.0.1:7447",)).listen == ("tcp/127.0.0.1:7447",)
    for address in ("0.0.0.0:7447", "tcp/[::]:7447", "192.0.2.7:7447", "tcp/pi.local:7447"):
        with pytest.raises(InputError, match=r"weft keys new.*weft keys invite pi.*--open"):
            reach("lab", name="pi", listen=(address,))
        reach("lab", name="pi", listen=(address,), open_to_all=True)
