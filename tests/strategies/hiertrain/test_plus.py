"""hiertrain+: never worse than what it is compared with, under the simulator's price."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from weft.errors import InputError
from weft.fleet.fleet import Link
from weft.fleet.owners import Owner
from weft.fleet.parse import parse_fleet
from weft.planning.compare import compare
from weft.planning.task import make_task
from weft.plans.plan import Plan
from weft.plans.profile import DeviceTimes, LayerCost, Profile
from weft.plans.registry import make_plan
from weft.plans.task import Task
from weft.program.lower.lower import lower
from weft.program.validate import validate
from weft.simulate.price import price
from weft.strategies.hiertrain.plus import OTHERS

FLEET = """
[[device]]
name = "pi"
data = true
[[device]]
name = "nuc"
tier = "edge"
[[device]]
name = "cloud"
tier = "cloud"
[[link]]
between = ["pi", "nuc"]
mbps = {near}
[[link]]
between = ["nuc", "cloud"]
mbps = {far}
latency_ms = 5
"""


def profile(seed: float, layers: int = 4) -> Profile:
    """Activations shrink and weights grow with depth, as in a convolutional network."""
    costs = tuple(
        LayerCost(f"layer{n}", int(4_000 * 4**n * seed), int(40_000 / 3**n)) for n in range(layers)
    )

    def times(slow: float) -> DeviceTimes:
        forward = tuple(slow * 1e-4 * (n + 1) for n in range(layers))
        return DeviceTimes(forward, tuple(2 * t for t in forward), (slow * 1e-4,) * layers)

    return Profile("net", 12_000, costs, {"pi": times(20), "nuc": times(3), "cloud": times(1)})


# No shrinking: each example plans nine strategies, and the first that fails says enough.
@settings(
    max_examples=4,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)
@given(
    near=st.sampled_from([2.0, 5.0, 20.0]),
    far=st.sampled_from([1.5, 3.0, 50.0]),
    seed=st.floats(0.2, 5),
    codecs=st.sampled_from(["none", "all"]),
)
@pytest.mark.proof
def test_no_other_strategy_is_faster_with_the_same_codecs(
    near: float, far: float, seed: float, codecs: str
) -> None:
    fleet = parse_fleet(FLEET.format(near=near, far=far))
    task = make_task(profile(seed), fleet, batch=16, options={"codecs": codecs})
    plan = make_plan("hiertrain+", task)
    validate(lower(plan))
    best = price(plan).seconds
    coding = {"codec": plan.codec, "input_codec": plan.input_codec}
    plain = make_task(profile(seed), fleet, batch=16)
    for name in OTHERS:
        if name == "jalad" and codecs == "none":
            continue  # it is coded by definition
        options = {} if name == "jalad" else coding if codecs == "all" else {}
        other = make_plan(name, make_task(profile(seed), fleet, batch=16, options=options))
        assert best <= price(other).seconds * (1 + 1e-9), name
    rows = [row for row in compare(plain, ("hiertrain+", *OTHERS)) if row.valid]
    ours = next(row for row in rows if row.strategy == "hiertrain+")
    assert ours.seconds == pytest.approx(rows[0].seconds)


def test_it_says_what_it_decided() -> None:
    fleet = parse_fleet(FLEET.format(near=5, far=3))
    plan = make_plan("hiertrain+", make_task(profile(1.0), fleet, batch=16))
    assert isinstance(plan, Plan)
    assert plan.strategy == "hiertrain+"
    assert plan.codec == plan.gradient_codec == plan.input_codec == "int8"
    if "as" not in plan.decisions:
        lanes = plan.decisions["lanes"]
        assert plan.decisions["b_o"] + sum(lane["samples"] for lane in lanes) == 16


def test_more_than_three_devices_share_the_samples() -> None:
    """One more edge server beside the first, and links so fast that only computing counts."""
    more = """
        [[device]]
        name = "nuc2"
        tier = "edge"
        [[link]]
        between = ["pi", "nuc2"]
        mbps = 10000
        [[link]]
        between = ["nuc2", "cloud"]
        mbps = 10000
        """
    fleet = parse_fleet(FLEET.format(near=10_000, far=10_000) + more)
    base = profile(0.01)
    equal = dict.fromkeys(("nuc", "nuc2", "cloud"), base.devices["nuc"])
    times = {**equal, "pi": base.devices["pi"]}
    known = msgspec.structs.replace(base, devices=times)
    plan = make_plan("hiertrain+", make_task(known, fleet, batch=32))
    validate(lower(plan))
    assert len({shard.device for shard in plan.shards}) >= 4
    three = make_plan("hiertrain+", make_task(
        msgspec.structs.replace(known, devices={k: times[k] for k in ("pi", "nuc", "cloud")}),
        parse_fleet(FLEET.format(near=10_000, far=10_000)), batch=32,
    ))  # fmt: skip
    assert price(plan).seconds < 0.8 * price(three).seconds


@pytest.mark.parametrize(
    ("codecs", "expected"),
    [
        ("none", ("none", "none", "none")),
        ("activations", ("int8", "none", "none")),
        ("weights", ("int8", "int8", "none")),
        ("all", ("int8", "int8", "int8")),
    ],
)
def test_only_what_may_be_coded_is_coded(codecs: str, expected: tuple[str, str, str]) -> None:
    fleet = parse_fleet(FLEET.format(near=5, far=3))
    task = make_task(profile(1.0), fleet, batch=16, options={"codecs": codecs})
    plan = make_plan("hiertrain+", task)
    assert (plan.codec, plan.gradient_codec, plan.input_codec) == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"codec": "fp16"}, ("fp16", "int8", "int8")),
        ({"input_codec": "none"}, ("int8", "int8", "none")),
        ({"codec": "none", "input_codec": "fp16"}, ("none", "int8", "fp16")),
        ({"codecs": "none", "codec": "fp16"}, ("fp16", "none", "none")),
        ({"codecs": "all", "codec": "int8-blocks"}, ("int8-blocks", "int8", "int8")),
        ({"codecs": "activations", "input_codec": "fp16"}, ("int8", "none", "fp16")),
    ],
)
def test_a_codec_that_is_given_is_taken(
    options: dict[str, str], expected: tuple[str, str, str]
) -> None:
    """`codecs=all`, the default, once put int8 in place of what the user had named."""
    fleet = parse_fleet(FLEET.format(near=5, far=3))
    plan = make_plan("hiertrain+", make_task(profile(1.0), fleet, batch=16, options=options))
    assert (plan.codec, plan.gradient_codec, plan.input_codec) == expected


@pytest.mark.parametrize(
    "options",
    [
        {"codecs": "all", "codec": "fp16"},
        {"codecs": "none", "codec": "int8"},
        {"codecs": "weights", "input_codec": "int8"},
        {"codecs": "all", "input_codec": "none"},
    ],
)
def test_two_options_that_contradict_each_other_are_refused(options: dict[str, str]) -> None:
    fleet = parse_fleet(FLEET.format(near=5, far=3))
    task = make_task(profile(1.0), fleet, batch=16, options=options)
    with pytest.raises(InputError, match="says otherwise"):
        make_plan("hiertrain+", task)


@pytest.mark.parametrize("other", ["nuc", "cloud"])
def test_two_machines_plan_and_are_not_slower_than_the_paper_s_plan(other: str) -> None:
    whole = parse_fleet(FLEET.format(near=20, far=20))
    fleet = whole.within(("pi", other))
    if other == "cloud":
        fleet = msgspec.structs.replace(fleet, link=(Link(("pi", "cloud"), 20, 20),))
    base = profile(1.0)
    known = msgspec.structs.replace(base, devices={k: base.devices[k] for k in ("pi", other)})
    options = {"codecs": "none"}
    plus = make_plan("hiertrain+", make_task(known, fleet, batch=16, options=options))
    validate(lower(plus))
    for name in ("hiertrain", "all-edge" if other == "nuc" else "all-cloud", "all-device"):
        rival = make_plan(name, make_task(known, fleet, batch=16))
        validate(lower(rival))
        assert price(plus).seconds <= price(rival).seconds * (1 + 1e-9)


TWO_WITH_DATA = (
    FLEET.replace('name = "pi"\ndata = true', 'name = "pi"\ndata = true\nsamples = 30')
    + """
