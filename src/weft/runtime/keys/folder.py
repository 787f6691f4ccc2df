"""The files of a fleet's keys on this machine: ~/.config/weft/FLEET, readable for its user alone.

authority.pem     the fleet's authority                  every machine
authority.key     signs certificates and lists           the owner's machine only
owner.pem, .key   the owner's certificate                the owner's machine only
NAME.pem, .key    the certificate of the device NAME     that device
members.json      the newest list, signed                every machine
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import msgspec
from msgspec import Struct

from weft.errors import InputError
from weft.runtime.keys.members import NAME, OWNER, Members, SignedMembers

MAX_FILE = 1 << 20


class Keys(Struct, frozen=True):
    """Whom a process of the fleet shows itself as, and who else belongs to the fleet."""

    folder: str
    name: str  # of the device; "owner" for the owner's commands
    members: Members

    @property
    def authority(self) -> str:
        return str(Path(self.folder) / "authority.pem")

    @property
    def certificate(self) -> str:
        return str(Path(self.folder) / f"{self.name}.pem")

    @property
    def key(self) -> str:
        return str(Path(self.folder) / f"{self.name}.key")

    @property
    def is_owner(self) -> bool:
        return self.name == OWNER


def config_home() -> Path:
    """The folder of this user's settings."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "weft"


class Folder:
    """The keys of one fleet here. It may not exist."""

    def __init__(self, fleet: str) -> None:
        self.fleet = fleet
        self.path = config_home() / fleet

    @property
    def exists(self) -> bool:
        """Whether this machine has keys of the fleet."""
        return bool(NAME.fullmatch(self.fleet)) and (self.path / "authority.pem").is_file()

    @property
    def is_owner(self) -> bool:
        """Whether this is the owner's machine."""
        return self.exists and (self.path / "authority.key").is_file()

    @property
    def names(self) -> tuple[str, ...]:
        """The devices whose certificates are here."""
        files = sorted(self.path.glob("*.pem"))
        return tuple(f.stem for f in files if f.stem not in ("authority", OWNER))

    def keys(self, name: str) -> Keys:
        """The keys of a device, or of the owner. InputError where they are not here."""
        if not NAME.fullmatch(name) or not (self.path / f"{name}.pem").is_file():
            there = ", ".join(self.names) or "no device"
            if name == OWNER:
                raise InputError(
                    f"the keys of fleet {self.fleet} here are those of {there}: commands need the "
                    "owner's; type them on the machine where `weft keys new` was typed"
                )
            raise InputError(
                f"this machine has no certificate for {name} in fleet {self.fleet} (it has one for "
                f"{there}); the owner makes one with `weft keys invite {name}`"
            )
        return Keys(str(self.path), name, self.members().opened())

    def members(self) -> SignedMembers:
        """The newest list that was seen here."""
        try:
            return msgspec.json.decode(self.read("members.json"), type=SignedMembers)
        except msgspec.MsgspecError as error:
            raise InputError(f"{self.path / 'members.json'} is damaged: {error}") from None

    def write_members(self, members: SignedMembers) -> None:
        self.write("members.json", msgspec.json.encode(members))

    def read(self, name: str) -> bytes:
        """A file of the folder."""
        path = self.path / name
        try:
            if path.stat().st_size > MAX_FILE:
                raise InputError(f"{path} has more than {MAX_FILE} bytes")
            return path.read_bytes()
        except OSError as error:
            raise InputError(f"keys {path}: {error.strerror or error}") from None

    def write(self, name: str, data: bytes) -> None:
        """Writes a file that only its user can read; it appears whole or not at all."""
        path = self.path / name
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            part = path.with_name(f".{name}.{secrets.token_hex(4)}")
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            os.replace(part, path)
        except OSError as error:
            raise InputError(f"keys {path}: {error.strerror or error}") from None
