"""The line that is pasted on a device: `weft1:` and everything that the device needs, as text.

The line holds the device's private key. Whoever reads it can be that device, until the owner revokes it.
"""

from __future__ import annotations

import base64
import binascii
import zlib

import msgspec
from msgspec import Struct

from weft.errors import InputError
from weft.runtime.keys.folder import Folder
from weft.runtime.keys.members import SignedMembers, check_name

MARK = "weft1:"
MAX_LINE = 1 << 20
MAX_BYTES = 1 << 20


class Invite(Struct, frozen=True):
    """A device's certificate and key, the fleet's authority, and the list of its members."""

    fleet: str
    name: str
    authority: bytes
    certificate: bytes
    key: bytes
    members: SignedMembers

    def line(self) -> str:
        """As text."""
        packed = zlib.compress(msgspec.msgpack.encode(self), 9)
        return MARK + base64.urlsafe_b64encode(packed).decode().rstrip("=")


def read_invite(line: str) -> Invite:
    """The invitation in a line. InputError where it is damaged."""
    text = "".join(line.split())
    if not text.startswith(MARK) or len(text) > MAX_LINE:
        raise InputError(f"--invite takes a line of `weft keys invite`; it begins with {MARK}")
    try:
        data = text[len(MARK) :].encode("ascii")
        unpacker = zlib.decompressobj()
        packed = base64.urlsafe_b64decode(data + b"=" * (-len(data) % 4))
        invite = msgspec.msgpack.decode(unpacker.decompress(packed, MAX_BYTES), type=Invite)
    except (ValueError, binascii.Error, zlib.error, msgspec.MsgspecError, RecursionError):
        raise InputError("--invite: the line is damaged; was it copied whole?") from None
    check_name(invite.fleet)
    check_name(invite.name)
    return invite


def take_invite(invite: Invite, name: str) -> Folder:
    """Writes an invitation's keys to this machine. InputError where it does not fit, before anything is
    written."""
    from weft.runtime.keys import certificates

    if invite.name != name:
        raise InputError(f"--invite is for the device {invite.name}, and --name says {name}")
    certificates.check_issued(invite.certificate, invite.authority)
    certificates.check_signature(invite.authority, invite.members.body, invite.members.signature)
    members = invite.members.opened()
    words = members.verdict(certificates.subject_of(invite.certificate), name)
    if words or members.fleet != invite.fleet:
        raise InputError(f"--invite: {words or 'it names two fleets'}")
    folder = Folder(invite.fleet)
    if folder.exists and folder.read("authority.pem") != invite.authority:
        raise InputError(
            f"{folder.path} holds the keys of another fleet of the same name; move that folder away"
        )
    folder.write("authority.pem", invite.authority)
    folder.write(f"{name}.key", invite.key)
    folder.write(f"{name}.pem", invite.certificate)
    if not (folder.path / "members.json").exists() or (
        folder.members().opened().number < members.number
    ):
        folder.write_members(invite.members)
    return folder
