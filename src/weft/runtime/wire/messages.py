"""The messages between a run and its nodes: typed records as MessagePack, never code."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Struct

from weft.codecs.registry import CODECS
from weft.data.classes import Deal
from weft.graph.network import Loss, Mode, Segment
from weft.graph.optimizers.optimizer import Optimizer
from weft.graph.optimizers.schedule import Course
from weft.program.instructions import Instruction
from weft.program.timeline import Span
from weft.runtime.wire.frames import BadMessage
from weft.runtime.wire.links.changes import Changes
from weft.runtime.wire.links.channel import Roads
from weft.runtime.wire.measuring import LayersMeasured as LayersMeasured
from weft.runtime.wire.measuring import MeasureLayers as MeasureLayers
from weft.runtime.wire.radio import RadioRules
from weft.runtime.wire.reports import Cut as Cut
from weft.runtime.wire.reports import Failed as Failed
from weft.runtime.wire.reports import Finished as Finished
from weft.runtime.wire.reports import Kept as Kept
from weft.runtime.wire.reports import Notice as Notice
from weft.runtime.wire.reports import Progress as Progress
from weft.runtime.wire.reports import ServerProbed as ServerProbed
from weft.runtime.wire.seal import RunKeys


class Slice(Struct, frozen=True, array_like=True):
    """Places first..last-1 of a state tensor's first dimension; last -1: all of it."""

    label: str  # the same at every peer
    name: str  # in this peer's state
    first: int = 0
    last: int = -1


class ClassShare(Struct, frozen=True):
    """A peer's samples of a data set: its share of the samples of its classes."""

    sets: tuple[tuple[int, ...], ...]  # the classes of each peer
    peer: int  # the number of this peer
    deal: Deal = "replicate"
    seed: int = 0  # of the split
    shares: tuple[float, ...] = ()  # of each peer, if samples are split; empty: equal shares
    own_columns: bool = True  # labels are columns of the peer's own output; else of all classes


class Totals(Struct, frozen=True):
    """A loss whose pieces need sums over all targets of a minibatch, and its tensors as safetensors."""

    loss: Loss
    state: bytes


class Data(Struct, frozen=True, omit_defaults=True):
    """The samples of a device that loads: a data set that it has, or samples that the run sends."""

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
    totals: Totals | None = None  # what it sends with the targets of its own data set


class Job(Struct, frozen=True, kw_only=True):
    """Everything that one device needs for a run: its part of the program and of the network. No code."""

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
    groups: dict[int, tuple[Slice, ...]] = {}  # the groups that it exchanges with other peers
    tail: int = 1  # for peers: the number of last rounds whose mean it reports besides its weights
    record: bool = True
    radio: RadioRules | None = None  # for a run whose messages are best effort
    # After every so many minibatches the device copies and reports its state. Several numbers may be given.
    # Empty: never.
    keep_every: tuple[int, ...] = ()
    # The same for copies that a run goes back to. One is left out while the one before is still on its way,
    # so that a slow link carries as many as it can. 0: never.
    go_back_every: int = 0
    lineage: str = ""  # the same for a run and for a run that resumes it
    # The digest of a secret: who knows the secret gets this run's copies. Empty: nobody does.
    heir: str = ""


class Hello(Struct, frozen=True, tag="hello"):
    """Asks for a node's name, version, cores, memory and clock."""


class Assign(Struct, frozen=True, tag="assign"):
    """A new job. If it is for the same run, the node keeps weights and optimizer memory that the new job
    needs."""

    job: Job
    keys: RunKeys = RunKeys()  # of the run; the crew fills them in


class Weights(Struct, frozen=True, tag="weights"):
    """A piece of the state (or of the optimizer's memory), as safetensors."""

    run: str
    data: bytes
    optimizer: bool = False


class Prepare(Struct, frozen=True, tag="prepare"):
    """Build what the job needs, open the data, and check that the neighbours can be reached."""

    run: str


class Run(Struct, frozen=True, tag="run"):
    """Do minibatches first..last-1. The node answers at once and reports the end. If it is still working on
    the minibatches before `first`, it goes on to `last`, without a pause if possible."""

    run: str
    first: int
    last: int
    # If slots follow the clock: when minibatch `first` begins, by the node's clock.
    start: float = 0.0
    schedule: tuple[Course, ...] = ()  # settings of the optimizer that change, from `first` on


class GetState(Struct, frozen=True, tag="state"):
    """Send your weights, buffers and optimizer memory."""

    run: str
    names: tuple[str, ...] | None = None  # of weights and buffers; None: all


class GetTimeline(Struct, frozen=True, tag="timeline"):
    """Send your timeline."""

    run: str
    since: int | None = None  # only minibatches from this one on; allowed while the work goes on


class Where(Struct, frozen=True, tag="where"):
    """Asks for a device's progress, when the run has been cancelled or is between two series."""

    run: str


class GoBack(Struct, frozen=True, tag="go_back"):
    """Go back to your state after minibatch `step`. It is an error if there is no copy of it."""

    run: str
    step: int


