"""Plans with lanes, graphs and tasks, for the tests of several packages."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from weft.fleet.fleet import Device, Fleet, Link
from weft.graph.network import Arg, Graph, Layer, Node, Ref, State, Value
from weft.plans.plan import Part, Plan, Shard
from weft.plans.profile import DeviceTimes, LayerCost, Profile
from weft.plans.task import Task

NAMES = "abcd"

# No test depends on how fast this machine is at the moment.
settings.register_profile("weft", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("weft")


def lane_shards(lanes: Sequence[tuple[int, str]]) -> tuple[Shard, ...]:
    """(samples, owner of each layer) per lane; neighbouring layers of one owner are one shard."""
    shards, offset = [], 0
    for samples, owners in lanes:
        for owner, run in groupby(range(len(owners)), key=owners.__getitem__):
            layers = list(run)
            shards.append(Shard(owner, (layers[0], layers[-1]), Part(samples, offset)))
        offset += samples
    return tuple(shards)


def lane_plan(
    *lanes: tuple[int, str],
    times: Mapping[str, DeviceTimes] | None = None,
    mbps: float | Mapping[tuple[str, str], float] = 8.0,
    layers: tuple[LayerCost, ...] = (),
    **fields: Any,
) -> Plan:
    """`lane_plan((3, "aab"), (1, "bbb"))`: three samples over a and b, one at b; data at a.

    Layer n has 1000 * (n + 1) bytes of weights and 10 * (n + 1) of output, and takes a second
    there and a second back on every device; 8 Mbit/s carry a million bytes a second.
    """
    count = len(lanes[0][1])
    pairs = [(a, b) for a in NAMES for b in NAMES if a < b]
    rates = mbps if isinstance(mbps, Mapping) else dict.fromkeys(pairs, mbps)
    costs = layers or tuple(LayerCost(f"l{n}", 1000 * n, 10 * n) for n in range(1, count + 1))
    second = DeviceTimes((1.0,) * count, (1.0,) * count, (0.0,) * count)
    settings: dict[str, Any] = {
        "strategy": "by hand", "model": "toy", "mode": "train", "source": "a",
        "batch": sum(samples for samples, _ in lanes), "shards": lane_shards(lanes),
    }  # fmt: skip
    return Plan(
        **{**settings, **fields},
        fleet=Fleet(
            tuple(Device(name) for name in NAMES),
            tuple(Link(pair, rates[pair], rates[pair]) for pair in pairs),
        ),
        profile=Profile("toy", 60, costs, dict(times or dict.fromkeys(NAMES, second))),
    )


def _random_costs(draw: st.DrawFn, count: int) -> dict[str, Any]:
    """Layers, devices and links of any proportion to each other."""
    size, seconds = st.integers(0, 100_000), st.floats(0.001, 1.0)
    per_layer = st.lists(seconds, min_size=count, max_size=count).map(tuple)
    pairs = [(a, b) for a in NAMES for b in NAMES if a < b]
    return {
        "layers": tuple(LayerCost(f"l{n}", draw(size), draw(size)) for n in range(count)),
        "times": {d: DeviceTimes(draw(per_layer), draw(per_layer), draw(per_layer)) for d in NAMES},
        "mbps": {pair: draw(st.floats(0.5, 50.0)) for pair in pairs},
    }


@st.composite
def random_lanes(draw: st.DrawFn, /, **fields: Any) -> Plan:
    """Any lanes over three devices, whichever way they go; the data may be on a fourth."""
    count = draw(st.integers(1, 5))
    owners = st.text("abc", min_size=count, max_size=count)
    lanes = draw(st.lists(st.tuples(st.integers(1, 5), owners), min_size=1, max_size=4))
    batch = sum(samples for samples, _ in lanes)
    drawn = {
        "micro_batches": draw(st.integers(1, batch)),
        "schedule": draw(st.sampled_from(["staged", "eager"])),
        "stream": draw(st.booleans()),
        "source": draw(st.sampled_from(NAMES)),
        "ahead": draw(st.integers(1, 2)),
        "route": draw(st.sampled_from(["min", "store_and_forward"])),
    }
    return lane_plan(*lanes, **{**drawn, **_random_costs(draw, count), **fields})


@st.composite
def random_hiertrain(draw: st.DrawFn, /, **fields: Any) -> Plan:
    """Lanes as HierTrain makes them: b over s and o, o alone, b over l and o; the data at a."""
    count = draw(st.integers(2, 6))
    o, s, l = draw(st.permutations("abc"))  # noqa: E741
    first, second = sorted((draw(st.integers(1, count)), draw(st.integers(1, count))))
    shares = [draw(st.integers(1, 12)) for _ in range(3)]
    ways = [s * first + o * (count - first), o * count, l * second + o * (count - second)]
    kept = [draw(st.integers(0, 9)) > 0 for _ in ways]
    lanes = [lane for lane, keep in zip(zip(shares, ways, strict=True), kept, strict=True) if keep]
    return lane_plan(*(lanes or [(shares[1], ways[1])]), **{**_random_costs(draw, count), **fields})


@pytest.fixture(scope="session")
def make_lanes() -> Callable[..., Plan]:
    return lane_plan


@pytest.fixture(scope="session")
def any_lanes() -> Callable[..., st.SearchStrategy[Plan]]:
    return random_lanes


@pytest.fixture(scope="session")
def any_hiertrain() -> Callable[..., st.SearchStrategy[Plan]]:
    return random_hiertrain


@pytest.fixture(scope="session")
def one_thread() -> Iterator[None]:
    """As the nodes compute: several threads add up in another order, and wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Graphs and keys that tests keep are not the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


