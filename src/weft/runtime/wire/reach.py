"""How a process reaches its fleet: with the fleet's keys if this machine has them, else on this machine only.

endpoints = reach("weft", join=("192.0.2.7:7447",))          # a command
endpoints = reach("weft", name="pi", listen=("192.0.2.8:7447",))    # a node
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from datetime import datetime, timezone

from weft.errors import InputError
from weft.runtime.keys.folder import Folder, Keys
from weft.runtime.keys.members import NAME, OWNER
from weft.runtime.wire.beacon import fleet_id, look
from weft.runtime.wire.session import Endpoints, free_endpoint, parts_of


def reach(
    group: str,
    *,
    name: str | None = None,
    join: Sequence[str] = (),
    listen: Sequence[str] = (),
    config: str | None = None,
    open_to_all: bool = False,
    gossip: bool = True,
    shared_memory: bool = False,
) -> Endpoints:
    """Where a process listens and what it joins; `name` for a node, none for a command.

    InputError where a node without keys would listen to more than this machine. `open_to_all` allows that.
    """
    if not NAME.fullmatch(group):  # it is a part of every topic, where * has a meaning
        raise InputError(
            f"--group {group!r} is not allowed; use letters, digits, - and _ (64 at most)"
        )
    scheme, keys = "tcp", None
    if config is None and not open_to_all:
        keys = keys_of(group, name or OWNER)
        scheme = "tls" if keys else "tcp"
    listens = tuple(_endpoint(e, scheme, keys) for e in listen)
    joins = tuple(_endpoint(e, scheme, keys) for e in join)
    multicast = not (listens or joins)
    known: tuple[str, ...] = ()
    if keys is not None:
        member = keys.members.named(name) if name else None
        own_address = member.address if member else ""
        if name and not listens:
            listens = (f"tls/{own_address}" if own_address else _any_port(),)
        if not joins:
            addresses = (a for a in keys.members.addresses if a != own_address)
            known = tuple(f"tls/{address}" for address in addresses)
        multicast = not (joins or known or own_address)
    elif open_to_all and not listens:
        listens = (_any_port("tcp"),)
    elif config is None and not open_to_all:
        _check_closed(listens, name, group)
        if name and not listens:
            listens = (free_endpoint(),)  # one that can be told
    if name is None and config is None and not joins:
        known = (*known, *_answering(group, keys, known))
    return Endpoints(
        listen=listens,
        join=joins,
        multicast=multicast,
        gossip=gossip,
        asks_only=name is None,
        shared_memory=shared_memory,
        config=config,
        keys=keys,
        known=known,
    )


def _answering(group: str, keys: Keys | None, known: Sequence[str]) -> list[str]:
    """The nodes of the fleet that answer on this machine, or with keys on the local network."""
    scheme = "tls" if keys else "tcp"
    places = look(fleet_id(group, keys), wide=keys is not None)
    endpoints = [f"{scheme}/{host}:{port}" for host, port in places]
    return [endpoint for endpoint in endpoints if endpoint not in known]


def keys_of(group: str, name: str) -> Keys | None:
    """The keys of a device or of the owner; None where this machine has no keys of the fleet."""
    folder = Folder(group)
    if not folder.exists:
        return None
    if name == OWNER and folder.is_owner:
        from weft.runtime.keys.owner import renew_owner

        renew_owner(folder)
    keys = folder.keys(name)
    check_own(folder, keys)
    return keys


def check_own(folder: Folder, keys: Keys) -> None:
    """Raises InputError where this machine's own certificate is another device's, revoked or at its end."""
    from weft.runtime.keys import certificates

    certificate = folder.read(f"{keys.name}.pem")
    words = keys.members.verdict(certificates.subject_of(certificate), keys.name)
    end = certificates.ends(certificate)
    if not words and end < datetime.now(timezone.utc):
        words = f"the certificate of {keys.name} has expired (on {end:%Y-%m-%d})"
    if words:
        raise InputError(
            f"{keys.certificate}: {words}; the owner makes a new one with "
            f"`weft keys invite {keys.name}`"
        )


def _endpoint(text: str, scheme: str, keys: Keys | None) -> str:
    if "/" not in text:
        text = f"{scheme}/{text}"
    protocol, _, _ = parts_of(text)  # InputError for what is no endpoint
    if keys is not None and protocol != scheme:
        raise InputError(
            f"{text}: the fleet {keys.members.fleet} has keys, so everything is encrypted; "
            f"leave {protocol}/ out (--open starts a node without keys)"
        )
    return text


def _check_closed(listens: Sequence[str], name: str | None, group: str) -> None:
    """A node without keys does the work of anybody who can reach it."""
    for endpoint in listens:
        if not is_loopback(parts_of(endpoint)[1].strip("[]")):
            raise InputError(
                f"{endpoint} can be reached from other machines, and this machine has no keys of "
                f"fleet {group}. On the owner's machine type `weft keys new` and "
                f"`weft keys invite {name or 'NAME'}`, and here the line that it prints. "
                "Or give --open, and anybody who can reach this machine may use it"
            )


def is_loopback(host: str) -> bool:
    """Whether an address belongs to this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def told_address(endpoint: str) -> str:
    """An endpoint as others write it after --join: where a node listens on all addresses, its own one."""
    _, host, port = parts_of(endpoint)
    if host.strip("[]") not in ("::", "0.0.0.0", ""):
        return f"{host}:{port}"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: asks which address leads outside
            return f"{probe.getsockname()[0]}:{port}"
        except OSError:
            return f"127.0.0.1:{port}"


def _any_port(scheme: str = "tls") -> str:
    """A port that is free now. A node keeps it for as long as it runs."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    host = "::" if family == socket.AF_INET6 else "0.0.0.0"
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return f"{scheme}/{'[::]' if host == '::' else host}:{probe.getsockname()[1]}"
