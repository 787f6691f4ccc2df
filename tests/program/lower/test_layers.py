"""Plans become the programs that one would write by hand."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import InputError
from weft.plans.plan import Part, Plan, Shard
from weft.program.instructions import Backward, Forward, Load, Recv, Send, Update
from weft.program.lower.lower import lower
from weft.program.program import Program
from weft.program.validate import check_flow

MakePlan = Callable[..., Plan]


def carried(i: Send | Recv) -> str:
    return str(i.tensor) if i.also is None else f"{i.tensor}+{i.also}"


def spell(program: Program, device: str) -> str:
    """A device's code in short words: `F0-1.0` is the forward of layers 0 to 1, micro-batch 0."""
    words = []
    for i in program.code[device]:
        match i:
            case Load():
                words.append(f"load{i.samples[0]}:{i.samples[1]}")
            case Recv():
                words.append(f"{carried(i)}<{i.source}")
            case Send():
                words.append(f"{carried(i)}>{i.dest}")
            case Forward() | Backward():
                words.append(f"{type(i).__name__[0]}{i.layers[0]}-{i.layers[1]}.{i.micro}")
            case Update():
                words.append(f"U{i.layers[0]}-{i.layers[1]}")
            case _:
                words.append(f"{type(i).__name__.lower()}.{i.micro}")
    return " ".join(words)


def test_two_stages_with_two_in_flight(make_plan: MakePlan) -> None:
    program = lower(make_plan("phone", "phone", "edge", micro_batches=3, in_flight=2))
    assert spell(program, "phone") == (
        "load0:2 F0-1.0 act2.0+target0.0>edge "
        "load2:3 F0-1.1 act2.1+target0.1>edge "
        "grad2.0<edge B0-1.0 "
        "load3:4 F0-1.2 act2.2+target0.2>edge "
        "grad2.1<edge B0-1.1 grad2.2<edge B0-1.2 U0-1"
    )
    assert spell(program, "edge") == (
        "act2.0+target0.0<phone F2-2.0 loss.0 B2-2.0 grad2.0>phone "
        "act2.1+target0.1<phone F2-2.1 loss.1 B2-2.1 grad2.1>phone "
        "act2.2+target0.2<phone F2-2.2 loss.2 B2-2.2 grad2.2>phone U2-2"
    )


@pytest.mark.parametrize(
    ("owners", "source", "rides"),
    [
        ("ab", "a", True), ("b", "a", True), ("bcb", "a", True), ("abab", "a", True),
        ("aab", "a", True), ("abc", "a", False), ("bc", "a", False), ("aba", "a", False),
        ("a", "a", False),
    ],
)  # fmt: skip
def test_labels_ride_with_the_activation_that_goes_where_the_loss_is(
    make_plan: MakePlan, owners: str, source: str, rides: bool
) -> None:
    """Once and only once, whichever of the device's stages the activation is for."""
    plan = make_plan(*owners, source=source, batch=2)
    program = lower(plan)
    check_flow(program)
    sends = [i for i in program.code[source] if isinstance(i, Send)]
    riding = [i for i in sends if i.also is not None]
    assert len(riding) == rides
    for send in riding:
        assert send.bytes == 2 * (plan.profile.cut_bytes(send.tensor.at) + 8)
    alone = [i for i in sends if i.tensor.kind == "target"]
    assert len(alone) == (owners[-1] != source and not rides)


def test_a_source_without_layers_sends_samples_and_labels_and_is_told_when_to_go_on(
    make_plan: MakePlan,
) -> None:
    program = lower(make_plan("a", "b", source="home", micro_batches=2, in_flight=2))
    assert spell(program, "home") == (
        "done0.0<a load0:2 act0.0>a target0.0>b load2:4 act0.1>a target0.1>b"
    )
    assert spell(program, "a").startswith("act0.0<home F0-0.0 act1.0>b ")
    assert spell(program, "a").endswith("U0-0 done0.0>home")
    assert "grad0" not in spell(program, "a")
    assert "done" not in spell(program, "b")


@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_a_source_without_layers_stays_so_many_minibatches_ahead(
    make_plan: MakePlan, ahead: int
) -> None:
    program = lower(make_plan("a", "b", source="home", ahead=ahead))
    assert [i.lag for i in program.code["home"]] == [ahead, 0, 0, 0]
    check_flow(program)
    with pytest.raises(InputError, match="ahead = 0"):
        lower(make_plan("a", "b", source="home", ahead=0))


def test_a_source_with_layers_is_told_by_its_gradients(make_plan: MakePlan) -> None:
    for owners in ("ab", "ba"):
        program = lower(make_plan(*owners, source="a"))
        assert "done" not in spell(program, "a") + spell(program, "b")


def test_there_and_back_again_on_one_device(make_plan: MakePlan) -> None:
    program = lower(make_plan("d", "c", "d"))
    assert spell(program, "d") == (
        "load0:4 F0-0.0 act1.0>c act2.0<c F2-2.0 loss.0 B2-2.0 grad2.0>c grad1.0<c B0-0.0 U0-0 U2-2"
    )
    assert spell(program, "c") == ("act1.0<d F1-1.0 act2.0>d grad2.0<d B1-1.0 grad1.0>d U1-1")


