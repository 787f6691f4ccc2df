"""The list of a fleet's members. The owner signs it; every device keeps the newest that it has seen."""

from __future__ import annotations

import re

import msgspec
from msgspec import Struct

from weft.errors import InputError

OWNER = "owner"
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
RESERVED = (OWNER, "authority", "members")  # names of files
MAX_MEMBERS = 1000
MAX_LIST_BYTES = 512 * 1024


class Member(Struct, frozen=True):
    """A device of the fleet. `subject` is the name in its certificate. It is new with every invitation, so
    that a revoked certificate stays useless when its device is invited again."""

    name: str
    subject: str
    address: str = ""  # where others reach it, such as 192.0.2.7:7447, if that is fixed
    revoked: bytes = b""  # the authority's signature of `revocation(subject)`, if it is revoked


class Members(Struct, frozen=True):
    """Everybody who belongs to a fleet, or did. A list with a larger number replaces an older one."""

    fleet: str
    number: int
    owner: str  # the name in the owner's certificate
    devices: tuple[Member, ...] = ()

    @property
    def present(self) -> tuple[Member, ...]:
        """The devices that belong to the fleet now."""
        return tuple(d for d in self.devices if not d.revoked)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where the fleet can be joined."""
        return tuple(dict.fromkeys(d.address for d in self.present if d.address))

    def named(self, name: str) -> Member | None:
        """The device of this name that belongs to the fleet now."""
        return next((d for d in self.present if d.name == name), None)

    def verdict(self, subject: str, name: str) -> str:
        """Why a certificate with this subject may not be used for a device of this name; "" if it may."""
        if subject == self.owner:
            return ""
        member = next((d for d in self.devices if d.subject == subject), None)
        if member is None:
            return f"the certificate {subject} is not on the list of fleet {self.fleet}"
        if member.revoked:
            return f"the certificate of {member.name} was revoked by the owner of {self.fleet}"
        if member.name != name:
            return f"this certificate is that of {member.name}, not of {name}"
        return ""


class SignedMembers(Struct, frozen=True):
    """A list as it is kept and sent: its bytes and the signature of the fleet's authority."""

    body: bytes
    signature: bytes

    def opened(self) -> Members:
        """The list. Whoever got it from somebody else has to check the signature first."""
        if len(self.body) > MAX_LIST_BYTES:
            raise InputError(f"a list of members of {len(self.body)} bytes")
        try:
            members = msgspec.json.decode(self.body, type=Members)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InputError(f"a list of members that cannot be read: {error}") from None
        if len(members.devices) > MAX_MEMBERS:
            raise InputError(f"{len(members.devices)} members; at most {MAX_MEMBERS} are allowed")
        for word in (members.fleet, *(d.name for d in members.devices)):
            check_name(word)
        return members


def revocation(subject: str) -> bytes:
    """What the authority signs when it revokes a certificate."""
    return f"weft revoked {subject}".encode()


def check_name(name: str) -> str:
    """The name, or InputError where it may not name a fleet or a device."""
    if not NAME.fullmatch(name) or name in RESERVED:
        raise InputError(
            f"the name {name[:80]!r} is not allowed; use letters, digits, - and _ (64 at most), "
            f"and none of {', '.join(RESERVED)}"
        )
    return name
