"""The simulator equals, to the last bit, a plain one that looks at all again for every event."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from weft.fleet.fleet import Device, Fleet, Link, Medium
from weft.plans.plan import Plan
from weft.plans.profile import DeviceTimes, LayerCost, Profile
from weft.program.instructions import (
    Backward,
    Forward,
    Instruction,
    Load,
    Recv,
    Send,
    Tensor,
    Update,
)
from weft.program.program import Program
from weft.program.timeline import Span
from weft.simulate.simulate import simulate


class Reference:
    """Devices are lists of (instruction, minibatch); every turn looks for the earliest event."""

    def __init__(self, program: Program, steps: int) -> None:
        self.plan = program.plan
        self.todo: dict[str, list[tuple[Instruction, int]]] = {}
        for device, code in program.code.items():
            self.todo[device] = [
                (i, tick - i.lag)
                for tick in range(steps + program.max_lag) for i in code
                if 0 <= tick - i.lag < steps
            ]  # fmt: skip
        self.clock = dict.fromkeys(program.code, 0.0)
        self.free: dict[str, float] = {}
        self.arrived: dict[Any, float] = {}
        self.travelling: list[dict[str, Any]] = []
        self.ends = [0.0] * steps
        self.transfers: list[tuple[str, float, float, int, str]] = []
        self.sent = 0

    def run(self) -> None:
        while True:
            for device in self.todo:
                self.compute(device)
            # (when, a message on its way before a new one, its number, the rest)
            events = [(m["when"], 0, m["sent"], m) for m in self.travelling]
            for n, (device, todo) in enumerate(self.todo.items()):
                if todo and isinstance(todo[0][0], Send):
                    events.append((self.clock[device], 1, n, {"device": device}))
            if not events:
                return
            message = min(events, key=lambda event: event[:3])[3]
            if "device" in message:
                message = self.send(message["device"])
            else:
                self.travelling.remove(message)
            self.hop(message)

    def compute(self, device: str) -> None:
        """All that a device can do before it must wait for a message or for its turn to send."""
        todo = self.todo[device]
        while todo:
            i, step = todo[0]
            if isinstance(i, Send):
                return
            if isinstance(i, Recv):
                name = i.source, device, i.tensor, step
                if name not in self.arrived:
                    return
                self.clock[device] = max(self.clock[device], self.arrived[name])
            elif isinstance(i, Forward):
                times = self.plan.profile.devices[device]
                self.clock[device] += times.forward(*i.layers, i.samples)
            elif isinstance(i, Backward):
                times = self.plan.profile.devices[device]
                self.clock[device] += times.backward(*i.layers, i.samples)
            elif isinstance(i, Update):
                self.clock[device] += self.plan.profile.devices[device].update(*i.layers)
            self.done(device)

    def done(self, device: str) -> None:
        _, step = self.todo[device].pop(0)
        self.ends[step] = max(self.ends[step], self.clock[device])

    def send(self, device: str) -> dict[str, Any]:
        i, step = self.todo[device][0]
        assert isinstance(i, Send)
        self.done(device)
        self.sent += 1
        return {
            "name": (device, i.dest, i.tensor, step), "bytes": i.bytes, "sent": self.sent,
            "hops": list(self.plan.fleet.route(device, i.dest)),
            "when": self.clock[device], "complete": self.clock[device],
        }  # fmt: skip

    def hop(self, message: dict[str, Any]) -> None:
        hop = message["hops"].pop(0)
        start = max(self.free.get(hop.channel, 0.0), message["when"])
        end = start + message["bytes"] / hop.bytes_per_s
        self.free[hop.channel] = end
        _, _, tensor, step = message["name"]
        self.transfers.append((hop.channel, start, end, step, str(tensor)))
        message["complete"] = max(end, message["complete"]) + hop.latency_s
        if not message["hops"]:
            self.arrived[message["name"]] = message["complete"]
            return
        cut_through = self.plan.route == "min"
        message["when"] = start + hop.latency_s if cut_through else message["complete"]
        self.travelling.append(message)


# Small whole numbers, so that many things happen at the same moment.
SECONDS = st.sampled_from([0.0, 0.5, 1.0, 2.0, 0.3])
MBPS = st.sampled_from([4.0, 8.0, 16.0])
LATENCY_MS = st.sampled_from([0.0, 0.0, 500.0, 70.0])
BYTES = st.sampled_from([0, 500_000, 1_000_000, 1_000_000, 123_457])
LAYERS = 3


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    """A tree of links or a star of radio: every device reaches every other, some over relays."""
    names = [f"d{n}" for n in range(draw(st.integers(2, 5)))]
    links, members = [], []
    for n in range(1, len(names)):
        if draw(st.booleans()):
            members.append(names[n])
        else:
            to = names[draw(st.integers(0, n - 1))]
            links.append(Link((to, names[n]), draw(MBPS), draw(MBPS), draw(LATENCY_MS)))
    wifi = Medium("wifi", names[0], tuple(members), draw(MBPS), draw(LATENCY_MS))
    return Fleet(tuple(Device(name) for name in names), tuple(links), (wifi,) if members else ())


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Instructions in an order that can run, dealt to devices; the lag never falls on the way, so
    that the whole loop can run in that order too."""
    fleet = draw(fleets())
    names = list(fleet.names)
    code: dict[str, list[Instruction]] = {name: [] for name in names}
    pending: list[tuple[str, Recv]] = []
    lag = 0
    for n in range(draw(st.integers(1, 25))):
        lag += draw(st.sampled_from([0, 0, 0, 0, 0, 0, 1]))
        device = draw(st.sampled_from(names))
        match draw(st.sampled_from(["send", "send", "recv", "recv", "compute", "compute", "load"])):
            case "send":
                dest = draw(st.sampled_from([name for name in names if name != device]))
                tensor = Tensor("act", n)
                code[device].append(Send(tensor, dest, draw(BYTES), lag=lag))
                pending.append((dest, Recv(tensor, device)))
            case "recv" if pending:
                dest, recv = pending.pop(draw(st.integers(0, len(pending) - 1)))
                code[dest].append(Recv(recv.tensor, recv.source, lag=lag))
            case "compute":
                first = draw(st.integers(0, LAYERS - 1))
                layers, samples = (first, LAYERS - 1), draw(st.integers(1, 3))
                back = draw(st.booleans())
                word: type[Forward | Backward] = Backward if back else Forward
                code[device].append(word(layers, 0, samples, lag=lag))
            case _:
                update = draw(st.booleans())
                code[device].append(Update((0, 1), lag) if update else Load(0, (0, 1), lag))
    for dest, recv in pending:
        code[dest].append(Recv(recv.tensor, recv.source, lag=lag))
    each = st.tuples(*[SECONDS] * LAYERS)
    plan = Plan(
        strategy="random", model="random", batch=1, mode="train", source=names[0], shards=(),
        fleet=fleet, route=draw(st.sampled_from(["min", "store_and_forward"])),
        profile=Profile(
            "random", 0, (LayerCost("l", 0, 0),) * LAYERS,
            {name: DeviceTimes(draw(each), draw(each), draw(each)) for name in names},
        ),
    )  # fmt: skip
    return Program(plan, {name: tuple(body) for name, body in code.items()})


def transfer(span: Span) -> tuple[str, float, float, int, str]:
    return span.where, span.start, span.end, span.step, span.label


@settings(max_examples=400, deadline=None)
@given(program=programs(), steps=st.integers(1, 4))
def test_it_equals_the_plain_simulator(program: Program, steps: int) -> None:
    reference = Reference(program, steps)
    reference.run()
    assert not any(reference.todo.values())
    timeline = simulate(program, steps)
    assert timeline.step_ends == tuple(reference.ends)
    spans = [transfer(span) for span in timeline.spans if span.what == "transfer"]
    assert spans == reference.transfers
    assert simulate(program, steps, spans=False).step_ends == timeline.step_ends


@settings(max_examples=100, deadline=None)
@given(program=programs(), steps=st.integers(1, 3))
def test_no_device_and_no_channel_does_two_things_at_once(program: Program, steps: int) -> None:
    last: dict[str, float] = {}
    for span in sorted(simulate(program, steps).spans, key=lambda s: (s.where, s.start, s.end)):
        assert span.end >= span.start >= last.get(span.where, 0.0)
        last[span.where] = span.end
