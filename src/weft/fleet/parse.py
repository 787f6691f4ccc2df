"""The fleet file: TOML to Fleet and back.

    fleet = load_fleet(Path("fleet.toml"))
    text = dump_fleet(fleet)          # parses back to the same fleet

Every mistake in a file raises an InputError that names the table, the key, the value and what is allowed, so
that a typing mistake does not become a strange plan.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, get_args

from weft.errors import InputError
from weft.fleet.fleet import Device, Fleet, Link, Medium, Tier
from weft.fleet.tables import Table, near, show
from weft.reading import read_bounded

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

MAX_BYTES = 1 << 20  # a larger file is probably no fleet file
MAX_DEVICES = 2000
TIERS: tuple[Tier, ...] = get_args(Tier)
KINDS = ("device", "link", "medium")
DEVICE_KEYS = (
    "name", "tier", "gflops", "memory_mb", "data", "samples", "watts", "price_per_hour", "call_ms",
)  # fmt: skip
LINK_KEYS = (
    "between", "mbps", "up_mbps", "down_mbps", "latency_ms", "loss", "up_loss", "down_loss",
    "price_per_gb",
)  # fmt: skip


def load_fleet(path: Path) -> Fleet:
    """Read a fleet file."""
    where = str(path)
    data = read_bounded(path, MAX_BYTES, "fleet file")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"fleet file {where} is not UTF-8 text: {error}") from None
    return parse_fleet(text, path.name)


def parse_fleet(text: str, where: str = "fleet.toml") -> Fleet:
    """The fleet that a TOML text describes. Errors call the text `where`."""
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise InputError(f"{where} is not valid TOML: {error}") from None
    for key in document:
        if key not in KINDS:
            raise InputError(
                f"{where}: unknown table or key {key!r};{near(key, KINDS)} "
                "allowed tables: [[device]], [[link]], [[medium]]"
            )
    devices = _devices(_tables(document, "device", where))
    if not devices:
        raise InputError(f"{where}: there is no [[device]]; a fleet needs at least one")
    known = tuple(device.name for device in devices)
    return Fleet(
        devices,
        _links(_tables(document, "link", where), known),
        _media(_tables(document, "medium", where), known),
    )


def _tables(document: dict[str, Any], kind: str, where: str) -> list[Table]:
    tables = document.get(kind, [])
    if not isinstance(tables, list) or not all(isinstance(values, dict) for values in tables):
        raise InputError(
            f"{where}: {kind} = {show(tables)} is not allowed; write one [[{kind}]] table for each"
        )
    return [Table(where, kind, index, values) for index, values in enumerate(tables, start=1)]


def _devices(tables: list[Table]) -> tuple[Device, ...]:
    if len(tables) > MAX_DEVICES:
        raise InputError(f"{len(tables)} [[device]] tables; at most {MAX_DEVICES} are allowed")
    devices: list[Device] = []
    for table in tables:
        name = table.label = table.name("name")
        table.only(DEVICE_KEYS)
        if any(device.name == name for device in devices):
            table.refuse("name", "a name that no other device has")
        tier = table.values.get("tier", "device")
        if tier not in TIERS:
            table.refuse("tier", f"one of {', '.join(TIERS)}")
        data = table.flag("data", False)
        samples = table.optional_whole("samples")
        if samples is not None and not data:
            table.refuse("samples", "left out, or data = true beside it")
        gflops = table.optional_number("gflops", above=0)
        memory_mb = table.optional_number("memory_mb", above=0)
        watts = table.optional_number("watts")
        price = table.number("price_per_hour", default=0.0)
        call_ms = table.number("call_ms", default=0.0)
        devices.append(Device(name, tier, gflops, memory_mb, data, samples, watts, price, call_ms))
    return tuple(devices)


def _links(tables: list[Table], known: tuple[str, ...]) -> tuple[Link, ...]:
    links: list[Link] = []
    pairs: set[frozenset[str]] = set()
    for table in tables:
        between = table.names("between", "a list of two device names")
        table.label = " - ".join(between)
        table.only(LINK_KEYS)
        if len(between) != 2:
            table.refuse("between", "a list of two device names")
        _known(table, "between", between, known)
        first, second = between
        if first == second:
            table.refuse("between", "a list of two different devices")
        if frozenset(between) in pairs:
            table.refuse("between", "a pair that no other [[link]] joins")
        pairs.add(frozenset(between))
        up, down = _bandwidth(table)
        latency, loss = _latency_and_loss(table)
        price = table.number("price_per_gb", default=0.0)
        links.append(Link((first, second), up, down, latency, loss, *_two_losses(table), price))
    return tuple(links)


def _two_losses(table: Table) -> tuple[float | None, float | None]:
    """`up_loss` and `down_loss`, both or neither, in place of `loss`."""
    keys = [key for key in ("up_loss", "down_loss") if table.has(key)]
    if not keys:
        return None, None
    if table.has("loss"):
        table.refuse(keys[0], "left out if loss is given (loss holds for both directions)")
    return table.number("up_loss", below=1), table.number("down_loss", below=1)


def _bandwidth(table: Table) -> tuple[float, float]:
    """Both directions of a link: `mbps` for both, or `up_mbps` and `down_mbps`."""
    if table.has("mbps"):
        for key in ("up_mbps", "down_mbps"):
            if table.has(key):
                table.refuse(key, "left out if mbps is given (mbps holds for both directions)")
        both = table.number("mbps", above=0)
        return both, both
    if not table.has("up_mbps") and not table.has("down_mbps"):
        table.missing("mbps", "a number above 0 (or give both up_mbps and down_mbps)")
    return table.number("up_mbps", above=0), table.number("down_mbps", above=0)


def _media(tables: list[Table], known: tuple[str, ...]) -> tuple[Medium, ...]:
    media: list[Medium] = []
    for table in tables:
        name = table.label = table.name("name")
        table.only(("name", "gateway", "members", "mbps", "latency_ms", "loss", "price_per_gb"))
        if name in known or any(medium.name == name for medium in media):
            table.refuse("name", "a name that no device and no other medium has")
        gateway = table.name("gateway")
        _known(table, "gateway", (gateway,), known)
        members = table.names("members", "a list of device names")
        _known(table, "members", members, known)
        if not members or len(set(members)) != len(members) or gateway in members:
            table.refuse("members", "one or more different devices besides the gateway")
        mbps = table.number("mbps", above=0)
        latency, loss = _latency_and_loss(table)
        price = table.number("price_per_gb", default=0.0)
        media.append(Medium(name, gateway, members, mbps, latency, loss, price))
    return tuple(media)


def _latency_and_loss(table: Table) -> tuple[float, float]:
    return table.number("latency_ms", default=0.0), table.number("loss", below=1, default=0.0)


def _known(table: Table, key: str, names: tuple[str, ...], known: tuple[str, ...]) -> None:
    for name in names:
        if name not in known:
            value = show(table.values[key])
            raise InputError(
                f"{table}: {key} = {value} names an unknown device {show(name)};"
                f"{near(name, known)} known devices: {', '.join(known)}"
            )


def dump_fleet(fleet: Fleet) -> str:
    """A fleet as the text of a fleet file."""
    blocks = [_block("device", _telling(device)) for device in fleet.devices]
    for link in fleet.link:
        same = link.up_mbps == link.down_mbps
        speed = {"mbps": link.up_mbps} if same else {
            "up_mbps": link.up_mbps, "down_mbps": link.down_mbps,
        }  # fmt: skip
        blocks.append(_block("link", {"between": link.between, **speed} | _quality(link)))
    for medium in fleet.medium:
        values = {
            "name": medium.name,
            "gateway": medium.gateway,
            "members": medium.members,
            "mbps": medium.mbps,
        }
        blocks.append(_block("medium", values | _quality(medium)))
    return "\n".join(blocks)


def _telling(device: Device) -> dict[str, Any]:
    """A device's values without the defaults. `tier` is always written, because it helps the reader."""
    plain = Device(device.name)
    values = {key: getattr(device, key) for key in DEVICE_KEYS}
    return {k: v for k, v in values.items() if k in ("name", "tier") or v != getattr(plain, k)}


def _quality(channel: Link | Medium) -> dict[str, float]:
    values = {
        "latency_ms": channel.latency_ms,
        "loss": channel.loss,
        "price_per_gb": channel.price_per_gb,
    }
    quality = {key: value for key, value in values.items() if value}
    if isinstance(channel, Link) and (channel.up_loss, channel.down_loss) != (None, None):
        up, down = channel.losses
        quality = {key: value for key, value in quality.items() if key != "loss"}
        return {**quality, "up_loss": up, "down_loss": down}
    return quality


def _block(kind: str, values: dict[str, Any]) -> str:
    # JSON writes names (plain letters), numbers, booleans and lists of names just as TOML does.
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    return "\n".join([f"[[{kind}]]", *lines, ""])