[[device]]
name = "pj"
data = true
samples = 10
[[link]]
between = ["pj", "nuc"]
mbps = {near}
"""
)


def two_with_data(near: float, far: float, batch: int = 16, **options: str) -> Task:
    base = profile(1.0)
    known = msgspec.structs.replace(base, devices={**base.devices, "pj": base.devices["pi"]})
    return make_task(
        known, parse_fleet(TWO_WITH_DATA.format(near=near, far=far)), batch=batch, options=options
    )


@pytest.mark.parametrize(("near", "far"), [(5, 1.5), (5, 50), (500, 500)])
def test_several_devices_with_data_share_the_batch_the_edge_and_the_links(
    near: float, far: float
) -> None:
    task = two_with_data(near, far, codecs="none")
    plan = make_plan("hiertrain+", task)
    validate(lower(plan))
    assert plan.owners == task.owners == (Owner("pi", 12), Owner("pj", 4))
    for name in ("all-edge", "all-cloud"):
        rival = make_plan(name, two_with_data(near, far))
        validate(lower(rival))
        assert price(plan).seconds <= price(rival).seconds * (1 + 1e-9)


def test_the_edge_s_time_and_the_link_behind_it_count_once_for_all_devices() -> None:
    """Two devices of half the batch each: as much to compute, and as much over the shared link."""
    task = two_with_data(1000, 2)
    plan = make_plan("all-cloud", task)
    predicted = price(plan)
    alone = make_plan("all-cloud", make_task(
        profile(1.0), parse_fleet(FLEET.format(near=1000, far=2)), batch=16
    ))  # fmt: skip
    assert predicted.compute_s["cloud"] == pytest.approx(price(alone).compute_s["cloud"])
    assert predicted.transfer_bytes["nuc>cloud"] == price(alone).transfer_bytes["nuc>cloud"]
    assert predicted.transfer_bytes["pi>nuc"] == 3 * predicted.transfer_bytes["pj>nuc"]


@pytest.mark.parametrize("name", ["hiertrain", "chain", "jalad", "jointdnn+", "edgemove"])
def test_who_knows_one_device_with_data_refuses_several_in_words(name: str) -> None:
    with pytest.raises(InputError, match=r"one device; the fleet has data on pi, pj.*hiertrain\+"):
        make_plan(name, two_with_data(5, 5))


@pytest.mark.parametrize("name", ["decoupled", "fedavg"])
def test_peers_say_that_each_opens_its_own_samples(name: str) -> None:
    """Seen: they were said to train with the data of one device."""
    with pytest.raises(InputError, match=r"every device opens its own samples.*at pi, pj"):
        make_plan(name, two_with_data(5, 5))
