"""What goes wrong in a fleet, as data: which device dies, falls silent, slows down or comes back, and when.

    script = (Faults().kill("nuc", step=40).restart("nuc", after_s=2).silence("pi", step=60, for_s=3)
              .cut("pi", "nuc", step=80, for_s=2).slow("cloud", x=8).fill_disk(step=90, for_s=1))
    script.to_json()

The same script drives an emulated fleet (`weft.train(..., local=True, faults=script)`), real node processes
(`runtime.run.injector`), and, as far as it slows devices and cuts links, the simulator (`simulate.troubled`).

A fault comes when a device has done minibatch `step`, or when the run begins to recover or to save
(`during`), and `after_s` seconds later. A restart comes `after_s` seconds after its device was killed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from enum import Enum

import msgspec
from msgspec import Struct

from weft.errors import InputError
from weft.fleet.fleet import Fleet
from weft.fleet.routes import direct_hops

# No device can have these names.
ANY = (
    "@any"  # a device with a part in the plan that is not the source; the script's seed chooses it
)
LOST = "@lost"  # for a restart: the device that was killed last and is not back
COORDINATOR = "@coordinator"  # the process of the run itself


class Kind(str, Enum):
    """What can go wrong."""

    kill = "kill"  # the process ends, as if the power was lost
    silence = "silence"  # the process stops and stays connected
    restart = "restart"  # a killed device is started again; it remembers nothing
    cut = "cut"  # nothing crosses the link between two devices; the run still hears both
    slow = "slow"  # a device computes so many times slower
    fill_disk = "fill_disk"  # nothing more can be written to the disk of the run


class During(str, Enum):
    """Phases of a run that a fault can wait for."""

    recovery = "recovery"
    save = "save"


class Fault(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One thing that goes wrong."""

    kind: Kind
    device: str = ""
    other: str = ""  # the other end of a link that is cut
    step: int | None = None  # None: from the beginning
    after_s: float = 0.0
    during: During | None = None
    for_s: float | None = None  # then it is over; None: for good
    x: float = 1.0  # how many times slower


class Faults(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A script of faults. Each method returns a longer script."""

    fault: tuple[Fault, ...] = ()
    seed: int = 0  # chooses devices and links where the script says ANY

    def kill(
        self,
        device: str = ANY,
        *,
        step: int | None = None,
        after_s: float = 0.0,
        during: During | None = None,
    ) -> Faults:
        """The process of a device, or of the run (COORDINATOR), is killed by force."""
        return self.add(Fault(Kind.kill, device, step=step, after_s=after_s, during=during))

    def silence(
        self,
        device: str = ANY,
        *,
        step: int | None = None,
        for_s: float | None = None,
        after_s: float = 0.0,
        during: During | None = None,
    ) -> Faults:
        """A device stops for `for_s` seconds and stays connected."""
        fault = Fault(Kind.silence, device, step=step, after_s=after_s, during=during, for_s=for_s)
        return self.add(fault)

    def restart(
        self, device: str = LOST, *, after_s: float = 0.0, step: int | None = None
    ) -> Faults:
        """A killed device is started again, `after_s` seconds after it was killed."""
        return self.add(Fault(Kind.restart, device, step=step, after_s=after_s))

    def cut(
        self,
        device: str = ANY,
        other: str = ANY,
        *,
        step: int | None = None,
        for_s: float | None = None,
        after_s: float = 0.0,
        during: During | None = None,
    ) -> Faults:
        """Nothing crosses the link between two devices for `for_s` seconds."""
        fault = Fault(
            Kind.cut, device, other, step=step, after_s=after_s, during=during, for_s=for_s
        )
        return self.add(fault)

    def slow(
        self,
        device: str = ANY,
        *,
        x: float,
        step: int | None = None,
        for_s: float | None = None,
        after_s: float = 0.0,
    ) -> Faults:
        """A device computes `x` times slower."""
        return self.add(Fault(Kind.slow, device, step=step, after_s=after_s, for_s=for_s, x=x))

    def fill_disk(
        self, *, step: int | None = None, for_s: float | None = None, after_s: float = 0.0
    ) -> Faults:
        """The run cannot write to its disk for `for_s` seconds."""
        return self.add(Fault(Kind.fill_disk, step=step, after_s=after_s, for_s=for_s))

    def add(self, *faults: Fault) -> Faults:
        """The script with these faults at its end."""
        return msgspec.structs.replace(self, fault=(*self.fault, *faults))

    def to_json(self) -> str:
        """The script as one line."""
        return msgspec.json.encode(self).decode()

    @staticmethod
    def from_json(text: str | bytes) -> Faults:
        """Reads a script; an InputError says what is wrong in it."""
        try:
            return msgspec.json.decode(text, type=Faults)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise InputError(f"this is not a script of faults: {error}") from None


def check(script: Faults, fleet: Fleet) -> None:
    """Raises InputError where a fault names a device or a link that the fleet has not, or has an impossible
    value."""
    for number, fault in enumerate(script.fault, start=1):
        for problem in _problems(fault, script.fault[: number - 1], fleet):
            raise InputError(f"fault {number} ({fault.kind.value}): {problem}")


def _problems(fault: Fault, before: tuple[Fault, ...], fleet: Fleet) -> Iterator[str]:
    yield from _wrong_numbers(fault)
    if fault.kind != Kind.fill_disk:
        yield from _wrong_names(fault, fleet)
    killed = [f.device for f in before if f.kind == Kind.kill]
    if fault.kind == Kind.restart and not (fault.device in (LOST, *killed) and killed):
        yield f"{fault.device} is not killed before it; killed before: {', '.join(killed) or 'nobody'}"


def _wrong_numbers(fault: Fault) -> Iterator[str]:
    if fault.step is not None and fault.step < 0:
        yield f"step {fault.step} is not allowed; it must be 0 or more"
    if not (math.isfinite(fault.after_s) and fault.after_s >= 0):
        yield f"after_s {fault.after_s} is not allowed; it must be 0 or more seconds"
    if fault.for_s is not None and not (math.isfinite(fault.for_s) and fault.for_s > 0):
        yield f"for_s {fault.for_s} is not allowed; it must be above 0 seconds"
    if not (math.isfinite(fault.x) and fault.x >= 1):
        yield f"x {fault.x} is not allowed; it must be at least 1"


def _wrong_names(fault: Fault, fleet: Fleet) -> Iterator[str]:
    stands_for = {Kind.kill: (ANY, COORDINATOR), Kind.restart: (LOST,)}.get(fault.kind, (ANY,))
    names = (fault.device, fault.other) if fault.kind == Kind.cut else (fault.device,)
    for name in names:
        if name not in (*fleet.names, *stands_for):
            yield f"device {name!r} is unknown; there are {', '.join((*fleet.names, *stands_for))}"
    neighbours = {(hop.source, hop.dest) for hop in direct_hops(fleet)}
    if fault.kind == Kind.cut and ANY not in names and names not in neighbours:
        yield f"there is no link between {fault.device} and {fault.other}"