def test_an_inference_feeds_ahead_then_waits_for_answers(make_plan: MakePlan) -> None:
    plan = make_plan("a", "b", source="me", mode="infer", batch=3, micro_batches=3, in_flight=2)
    program = lower(plan)
    assert spell(program, "me") == (
        "load0:1 act0.0>a load1:2 act0.1>a act2.0<b emit.0 load2:3 act0.2>a "
        "act2.1<b emit.1 act2.2<b emit.2"
    )
    assert spell(program, "b") == (
        "act1.0<a F1-1.0 act2.0>me act1.1<a F1-1.1 act2.1>me act1.2<a F1-1.2 act2.2>me"
    )


def test_one_device_alone_sends_nothing(make_plan: MakePlan) -> None:
    assert spell(lower(make_plan("d", "d")), "d") == "load0:4 F0-1.0 loss.0 B0-1.0 U0-1"
    infer = make_plan("d", "d", mode="infer")
    assert spell(lower(infer), "d") == "load0:4 F0-1.0 emit.0"


@pytest.mark.parametrize(
    ("codec", "act", "grad"), [("none", 20, 20), ("fp16", 10, 10), ("int8", 13, 13)]
)
def test_activations_and_gradients_are_coded_samples_and_labels_are_not(
    make_plan: MakePlan, codec: str, act: int, grad: int
) -> None:
    plan = make_plan("a", "b", source="home", batch=2, codec=codec)
    sizes = {
        str(i.tensor): (i.bytes, i.codec)
        for code in lower(plan).code.values() for i in code if isinstance(i, Send)
    }  # fmt: skip
    assert sizes == {
        "act0.0": (120, "none"), "target0.0": (16, "none"), "done0.0": (0, "none"),
        "act1.0": (act, codec), "grad1.0": (grad, codec),
    }  # fmt: skip


def test_gradients_have_their_own_size_where_a_cut_is_not_all_differentiable(
    make_plan: MakePlan,
) -> None:
    plan = make_plan("a", "b", batch=2)
    layers = plan.profile.layers
    part = msgspec.structs.replace(layers[0], backward_bytes=3)
    profile = msgspec.structs.replace(plan.profile, layers=(part, *layers[1:]))
    program = lower(msgspec.structs.replace(plan, profile=profile))
    assert [i.bytes for i in program.code["b"] if isinstance(i, Send)] == [6]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"shards": (Shard("a", (0, 0)),)}, "up to 0"),
        ({"shards": (Shard("a", (0, 0)), Shard("b", (0, 1)))}, "begin at layer 1"),
        ({"shards": (Shard("a", (0, 0)), Shard("b", (1, 2)))}, "layers 0 to 1"),
        ({"shards": (Shard("a", (0, 1), Part(rows=(0, 3))),)}, "part .* only whole layers"),
        ({"shards": (Shard("a", (0, 1), Part(units=(1, 2))),)}, "part .* only whole layers"),
        ({"shards": (Shard("a", (0, 1), Part(classes=(0,))),)}, "part .* only whole layers"),
        ({"shards": (Shard("nobody", (0, 1)),)}, "nobody"),
        ({"shards": ()}, "layers 0 to 1"),
        ({"micro_batches": 5}, "micro_batches = 5"),
        ({"micro_batches": 0}, "micro_batches = 0"),
        ({"in_flight": 0}, "in_flight = 0"),
    ],
)
def test_a_plan_that_cannot_be_lowered_says_why(
    make_plan: MakePlan, change: dict[str, object], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        lower(msgspec.structs.replace(make_plan("a", "b"), **change))


def test_a_device_with_two_stages_cannot_be_pipelined(make_plan: MakePlan) -> None:
    with pytest.raises(InputError, match="device d has several shards and micro_batches = 2"):
        lower(make_plan("d", "c", "d", micro_batches=2))


@given(data=st.data())
def test_every_lowered_plan_runs_to_its_end_and_computes_every_layer_once(
    make_plan: MakePlan, data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, 5))
    runs = data.draw(st.lists(st.integers(1, 3), min_size=count, max_size=count))
    pipelined = data.draw(st.booleans())
    devices = st.permutations("abcde") if pipelined else st.lists(
        st.sampled_from("abc"), min_size=5, max_size=5)  # fmt: skip
    names = data.draw(devices)
    owners = [name for name, run in zip(names, runs, strict=False) for _ in range(run)]
    batch = data.draw(st.integers(1, 9))
    micro = data.draw(st.integers(1, batch)) if pipelined else 1
    plan = make_plan(
        *owners,
        batch=batch,
        micro_batches=micro,
        in_flight=data.draw(st.integers(1, 6)),
        mode=data.draw(st.sampled_from(["train", "infer"])),
        source=data.draw(st.sampled_from("abcdef")),
    )
    program = lower(plan)
    check_flow(program)
    done = [
        (layer, i.micro, i.samples)
        for code in program.code.values() for i in code if isinstance(i, Forward)
        for layer in range(i.layers[0], i.layers[1] + 1)
    ]  # fmt: skip
    assert len(done) == len({(layer, m) for layer, m, _ in done}) == len(owners) * micro
    assert sum(samples for _, _, samples in done) == len(owners) * batch
