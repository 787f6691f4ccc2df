"""The checks of this device. Each asks the machine, then a pure function judges what it said.

for finding in examine_device("weft", "pi"): print(finding.says, finding.do)
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timezone

from weft.doctor.findings import Finding
from weft.errors import WeftError
from weft.runtime.keys import certificates
from weft.runtime.keys.folder import Folder
from weft.runtime.keys.members import OWNER
from weft.runtime.node.probing.machine import free_memory_mb, probe_compute
from weft.runtime.wire.reach import check_own
from weft.runtime.wire.session import check_free, parts_of
from weft.version import __version__

OLDEST_PYTHON, OLDEST_TORCH = (3, 10), (2, 6)
OLDEST_DATE = datetime(2026, 1, 1, tzinfo=timezone.utc)  # no device has a copy of Weft from before
NEEDED_MB, SMALL_MB = 300.0, 600.0  # a node itself takes about 250 MB
SLOW_GFLOPS = 0.3  # a Raspberry Pi 3 has about 1
BUSY = 2.0  # computing takes so many times its own time: others use the processor
SOON_DAYS = 7


def examine_device(group: str, name: str | None, listen: str | None = None) -> Iterator[Finding]:
    """All checks of this machine. `name` is its node's; `listen` is a port that a node shall have."""
    import torch

    here = name or platform.node() or "here"
    yield judge_versions(here, sys.version_info[:2], str(torch.__version__))
    yield judge_date(here, datetime.now(timezone.utc))
    yield from examine_keys(group, name, here)
    if listen is not None:
        yield examine_port(here, listen)
    yield judge_memory(here, free_memory_mb())
    wall, processor = time.perf_counter(), time.thread_time()
    gflops = probe_compute()
    spent = time.perf_counter() - wall, time.thread_time() - processor
    yield judge_speed(here, gflops, spent[0] / max(spent[1], 1e-9))


def judge_versions(
    device: str, python: tuple[int, ...], torch: str, weft: str = __version__
) -> Finding:
    """Whether Python and torch are new enough, and Weft the same as here."""
    said = f"Weft {weft}, torch {torch or 'unknown'}"
    if python:
        said += f", Python {'.'.join(map(str, python))}"
    if python and python < OLDEST_PYTHON:
        return Finding(
            "versions", device, "fault", said, f"Weft needs Python {_dots(OLDEST_PYTHON)} or later"
        )
    if torch and _numbers(torch) < OLDEST_TORCH:
        oldest = _dots(OLDEST_TORCH)
        return Finding(
            "versions",
            device,
            "fault",
            said,
            f"torch must be {oldest} or later: pip install 'torch>={oldest}'",
        )
    if weft != __version__:
        do = f"this machine has Weft {__version__}: install the same version on both"
        return Finding("versions", device, "fault", said, do)
    return Finding("versions", device, "ok", said)


def judge_date(device: str, now: datetime) -> Finding:
    """Whether the calendar can be right: certificates are judged by it."""
    if now < OLDEST_DATE:
        do = "set the clock (timedatectl set-ntp true): certificates are not valid at that date"
        return Finding("clock", device, "fault", f"the date is {now:%Y-%m-%d}", do)
    return Finding("clock", device, "ok", f"the date is {now:%Y-%m-%d %H:%M} UTC")


def examine_keys(group: str, name: str | None, here: str) -> Iterator[Finding]:
    """The certificates of this machine: of the device `name`, else of all that are here."""
    folder = Folder(group)
    if not folder.exists:
        do = (
            "For real devices type `weft keys new` on the owner's machine, "
            "and here the line of `weft keys invite`"
        )
        says = f"no keys of fleet {group} here: a node serves this machine only"
        yield Finding("certificate", here, "warning" if name is None else "fault", says, do)
        return
    names = [name] if name else [*([OWNER] if folder.is_owner else []), *folder.names]
    for each in names:
        yield _certificate(folder, each, here)


def _certificate(folder: Folder, name: str, here: str) -> Finding:
    try:
        check_own(folder, folder.keys(name))
        days = (certificates.ends(folder.read(f"{name}.pem")) - datetime.now(timezone.utc)).days
    except WeftError as error:
        says, _, do = str(error).partition("; ")
        return Finding("certificate", here, "fault", says, do)
    mode = (folder.path / f"{name}.key").stat().st_mode & 0o077
    if mode:
        path = folder.path / f"{name}.key"
        return Finding(
            "certificate", here, "fault", f"other users can read {path}", f"Type chmod 600 {path}"
        )
    says = f"{name} of fleet {folder.fleet}: valid for {days} days"
    if days < SOON_DAYS and name != OWNER:
        do = "Any command of the owner renews it while the node runs: let the owner type `weft fleet`"
        return Finding("certificate", here, "warning", says, do)
    return Finding("certificate", here, "ok", says)


def examine_port(device: str, listen: str) -> Finding:
    """Whether a node could listen there."""
    endpoint = listen if "/" in listen else f"tcp/{listen}"
    parts_of(endpoint)  # InputError for what is no endpoint
    try:
        check_free(endpoint)
    except WeftError as error:
        do = f"Find who has it with `ss -ltnp`, or give the node another --listen than {listen}"
        return Finding("port", device, "fault", str(error).split(";")[0], do)
    return Finding("port", device, "ok", f"{listen} is free")


def judge_memory(device: str, free_mb: float) -> Finding:
    """Whether a node and a network fit."""
    if not free_mb:
        return Finding("memory", device, "ok", "the system does not say how much is free")
    says = f"{free_mb:.0f} MB are free"
    if free_mb < NEEDED_MB:
        do = f"A node itself takes {NEEDED_MB:.0f} MB: end other programs, or raise the container's limit"
        return Finding("memory", device, "fault", says, do)
    if free_mb < SMALL_MB:
        do = f"Write memory_mb = {free_mb - NEEDED_MB:.0f} for {device} in the fleet file, so that plans fit"
        return Finding("memory", device, "warning", says, do)
    return Finding("memory", device, "ok", says)


def judge_speed(device: str, gflops: float, busy: float = 1.0) -> Finding:
    """Whether torch computes as fast as a small device should. `busy`: elapsed time over computing time."""
    says = f"{gflops:.2f} GFLOPS with one thread"
    if gflops < SLOW_GFLOPS:
        do = "Is the processor throttled (heat, power supply), or torch built without its vector units?"
        return Finding("speed", device, "fault", f"only {says}", do)
    if busy > BUSY:
        do = "Other programs use the processor: end them, or plan when the machine is as it will be"
        return Finding(
            "speed", device, "warning", f"{says}, but computing takes {busy:.1f} times as long", do
        )
    return Finding("speed", device, "ok", says)


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split("+")[0].split(".")[:2]
    return tuple(int(part) if part.isdigit() else 0 for part in parts)


def _dots(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
