"""What the owner of a fleet does with its keys: new, invite, revoke, renew. Files only, no network."""

from __future__ import annotations

import secrets

import msgspec

from weft.errors import InputError
from weft.runtime.keys import certificates
from weft.runtime.keys.certificates import Pair
from weft.runtime.keys.folder import Folder
from weft.runtime.keys.invite import Invite
from weft.runtime.keys.members import (
    MAX_MEMBERS,
    OWNER,
    Member,
    Members,
    SignedMembers,
    check_name,
    revocation,
)


def new_fleet(fleet: str) -> Folder:
    """Makes a fleet's authority, the owner's certificate and an empty list."""
    folder = Folder(check_name(fleet))
    if folder.exists:
        raise InputError(
            f"the fleet {fleet} has keys already ({folder.path}); "
            "give another --group, or move that folder away"
        )
    authority = certificates.new_authority(fleet)
    subject = _subject(OWNER)
    pair = certificates.new_pair(authority, subject)
    folder.write("authority.key", authority.key)
    folder.write("owner.key", pair.key)
    folder.write("owner.pem", pair.certificate)
    _write(folder, authority, Members(fleet, 1, subject))
    folder.write("authority.pem", authority.certificate)  # the last: now the fleet exists
    return folder


def invite(folder: Folder, name: str, address: str = "") -> Invite:
    """A new member. A device that is a member already gets a new certificate, and its old one ends."""
    authority = authority_of(folder)
    members = folder.members().opened()
    if len(members.devices) >= MAX_MEMBERS:
        raise InputError(f"the fleet has {MAX_MEMBERS} members; that is the most")
    member = Member(check_name(name), _subject(name), address)
    pair = certificates.new_pair(authority, member.subject)
    devices = _without(members, name, authority)
    signed = _next(folder, authority, members, (*devices, member))
    return Invite(folder.fleet, name, authority.certificate, pair.certificate, pair.key, signed)


def revoke(folder: Folder, name: str) -> SignedMembers:
    """Takes a device off the list. InputError where it is not on it."""
    authority = authority_of(folder)
    members = folder.members().opened()
    if members.named(name) is None:
        there = ", ".join(d.name for d in members.present) or "nobody"
        raise InputError(f"{name} is not a member of fleet {folder.fleet}; members: {there}")
    return _next(folder, authority, members, _without(members, name, authority))


def authority_of(folder: Folder) -> Pair:
    """The fleet's authority. InputError where this is not the owner's machine."""
    if not folder.exists:
        raise InputError(f"there is no fleet {folder.fleet} here; make one with `weft keys new`")
    if not folder.is_owner:
        raise InputError(
            f"this machine is a device of fleet {folder.fleet}, not its owner's; "
            "type this where `weft keys new` was typed"
        )
    return Pair(folder.read("authority.pem"), folder.read("authority.key"))


def renew_owner(folder: Folder) -> None:
    """The owner's certificate renews itself, because the authority is beside it."""
    certificate = folder.read("owner.pem")
    if folder.is_owner and certificates.expiring(certificate):
        folder.write("owner.pem", certificates.renewed(authority_of(folder), certificate))


def _without(members: Members, name: str, authority: Pair) -> tuple[Member, ...]:
    """The list with every certificate of a device revoked."""

    def revoked(member: Member) -> Member:
        proof = certificates.sign(authority.key, revocation(member.subject))
        return msgspec.structs.replace(member, revoked=proof)

    return tuple(revoked(d) if d.name == name and not d.revoked else d for d in members.devices)


def _next(
    folder: Folder, authority: Pair, members: Members, devices: tuple[Member, ...]
) -> SignedMembers:
    number = members.number + 1
    return _write(
        folder, authority, msgspec.structs.replace(members, number=number, devices=devices)
    )


def _write(folder: Folder, authority: Pair, members: Members) -> SignedMembers:
    body = msgspec.json.encode(members)
    signed = SignedMembers(body, certificates.sign(authority.key, body))
    folder.write_members(signed)
    return signed


def _subject(name: str) -> str:
    return f"{name}.{secrets.token_hex(4)}"
