"""What a coordinator and its nodes say to each other. Typed records as MessagePack; never code."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Struct

from weft.codecs.registry import CODECS
from weft.data.classes import Deal
from weft.graph.network import Mode, Segment
from weft.graph.optimizer import Optimizer
from weft.program.instructions import Instruction
from weft.program.timeline import Span
from weft.runtime.wire.changes import Changes
from weft.runtime.wire.channel import Roads
from weft.runtime.wire.frames import BadMessage
from weft.runtime.wire.radio import RadioRules


class Slice(Struct, frozen=True, array_like=True):
    """Places first..last-1 of a state tensor's first dimension; last -1: all of it."""

    label: str  # the same at every peer
    name: str  # in this peer's state
    first: int = 0
    last: int = -1


class ClassShare(Struct, frozen=True):
    """Which samples of a set are a peer's: its share of its classes."""

    sets: tuple[tuple[int, ...], ...]  # of all peers
    peer: int  # which of them
    deal: Deal = "replicate"
    seed: int = 0  # of the split
    shares: tuple[float, ...] = ()  # of a split, by peer; empty: equal
    own_columns: bool = True  # labels are columns of the peer's own output; else of all classes


class Data(Struct, frozen=True, omit_defaults=True):
    """Where a loading device gets its samples: a set it has itself, or fed by the coordinator."""

    name: str | None = None  # of weft.data; None: fed
    seed: int = 0
    ahead: int = 4  # minibatches that may be fed before they are used
    classes: ClassShare | None = None
    rows: int | None = None  # only the first so many samples
    # Where several devices have data: their shares of the minibatch, whose share is this device's, and the
    # minibatch's first sample that is its own.
    shares: tuple[int, ...] = ()
    owner: int = 0
    first: int = 0


class Job(Struct, frozen=True, kw_only=True):
    """All that one device needs for a run: its part of the program and of the network, no code."""

    run: str
    version: int
    mode: Mode
    batch: int
    layers: int  # of the whole network
    code: tuple[Instruction, ...]
    segments: tuple[Segment, ...]
    inputs: tuple[str, ...]  # the network's input names, for the device that loads
    optimizer: Optimizer
    roads: Roads
    seed: int = 0
    pace: tuple[float, ...] = ()  # emulated: seconds each instruction of `code` shall take
    changes: Changes | None = None  # emulated: how its speed and its links change
    deadline_s: float = 30.0
    data: Data = Data()
    groups: dict[int, tuple[Slice, ...]] = {}  # what it exchanges with other peers
    tail: int = 1  # of peers: the last rounds whose mean it reports beside its weights
    record: bool = True
    radio: RadioRules | None = None  # of a run whose messages are best effort
    # After how many minibatches the device copies and reports all that it knows; several numbers, each
    # counts. Empty: never.
    keep_every: tuple[int, ...] = ()


class Hello(Struct, frozen=True, tag="hello"):
    """Who are you, and what does your clock say?"""


class Assign(Struct, frozen=True, tag="assign"):
    """A new job. Of the same run: weights and optimizer memory that the new job needs stay."""

    job: Job


class Weights(Struct, frozen=True, tag="weights"):
    """A piece of the state (or of the optimizer's memory), as safetensors."""

    run: str
    data: bytes
    optimizer: bool = False


class Prepare(Struct, frozen=True, tag="prepare"):
    """Build what the job needs, open the data, see that the neighbours can be reached."""

    run: str


class Run(Struct, frozen=True, tag="run"):
    """Do minibatches first..last-1; answer at once, report when done. While at work on those before
    `first`: go on to `last`, without a pause where that is still possible."""

    run: str
    first: int
    last: int
    start: float = 0.0  # where slots follow the clock: when minibatch `first` begins, by yours


class GetState(Struct, frozen=True, tag="state"):
    """Send your weights, buffers and optimizer memory."""

    run: str
    names: tuple[str, ...] | None = None  # of weights and buffers; None: all


class GetTimeline(Struct, frozen=True, tag="timeline"):
    """Send what you did when."""

    run: str
    since: int | None = None  # the minibatches from this one on, while the work goes on


class Where(Struct, frozen=True, tag="where"):
    """How far have you come? Asked when the run has been cancelled or is between two series."""

    run: str


class GoBack(Struct, frozen=True, tag="go_back"):
    """Take up again what you knew after minibatch `step`; an error where you no longer know it."""

    run: str
    step: int


class ProbeCompute(Struct, frozen=True, tag="probe_compute"):
    """How many GFLOPS does a convolutional network's step reach on you?"""


class ProbeLink(Struct, frozen=True, tag="probe_link"):
    """How long does it take from you to `peer`, for nothing and for `bytes`?"""

    peer: str
    bytes: int = 1_000_000