def chain_graph(module: nn.Sequential, x: Tensor) -> Graph:
    """A chain as capture would see it, without its cost: one layer per convolution or linear."""
    source = "x"
    values = {source: Value((1, *x.shape[1:]), "float32")}
    layers: list[Layer] = []
    for number, (key, part) in enumerate(module.named_children()):
        op, args = _call(part, key)
        heavy = isinstance(part, (nn.Conv2d, nn.Linear))
        if not layers or isinstance(part, nn.Flatten) or (heavy and layers[-1].state):
            layers.append(Layer(f"layer{key}", [], [], 0.0, 0))
        layers[-1].nodes.append(Node(f"n{number}", f"aten.{op}", [Ref(source), *args]))
        layers[-1].state.extend(f"{key}.{name}" for name in part.state_dict())
        source, x = f"n{number}", part(x)
        values[source] = Value((1, *x.shape[1:]), "float32")
    state = {
        name: State(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        for name, tensor in module.state_dict().items()
        if tensor.ndim
    }
    return Graph("chain", ["x"], source, layers, values, state)


def _call(part: Any, key: str) -> tuple[str, list[Arg]]:
    """The operator of a module and its arguments after the input."""
    named: list[Arg] = [Ref(f"{key}.{name}") for name in part.state_dict()]
    match part:
        case nn.Conv2d():
            window = [list(part.stride), list(part.padding), list(part.dilation), part.groups]
            return "conv2d.default", [
                named[0],
                named[1] if part.bias is not None else None,
                *window,
            ]
        case nn.Linear():
            return "linear.default", named
        case nn.BatchNorm2d() | nn.BatchNorm1d():
            return "batch_norm.default", [*named[:4], False, 0.1, part.eps, False]
        case nn.MaxPool2d():
            sizes = [[n, n] for n in (part.kernel_size, part.stride, part.padding, part.dilation)]
            return "max_pool2d.default", [*sizes, part.ceil_mode]
        case nn.AvgPool2d():
            sizes = [[n, n] for n in (part.kernel_size, part.stride, part.padding)]
            rest = [part.ceil_mode, part.count_include_pad, part.divisor_override]
            return "avg_pool2d.default", [*sizes, *rest]
        case nn.AdaptiveAvgPool2d():
            return "adaptive_avg_pool2d.default", [[part.output_size, part.output_size]]
        case nn.PixelShuffle():
            return "pixel_shuffle.default", [part.upscale_factor]
        case nn.PixelUnshuffle():
            return "pixel_unshuffle.default", [part.downscale_factor]
        case nn.Upsample():
            return "upsample_nearest2d.vec", [None, [part.scale_factor, part.scale_factor]]
        case nn.ZeroPad2d():
            return "pad.default", [list(part.padding), "constant", 0.0]
        case nn.Dropout():
            return "dropout.default", [part.p, False]
        case nn.Flatten():
            return "flatten.using_ints", [1]
        case nn.Softmax():
            return "softmax.int", [part.dim]
        case nn.ReLU() | nn.Tanh():
            return f"{type(part).__name__.lower()}.default", []
    raise AssertionError(part)


@pytest.fixture(scope="session")
def graph_of() -> Callable[[nn.Sequential, Tensor], Graph]:
    """`graph_of(nn.Sequential(...), x)`, in milliseconds"""
    return chain_graph


def _pool(draw: st.DrawFn, height: int) -> nn.Module | None:
    kind = draw(st.sampled_from(["none", "max", "average", "average", "divided"]))
    kernel, stride = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    padding, ceil = draw(st.integers(0, kernel // 2)), draw(st.booleans())
    spread = draw(st.integers(1, 2)) if kind == "max" else 1
    if kind == "none" or height + 2 * padding < spread * (kernel - 1) + 1:
        return None
    if kind == "max":
        return nn.MaxPool2d(kernel, stride, padding, spread, ceil_mode=ceil)
    divisor = 3 if kind == "divided" else None
    return nn.AvgPool2d(kernel, stride, padding, ceil, draw(st.booleans()), divisor)


@st.composite
def random_chain(draw: st.DrawFn) -> tuple[nn.Sequential, Tensor]:
    """Convolutions and pools of any kind, and an input of any height for them."""
    start = draw(st.integers(5, 23))
    x = torch.randn(2, 2, start, draw(st.integers(9, 12)))
    module = nn.Sequential()
    for _ in range(draw(st.integers(1, 4))):
        kernel, spread = draw(st.integers(1, 4)), draw(st.integers(1, 2))
        stride, padding = draw(st.integers(1, 3)), draw(st.integers(0, 3))
        height, width = module(x).shape[2:]
        if min(height, width) + 2 * padding < spread * (kernel - 1) + 1:
            break
        made, channels = draw(st.sampled_from([2, 4])), module(x).shape[1]
        groups = 1 if channels % 2 else draw(st.sampled_from([1, 2]))
        module.append(nn.Conv2d(channels, made, kernel, stride, padding, spread, groups))
        more = draw(st.sampled_from(["", "relu", "norm", "finer", "near", "zeros"]))
        if more:
            module.append(_EXTRA[more](made))
        pool = _pool(draw, min(module(x).shape[2:]))
        if pool is not None:
            module.append(pool)
    if not len(module):
        module.append(nn.Conv2d(2, 2, 1))
    return module.eval(), x


_EXTRA: dict[str, Callable[[int], nn.Module]] = {
    "relu": lambda _: nn.ReLU(),
    "norm": nn.BatchNorm2d,
    "finer": lambda made: nn.PixelShuffle(2) if made == 4 else nn.Tanh(),
    "near": lambda _: nn.Upsample(scale_factor=2),
    "zeros": lambda _: nn.ZeroPad2d((1, 0, 2, 1)),
}


@pytest.fixture(scope="session")
def any_chain() -> Callable[..., st.SearchStrategy[tuple[nn.Sequential, Tensor]]]:
    return random_chain


def _serial_price(plan: Plan) -> float:
    """Computing and sending one after the other; micro-batches hide all but their share of it."""
    work = math.fsum(
        plan.profile.devices[shard.device].forward(*shard.layers, plan.batch)
        for shard in plan.shards
    )
    devices = [plan.source, *(shard.device for shard in plan.shards)]
    cuts = [plan.profile.cut_bytes(shard.layers[0]) for shard in plan.shards]
    sending = 0.0
    for before, after, size in zip(devices, devices[1:], cuts, strict=False):
        sending += plan.batch * size / plan.fleet.path_rate(before, after, plan.route)
    return work + sending / min(plan.micro_batches, plan.in_flight)


@pytest.fixture(scope="session")
def serial_price() -> Callable[[Plan], float]:
    """A price that needs no simulator."""
    return _serial_price


THREE = Fleet(
    (Device("pi"), Device("nuc", "edge"), Device("cloud", "cloud")),
    (Link(("pi", "nuc"), 5, 5), Link(("nuc", "cloud"), 3, 3)),
)


@pytest.fixture(scope="session")
def make_task() -> Callable[..., Task]:
    """A task of even layers on pi, nuc (8 times as fast) and cloud (40 times), to be varied."""

    def make(
        fleet: Fleet = THREE,
        mode: str = "train",
        batch: int = 8,
        speeds: dict[str, float] | None = None,
        price: Callable[[Plan], float] = _serial_price,
        source: str = "pi",
        layers: int = 4,
        **options: str,
    ) -> Task:
        fast = {"pi": 1.0, "nuc": 8.0, "cloud": 40.0} | (speeds or {})
        slow = DeviceTimes((1.0,) * layers, (2.0,) * layers, (0.1,) * layers)
        cost = LayerCost("layer", 1_000_000, 10_000)
        devices = {name: slow.scaled(1 / fast.get(name, 1.0)) for name in fleet.names}
        profile = Profile("even", 40_000, (cost,) * layers, devices)
        return Task(profile, fleet, batch, mode, source, price, options)  # type: ignore[arg-type]

    return make
