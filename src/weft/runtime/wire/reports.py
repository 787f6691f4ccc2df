"""What devices report of a run, without being asked. `messages` has all kinds of messages."""

from __future__ import annotations

from msgspec import Struct

from weft.graph.network import Segment


class Progress(Struct, frozen=True, tag="progress"):
    """Minibatches done since the last report, and their losses if this device computes them."""

    device: str
    step: int  # the newest minibatch that is done here
    losses: tuple[tuple[int, float], ...] = ()
    version: int = 0  # of the plan


class Finished(Struct, frozen=True, tag="finished"):
    """A device has done all minibatches of a series."""

    device: str
    last: int
    version: int = 0  # of the plan


class Failed(Struct, frozen=True, tag="failed"):
    """A device's work ended with an error."""

    device: str
    error: str
    bad_input: bool = False
    forgotten: bool = False  # it does not know the run: it has been restarted since
    version: int = 0  # of the plan that it worked on


class ServerProbed(Struct, frozen=True, tag="server_probed"):
    """The result of probing one server."""

    device: str  # the device that probed
    server: str
    reached: bool
    seconds: float = 0.0  # of a step of the test network
    up_bytes_per_s: float = 0.0
    down_bytes_per_s: float = 0.0
    rtt_s: float = 0.0
    why: str = ""  # it was not reached
    message_s: float = 0.0  # CPU time of the asking device for one message at its end
    byte_s: float = 0.0  # and for each byte


class Notice(Struct, frozen=True, tag="notice"):
    """A server's notice that it has become faster."""

    device: str
    slowdown: float  # relative to the idle server


class Cut(Struct, frozen=True, array_like=True):
    """A tensor that is too large for one piece comes as a row of slices, in their order."""

    name: str
    shape: tuple[int, ...]
    last: bool  # the last slice


class Kept(Struct, frozen=True, tag="kept"):
    """A piece of a device's state after a minibatch, as safetensors, in case the device dies."""

    device: str
    version: int  # of the plan
    step: int
    data: bytes
    optimizer: bool = False
    last: bool = True  # the last piece of this minibatch
    number: int = 0  # its place in the report, or in the answer
    cut: Cut | None = None  # where the data is a slice of one tensor
    # Only in an answer to `GetCopies`: what the device computes, and the losses before the copy.
    segments: tuple[Segment, ...] = ()
    losses: tuple[tuple[int, float], ...] = ()
