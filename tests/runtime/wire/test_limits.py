"""Every number, name and list that a command can carry: it is refused where it is absurd, or takes nothing.

The table below has a line for each field of each record that a command can hold. A new field fails the first
test until somebody has thought about it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from weft.errors import InputError
from weft.graph.measure import LayerTimes
from weft.graph.network import (
    Batch,
    Blank,
    CutLoss,
    Graph,
    Layer,
    Loss,
    Node,
    Segment,
    State,
    SyncedNorm,
    Value,
)
from weft.graph.optimizers.optimizer import Optimizer
from weft.program import instructions as ins
from weft.runtime.node.probing.machine import measure_layers
from weft.runtime.wire import messages as msg
from weft.runtime.wire.frames import BadMessage
from weft.runtime.wire.job_limits import check_job
from weft.runtime.wire.limits import Seldom, check_run, check_servers, check_test_network
from weft.runtime.wire.links.changes import Changes, LinkState
from weft.runtime.wire.links.channel import OutLink, Roads
from weft.runtime.wire.radio import RadioRules

HUGE = 1 << 60
NAN, INF = float("nan"), float("inf")
ACT = ins.Tensor("act", 0)
ONE = Value((1,), "float32")

# Why a field needs no limit of its own.
BYTES = "it is no longer than the command, which is checked before it is decoded"
LOOKED_UP = "it is only compared, or looked up in a table"
NUMBER = "it is a number in the mathematics; nothing is as large as it"
PLACE = "a place in something that exists; a wrong one is an error"
PLANNED = "it is told, and nothing follows from it"


def job(**fields: Any) -> msg.Job:
    plain: dict[str, Any] = {
        "run": "r", "version": 0, "mode": "train", "batch": 1, "layers": 1, "code": (), "segments": (),
        "inputs": ("x",), "optimizer": Optimizer(), "roads": Roads(),
    }  # fmt: skip
    return msg.Job(**{**plain, **fields})


def code(*instructions: ins.Instruction) -> msg.Job:
    return job(code=instructions)


def segment(nodes: list[Node] = [], **fields: Any) -> Segment:  # noqa: B006
    return Segment(0, 0, nodes, {}, {}, **{"state": {}, **fields})


def ones(*sizes: int | Batch) -> Node:
    return Node("y", "aten.ones.default", [list(sizes)])


def loss(**fields: Any) -> Loss:
    plain: dict[str, Any] = {
        "nodes": [], "inputs": ("y", "t"), "output": "l", "target": ONE, "reduction": "mean",
    }  # fmt: skip
    return Loss(**{**plain, **fields})


def link(**fields: Any) -> msg.Job:
    return job(roads=Roads(links=(OutLink(**{"neighbour": "x", "channel": "c", **fields}),)))


def radio(**fields: Any) -> msg.Job:
    plain: dict[str, Any] = {"devices": ("a", "b"), "slots": 2}
    return job(radio=RadioRules(**{**plain, **fields}))


def changes(*pace: tuple[float, float], start: float = 0.0, **links: Any) -> msg.Job:
    return job(changes=Changes(start, pace or ((0.0, 1.0),), links))


def state(*values: float) -> tuple[LinkState, ...]:
    return (LinkState(*values),)


def test_network(**fields: Any) -> msg.TestNetwork:
    plain: dict[str, Any] = {"run": "r", "segment": segment(), "samples": 1}
    return msg.TestNetwork(**{**plain, **fields})


test_network.__test__ = False  # type: ignore[attr-defined]


def measuring(graph: Graph | None = None, **fields: Any) -> msg.MeasureLayers:
    layer = Layer("a", [], [], 0.0, 0)
    small = Graph("g", ["x"], "x", [layer], {"x": ONE}, {})
    return msg.MeasureLayers(**{"graph": graph or small, "sizes": (1,), **fields})


def probe(name: str = "s", **fields: Any) -> msg.ProbeServers:
    return msg.ProbeServers("r", {name: msg.Exchange(**{"bytes": 1, **fields})})


def dealt(*sets: tuple[int, ...], peer: int = 0) -> msg.Job:
    return job(data=msg.Data("digits", classes=msg.ClassShare(sets, peer)))


# Record.field -> commands that are refused, or the reason why there are none.
FIELDS: dict[str, str | list[Any]] = {
    "Job.run": [job(run=""), job(run="**"), job(run="a/b"), job(run="r" * 65)],
    "Job.version": LOOKED_UP,
    "Job.batch": [job(batch=HUGE), job(batch=-1)],
    "Job.layers": LOOKED_UP,
    "Job.code": [job(code=(ins.Emit(0, 0),) * 1_000_001)],
    "Job.segments": BYTES,
    "Job.inputs": BYTES,
    "Job.seed": NUMBER,
    "Job.pace": [job(pace=(1.0,)), job(code=(ins.Emit(0, 0),), pace=(INF,)),
                 job(code=(ins.Emit(0, 0),), pace=(NAN,))],
    "Job.deadline_s": [job(deadline_s=1e9), job(deadline_s=NAN), job(deadline_s=0.0)],
    "Job.groups": BYTES,
    "Job.tail": [job(tail=HUGE), job(tail=-1),
                 job(tail=10_000, segments=(segment(state={"w": State((1 << 28,), "float32")}),))],
    "Job.keep_every": [job(keep_every=(0,)), job(keep_every=(1,) * 1000)],
    "Job.lineage": [job(lineage="../x")],
    "Job.heir": [job(heir="../x"), job(heir="h" * 100)],
    "Job.go_back_every": [job(go_back_every=-1)],
    "Load.micro": LOOKED_UP,
    "Load.samples": [code(ins.Load(0, (0, HUGE))), code(ins.Load(0, (2, 1))), code(ins.Load(0, (-1, 1)))],
    "Recv.source": [code(ins.Recv(ACT, "**"))],
    "Recv.slot": LOOKED_UP,
    "Recv.blanks": [code(ins.Recv(ACT, "a", blanks=(Blank("x", (1,) * 17),)))],
    "Recv.samples": [code(ins.Recv(ACT, "a", blanks=(Blank("x", (1, 1000)),), samples=1 << 24)),
                     code(ins.Recv(ACT, "a", samples=-1))],
    "Blank.shape": [code(ins.Recv(ACT, "a", blanks=(Blank("x", (1, HUGE)),), samples=1)),
                    code(ins.Miss(ACT, "zero", (Blank("x", (1, -1)),), 1))],
    "Miss.blanks": [code(ins.Miss(ACT, "zero", (Blank("x", (1, HUGE)),), 1))],
    "Miss.samples": [code(ins.Miss(ACT, "zero", (), HUGE))],
    "Send.dest": [code(ins.Send(ACT, "**", 1)), code(ins.Send(ACT, "a/b/c", 1))],
    "Send.bytes": PLANNED,
    "Radio.slot": LOOKED_UP,
    "Radio.direct": [code(ins.Send(ACT, "a", 1, radio=ins.Radio(0, HUGE)))],
    "Radio.relayed": [code(ins.Send(ACT, "a", 1, radio=ins.Radio(0, 1, HUGE, "b")))],
    "Radio.via": [code(ins.Send(ACT, "a", 1, radio=ins.Radio(0, 1, 1, "*")))],
    "Stitch.expected": NUMBER, "Share.scale": NUMBER, "Blend.own": NUMBER, "Blend.total": NUMBER,
    "Extract.dim": PLACE, "Extract.first": PLACE, "Extract.last": PLACE, "Spare.dim": PLACE,
    "Pick.dim": PLACE, "Pick.first": PLACE, "Pick.last": PLACE, "Slice.first": PLACE, "Slice.last": PLACE,
    "Segment.first": LOOKED_UP, "Segment.last": LOOKED_UP,
    "Segment.nodes": [job(segments=(segment([Node("y", "aten.relu.default", [])] * 100_001),))],
    "Segment.inputs": BYTES, "Segment.outputs": BYTES, "Segment.norms": BYTES, "Segment.picks": BYTES,
    "Segment.state": BYTES,
    "Node.args": [job(segments=(segment([ones(1 << 29)]),)),
                  job(segments=(segment(loss=loss(nodes=[ones(1 << 29)])),)),
                  test_network(segment=segment([ones(1 << 29)]))],
    "Node.kwargs": [job(segments=(segment([Node("y", "aten.ones.default", [], {"size": [HUGE]})]),))],
    "Batch.times": [job(segments=(segment([ones(Batch(1 << 50))]),)),
                    job(batch=1 << 24, segments=(segment([ones(Batch(1 << 20))]),))],
    "Batch.plus": [job(segments=(segment([ones(Batch(0, 1 << 50))]),))],
    "Value.shape": [test_network(segment=Segment(0, 0, [], {"x": Value((HUGE,), "float32")}, {}, {}))],
    "Value.batch_dim": PLACE,
    "State.shape": [job(segments=(segment(state={"w": State((1 << 50,), "float32")}),)),
                    job(segments=(segment(state={"w": State((-1, 4), "float32")}),)),
                    test_network(segment=segment(state={"w": State((1 << 30,), "float32")}))],
    "Loss.nodes": [job(segments=(segment(loss=loss(nodes=[ones(HUGE)])),)),
                   job(data=msg.Data(totals=msg.Totals(loss(nodes=[ones(HUGE)]), b"")))],
    "Loss.state": BYTES, "Loss.inputs": BYTES, "Loss.further_targets": BYTES,
    "CutLoss.nodes": [job(segments=(segment(loss=loss(cut=CutLoss([ones(HUGE)], (), []))),))],
    "CutLoss.sums": [job(data=msg.Data(totals=msg.Totals(loss(cut=CutLoss([], (), [ones(HUGE)])), b"")))],
    "CutLoss.totals": BYTES, "CutLoss.bytes": PLANNED,
    "SyncedNorm.channels": [job(segments=(segment(norms=(SyncedNorm("x", "s", HUGE),)),))],
    "SyncedNorm.momentum": NUMBER,
    "Pick.shape": PLACE,
    "Optimizer.lr": NUMBER, "Optimizer.momentum": NUMBER, "Optimizer.weight_decay": NUMBER,
    "Optimizer.rounds": NUMBER, "Optimizer.round_steps": NUMBER, "Optimizer.clip_value": NUMBER,
    "Optimizer.clip_norm": NUMBER, "Optimizer.ema": NUMBER,
    "Roads.links": [job(roads=Roads(links=(OutLink("x", "c"),) * 257))],
    "Roads.next_hop": [job(roads=Roads(next_hop={f"d{i}": "x" for i in range(2000)})),
                       job(roads=Roads(next_hop={"**": "x"})), job(roads=Roads(next_hop={"x": "*"}))],
    "OutLink.neighbour": [link(neighbour="**")],
    "OutLink.channel": [link(channel="c" * 1000)],
    "OutLink.bytes_per_s": [link(bytes_per_s=NAN), link(bytes_per_s=-1.0)],
    "OutLink.latency_s": [link(latency_s=INF), link(latency_s=NAN), link(latency_s=-1.0)],
    "OutLink.shared": "runtime/wire/links/shaping.py: only a name of digits, in the node's own folder",
    "Changes.start": [changes(start=NAN)],
    "Changes.pace": [job(changes=Changes(0.0, (), {})), changes((0.0, INF)), changes((NAN, 1.0))],
    "Changes.links": [changes(c=()), changes(**{f"c{i}": state(0.0, 1.0, 0.0) for i in range(2000)})],
    "LinkState.at_s": [changes(c=state(NAN, 1.0, 0.0))],
    "LinkState.bytes_per_s": [changes(c=state(0.0, NAN, 0.0))],
    "LinkState.latency_s": [changes(c=state(0.0, 1.0, INF))],
    "Data.name": LOOKED_UP, "Data.seed": NUMBER, "Data.rows": PLACE, "Data.owner": PLACE,
    "Data.first": LOOKED_UP,
    "Data.ahead": [job(data=msg.Data(ahead=HUGE))],
    "Data.shares": [job(data=msg.Data(shares=(HUGE,))), job(data=msg.Data(shares=(-1, 5)))],
    "ClassShare.sets": [dealt(*((1, 2, 3),) * 10_000)],
    "ClassShare.peer": [dealt((1,), peer=7), dealt((1,), peer=-1)],
    "ClassShare.seed": NUMBER, "ClassShare.shares": BYTES,
    "Totals.state": BYTES,
    "RadioRules.devices": [radio(devices=("**",)), radio(devices=tuple(f"d{i}" for i in range(5000)))],
    "RadioRules.slots": [radio(slots=HUGE), radio(slots=-1)],
    "RadioRules.attempts": [radio(attempts=HUGE), radio(attempts=-1)],
    "RadioRules.seed": NUMBER, "RadioRules.stream": NUMBER, "RadioRules.drill": NUMBER,
    "RadioRules.delivery": [radio(delivery=((1.0,),)), radio(delivery=((1.0, 1.0), (1.0,)))],
    "RadioRules.slot_s": [radio(slot_s=INF), radio(slot_s=NAN)],
    "RadioRules.workers": [radio(workers=(7,))],
    "RunKeys.device": "a key of another length is refused (Assignment.assign)",
    "RunKeys.tensors": "a key of another length is refused (Assignment.assign)",
    "Weights.data": "no more than the job's weights (Assignment.take_weights; test_attacks.py)",
    "Run.first": [msg.Run("r", -1, 1), msg.Run("r", 2, 1)],
    "Run.last": [msg.Run("r", 0, HUGE)],
    "Run.start": [msg.Run("r", 0, 1, start=1e18), msg.Run("r", 0, 1, start=NAN)],
    "Run.schedule": BYTES, "Course.group": LOOKED_UP, "Course.points": BYTES,
    "GetTimeline.since": LOOKED_UP, "GoBack.step": LOOKED_UP,
    "GetCopies.lineage": LOOKED_UP, "GetCopies.secret": LOOKED_UP,
    "MeasureLayers.sizes": [measuring(sizes=()), measuring(sizes=(1,) * 99), measuring(sizes=(HUGE,)),
                            measuring(sizes=(0,))],
    "MeasureLayers.repeats": [measuring(repeats=HUGE), measuring(repeats=0)],
    "MeasureLayers.rest_s": [measuring(rest_s=1e9), measuring(rest_s=NAN)],
    "MeasureLayers.budget_s": [measuring(budget_s=1e9), measuring(budget_s=INF)],
    "Graph.state": [measuring(Graph("g", ["x"], "x", [], {}, {"w": State((1 << 50,), "float32")}))],
    "Graph.layers": [measuring(Graph("g", ["x"], "x", [Layer("a", [ones(HUGE)], [], 0.0, 0)],
                                     {"x": ONE}, {}))],
    "Graph.values": BYTES, "Graph.mixes": PLANNED,
    "Layer.nodes": [measuring(Graph("g", ["x"], "x", [Layer("a", [ones(HUGE)], [], 0.0, 0)],
                                    {"x": ONE}, {}))],
    "Layer.forward_flops": PLANNED, "Layer.saved_bytes": PLANNED, "Layer.block": PLANNED,
    "TestNetwork.samples": [test_network(samples=HUGE), test_network(samples=-1)],
    "TestNetwork.seed": NUMBER,
    "TestNetwork.pace_s": [test_network(pace_s=INF), test_network(pace_s=NAN)],
    "ProbeServers.servers": [probe("**"),
                             msg.ProbeServers("r", {f"s{i}": msg.Exchange(1) for i in range(999)})],
    "Exchange.bytes": [probe(bytes=HUGE), probe(bytes=-1)],
    "Exchange.ping_s": [probe(ping_s=INF), probe(ping_s=NAN)],
    "Exchange.train_s": [probe(train_s=1e9)],
    "Exchange.data_s": [probe(data_s=-1.0)],
    "Exchange.rounds": [probe(rounds=HUGE), probe(rounds=-1)],
    "Exchange.fill_s": [probe(fill_s=1e9), probe(fill_s=NAN)],
    "Echo.data": BYTES,
    "Cancel.why": "its first 2,000 letters are kept (Node)",
}  # fmt: skip

# The same in every record.
EVERYWHERE: dict[str, str | Callable[[Any], msg.Job]] = {
    "lag": lambda lag: code(ins.Emit(0, 0, lag)),
    "every": lambda every: code(ins.Recv(ACT, "a", every=every)),
    "run": LOOKED_UP, "name": LOOKED_UP, "names": BYTES, "dtype": LOOKED_UP, "codec": LOOKED_UP,
    "op": LOOKED_UP, "value": LOOKED_UP, "label": LOOKED_UP, "key": LOOKED_UP, "output": LOOKED_UP,
    "micro": LOOKED_UP, "at": LOOKED_UP, "last": LOOKED_UP, "part": LOOKED_UP, "group": LOOKED_UP,
    "layers": LOOKED_UP, "samples": PLANNED, "work": PLANNED, "parts": BYTES, "pieces": BYTES,
    "shares": BYTES, "spares": BYTES, "weights": BYTES, "micros": BYTES, "segments": BYTES,
    "places": BYTES, "into": BYTES, "rows": BYTES, "columns": BYTES, "arguments": BYTES, "groups": BYTES,
    "untouched": BYTES, "inputs": BYTES, "further_outputs": BYTES, "state": BYTES, "sums": LOOKED_UP,
    "mean": LOOKED_UP, "variance": LOOKED_UP, "counter": LOOKED_UP, "why": PLANNED,
}  # fmt: skip

SIZED = (
    inspect.IntType, inspect.FloatType, inspect.StrType, inspect.BytesType, inspect.ListType,
    inspect.VarTupleType, inspect.DictType,
)  # fmt: skip


def parts_of(kind: Any) -> Iterator[Any]:
    yield kind
    for inner in (
        *getattr(kind, "types", ()), *getattr(kind, "item_types", ()), getattr(kind, "item_type", None),
        getattr(kind, "key_type", None), getattr(kind, "value_type", None),
    ):  # fmt: skip
        if inner is not None:
            yield from parts_of(inner)


def fields_of_commands() -> dict[str, set[str]]:
    """By record: the fields that hold a number, a text, bytes or a list."""
    records: dict[str, set[str]] = {}
    seen: set[type] = set()  # two records are called Loss

    def look(kind: Any) -> None:
        for part in parts_of(kind):
            if isinstance(part, inspect.StructType) and part.cls not in seen:
                seen.add(part.cls)
                own = records.setdefault(part.cls.__name__, set())
                for field in part.fields:
                    if any(isinstance(p, SIZED) for p in parts_of(field.type)):
                        own.add(field.name)
                    look(field.type)

    look(inspect.type_info(msg.Command))
    return records


def test_every_field_of_every_command_has_a_limit_or_a_reason() -> None:
    records = fields_of_commands()
    assert {"Job", "Recv", "RadioRules", "Exchange", "MeasureLayers"} <= records.keys()
    missing = [
        f"{record}.{field}"
        for record, fields in records.items()
        for field in sorted(fields)
        if f"{record}.{field}" not in FIELDS and field not in EVERYWHERE
    ]
    assert missing == []
    known = {f"{record}.{field}" for record, fields in records.items() for field in fields}
    assert FIELDS.keys() <= known


def check(command: Any) -> object:
    """What a node does first with a command."""
    match command:
        case msg.Job():
            return check_job(command)
        case msg.Run():
            return check_run(command, 1000.0)
        case msg.TestNetwork():
            return check_test_network(command)
        case msg.ProbeServers():
            return check_servers(command.servers)
        case msg.MeasureLayers():
            return measure_layers(command)
    raise TypeError(command)


REFUSED = [
    pytest.param(command, id=f"{name} {number}")
    for name, commands in FIELDS.items()
    if isinstance(commands, list)
    for number, command in enumerate(commands)
]


@pytest.mark.parametrize("command", REFUSED)
def test_an_absurd_value_is_refused_before_anything_is_taken(command: Any) -> None:
    with pytest.raises(InputError):
        check(command)


@pytest.mark.parametrize("value", [HUGE, -1])
def test_an_instruction_is_not_behind_for_ever(value: int) -> None:
    lag, every = EVERYWHERE["lag"], EVERYWHERE["every"]
    assert callable(lag)
    assert callable(every)
    with pytest.raises(InputError):
        check_job(lag(value))
    with pytest.raises(InputError):
        check_job(every(min(value, 0)))


def test_ordinary_commands_are_within_the_limits() -> None:
    check_job(job(keep_every=(10, 50), tail=3))
    check_job(code(ins.Load(0, (0, 32)), ins.Send(ACT, "nuc", 5, radio=ins.Radio(1, 2, 1, "gw"))))
    check_job(radio(delivery=((1.0, 0.9), (0.9, 1.0)), slot_s=0.1, workers=(0, 1)))
    check_job(changes((0.0, 1.0), (5.0, 3.0), c=state(0.0, 1e6, 0.01)))
    check_job(job(batch=512, segments=(segment([ones(Batch(1), 1 << 22)]),)))
    check_run(msg.Run("r", 0, 1000, start=1010.0), 1000.0)
    check_servers(probe(rounds=5).servers)
    assert isinstance(measure_layers(measuring(repeats=1)).times, LayerTimes)


def test_only_weights_may_be_large() -> None:
    """Decoded, a nested list takes many times its bytes: it is refused before it is decoded."""
    large = msg.Weights("r", bytes(msg.MAX_COMMAND + 1))
    assert msg.unpack_command(msg.pack(large)) == large
    for command in (msg.Echo(large.data), msg.Cancel("r", "x" * (msg.MAX_COMMAND + 1))):
        with pytest.raises(BadMessage, match="only weights may have more"):
            msg.unpack_command(msg.pack(command))
    nested = msgspec.msgpack.encode(
        {"type": "assign", "job": {"segments": [[]] * (msg.MAX_COMMAND + 1)}}
    )
    with pytest.raises(BadMessage, match="only weights may have more"):
        msg.unpack_command(nested)


def test_a_stranger_s_words_write_no_line_of_their_own_to_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    Seldom(logging.getLogger("weft.test")).warning("dropped: %s", "\x1b[2J\nweft.node: all is well")
    assert caplog.messages == ["dropped: \\x1b[2J weft.node: all is well"]


def test_errors_without_end_write_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    """Seen: a run that fails wrote its error each time, and on an open node anybody may give runs."""
    seldom = Seldom(logging.getLogger("weft.test"), lines=3)
    for _ in range(100):
        try:
            raise ValueError("broken")
        except ValueError:
            seldom.exception("pi failed")
    assert len(caplog.records) == 3
    assert all(record.exc_info for record in caplog.records)