class TestNetwork(Struct, frozen=True, tag="test_network"):
    """What a probed server trains: a network with random weights that costs as much as the real one, or a
    known share of it."""

    run: str
    segment: Segment
    samples: int
    seed: int = 0
    pace_s: float = 0.0  # emulated: seconds that a step of it shall take on an idle server


class Exchange(Struct, frozen=True):
    """How one server is probed: what crosses, and how long its answers may take before it counts as out of
    reach."""

    bytes: int  # sent there and back
    ping_s: float = 1.0  # for an empty message there and back
    train_s: float = 1.0  # for the data there, and a step of the test network
    data_s: float = 1.0  # for the data back


class ProbeServers(Struct, frozen=True, tag="probe_servers"):
    """Probe these, one after the other, while you go on working; each is reported when it is known. Your own
    name among them: train the test network yourself."""

    run: str
    servers: dict[str, Exchange]


class Echo(Struct, frozen=True, tag="echo"):
    """Asks for no more than an answer."""

    data: bytes = b""


class Cancel(Struct, frozen=True, tag="cancel"):
    """Stop working on this run; keep what you have."""

    run: str
    why: str


class End(Struct, frozen=True, tag="end"):
    """Forget this run."""

    run: str


Command = (
    Hello
    | Assign
    | Weights
    | Prepare
    | Run
    | GetState
    | GetTimeline
    | Where
    | GoBack
    | ProbeCompute
    | ProbeLink
    | TestNetwork
    | ProbeServers
    | Echo
    | Cancel
    | End
)


class Welcome(Struct, frozen=True, tag="welcome"):
    """The answer to a greeting: who the node is and what it has."""

    name: str
    version: str
    cores: int
    memory_mb: float
    clock: float  # of the node's machine, seconds
    busy: str = ""  # the run it is in


class Done(Struct, frozen=True, tag="done"):
    """The command was carried out."""

    note: str = ""


class StatePiece(Struct, frozen=True, tag="piece"):
    """A piece of a device's state."""

    data: bytes  # safetensors
    optimizer: bool = False
    last: bool = False  # the last piece of an answer: without it the answer is not whole


class At(Struct, frozen=True, tag="at"):
    """How far a device has come."""

    step: int  # the newest minibatch that is all done
    begun: int  # the newest that has been begun
    updated: int  # the newest that has changed a weight or a buffer


class Spans(Struct, frozen=True, tag="spans"):
    """What a device did when, and what it counted."""

    spans: tuple[Span, ...]
    counts: dict[str, int]
    compute_cpu_s: float  # CPU time of the mathematics and of reading samples
    total_cpu_s: float  # of the whole process, since the first step


class Probed(Struct, frozen=True, tag="probed"):
    """What a probe measured."""

    gflops: float = 0.0
    latency_s: float = 0.0  # one way
    bytes_per_s: float = 0.0


Reply = Welcome | Done | StatePiece | At | Spans | Probed


class Progress(Struct, frozen=True, tag="progress"):
    """Minibatches done since the last word, and their losses where this device computes them."""

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
    """What a device found out about a server that it probed."""

    device: str  # who asked
    server: str
    reached: bool
    seconds: float = 0.0  # of a step of the test network
    up_bytes_per_s: float = 0.0
    down_bytes_per_s: float = 0.0
    rtt_s: float = 0.0
    why: str = ""  # it was not reached


class Notice(Struct, frozen=True, tag="notice"):
    """A server tells whoever listens that it has become faster."""

    device: str
    slowdown: float  # against itself when idle


class Kept(Struct, frozen=True, tag="kept"):
    """A piece of what a device knows after a minibatch, for the case that it dies: as safetensors."""

    device: str
    version: int  # of the plan
    step: int
    data: bytes
    optimizer: bool = False
    last: bool = True  # the last piece of this minibatch


Report = Progress | Finished | Failed | ServerProbed | Notice | Kept

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()
_commands: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)
_reports: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)


def pack(message: Command | Reply | Report) -> bytes:
    """The bytes of a message."""
    return _encoder.encode(message)


def unpack_command(data: bytes) -> Command:
    """The command in these bytes, checked; an error where there is none."""
    command = _checked(_commands, data)
    if isinstance(command, Assign):
        for instruction in command.job.code:
            codec = getattr(instruction, "codec", "none")
            if codec not in CODECS:
                raise BadMessage(f"a job with the unknown codec {codec[:40]!r}")
    return command


def unpack_reply(data: bytes) -> Reply:
    """The reply in these bytes, checked."""
    return _checked(_replies, data)


def unpack_report(data: bytes) -> Report:
    """The report in these bytes, checked."""
    return _checked(_reports, data)


def _checked(decoder: msgspec.msgpack.Decoder[T], data: bytes) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadMessage(str(error)) from None