class GetCopies(Struct, frozen=True, tag="copies"):
    """Send the copies that you keep of a run whose coordinator is gone. The secret is that of the run's
    folder."""

    lineage: str
    secret: str


class ProbeCompute(Struct, frozen=True, tag="probe_compute"):
    """Asks for the GFLOPS that a convolutional network's training step reaches on the device."""


class TestNetwork(Struct, frozen=True, tag="test_network"):
    """What a probed server trains: a network with random weights that costs as much as the real one, or a
    known share of it."""

    run: str
    segment: Segment
    samples: int
    seed: int = 0
    pace_s: float = 0.0  # emulated: seconds of one step on an idle server


class Exchange(Struct, frozen=True):
    """How one server is probed: what crosses, and how long its answers may take before it counts as out of
    reach."""

    bytes: int  # sent there and back
    ping_s: float = 1.0  # for an empty message there and back
    train_s: float = 1.0  # for the data there, and a step of the test network
    data_s: float = 1.0  # for the data back
    # So many exchanges of each kind, without training: what a message costs the runtime of who asks.
    rounds: int = 0
    fill_s: float = 0.0  # the way there is filled for about so long: its rate under load


class ProbeServers(Struct, frozen=True, tag="probe_servers"):
    """Probe these, one after the other, while you go on working; each is reported when it is known. Your own
    name among them: train the test network yourself."""

    run: str
    servers: dict[str, Exchange]


class Echo(Struct, frozen=True, tag="echo"):
    """Asks only for an answer."""

    data: bytes = b""


class Cancel(Struct, frozen=True, tag="cancel"):
    """Stop working on this run. Keep the weights."""

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
    | GetCopies
    | ProbeCompute
    | MeasureLayers
    | TestNetwork
    | ProbeServers
    | Echo
    | Cancel
    | End
)


def run_of(command: Command) -> str | None:
    """The run that a command belongs to; None for one that any run may give."""
    if isinstance(command, Assign):
        return command.job.run
    run: str | None = getattr(command, "run", None)
    return run


class Welcome(Struct, frozen=True, tag="welcome"):
    """The answer to `Hello`."""

    name: str
    version: str
    cores: int
    memory_mb: float
    clock: float  # of the node's machine, seconds
    busy: bool = False  # whether it takes part in a run
    host: str = ""  # the same for all nodes of one machine
    waits_for: str = ""  # the device whose message it waits for at this moment
    date: float = 0.0  # by the node's own calendar, seconds since 1970; 0: an older node
    torch: str = ""  # its version
    free_mb: float = 0.0  # memory that its programs may still take; 0: not known
    compute: str = "cpu x1"  # what it computes with


class Done(Struct, frozen=True, tag="done"):
    """The command was carried out."""

    note: str = ""


class StatePiece(Struct, frozen=True, tag="piece"):
    """A piece of a device's state."""

    data: bytes  # safetensors
    optimizer: bool = False
    last: bool = False  # the last piece of an answer; without it the answer is incomplete
    number: int = 0  # its place in the answer


class At(Struct, frozen=True, tag="at"):
    """A device's progress."""

    step: int  # the newest minibatch that is all done
    begun: int  # the newest that has been begun
    updated: int  # the newest that has changed a weight or a buffer


class Spans(Struct, frozen=True, tag="spans"):
    """A device's timeline and counters."""

    spans: tuple[Span, ...]
    counts: dict[str, int]
    compute_cpu_s: float  # CPU time of the mathematics and of reading samples
    total_cpu_s: float  # of the whole process, since the first step


class Probed(Struct, frozen=True, tag="probed"):
    """The result of a probe."""

    gflops: float = 0.0


Reply = Welcome | Done | StatePiece | At | Spans | Probed | LayersMeasured | Kept


Report = Progress | Finished | Failed | ServerProbed | Notice | Kept

T = TypeVar("T")

# Bytes of a command. Decoded, nested lists take up to 64 times as much. Weights are taken as they are.
MAX_COMMAND = 16 << 20

_encoder = msgspec.msgpack.Encoder()
_commands: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_weights: msgspec.msgpack.Decoder[Weights] = msgspec.msgpack.Decoder(Weights)
_replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)
_reports: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)


def pack(message: Command | Reply | Report) -> bytes:
    """The bytes of a message."""
    return _encoder.encode(message)


def unpack_command(data: bytes) -> Command:
    """The command in these bytes, checked. Raises an error if there is none."""
    if len(data) > MAX_COMMAND:
        return _large(data)
    command = _checked(_commands, data)
    if isinstance(command, Assign):
        for instruction in command.job.code:
            codec = getattr(instruction, "codec", "none")
            if codec not in CODECS:
                raise BadMessage(f"a job with the unknown codec {codec[:40]!r}")
    return command


def _large(data: bytes) -> Weights:
    try:
        return _checked(_weights, data)
    except BadMessage as error:
        raise BadMessage(
            f"a command of {len(data)} bytes; only weights may have more than {MAX_COMMAND}: {error}"
        ) from None


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
