"""Plans with lanes become programs: every sample through every layer once, every copy averaged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.plans.plan import Plan
from weft.program.instructions import (
    Backward,
    Forward,
    Load,
    Loss,
    Recv,
    Reduce,
    Send,
    Update,
)
from weft.program.lower.layout import layout_of
from weft.program.lower.lower import lower
from weft.program.program import Program
from weft.program.validate import validate

MakeLanes = Callable[..., Plan]
AnyLanes = Callable[..., st.SearchStrategy[Plan]]


def carried(i: Send | Recv) -> str:
    return str(i.tensor) if i.also is None else f"{i.tensor}+{i.also}"


def spell(program: Program, device: str) -> str:
    """A device's code in short words: `F0-1.2` is the forward of layers 0 to 1, piece 2."""
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
            case Reduce():
                word = "take" if i.replace else "add"
                words.append(f"{word}({','.join(str(part) for part in i.parts)})")
            case _:
                words.append(f"{type(i).__name__.lower()}.{i.micro}")
    return " ".join(words)


def test_hiertrain_reads_as_it_is_drawn(make_lanes: MakeLanes) -> None:
    """s = a with layer 0, l = b with layers 0 and 1, o = c; the data at a."""
    program = lower(make_lanes((2, "acc"), (1, "ccc"), (1, "bbc")))
    assert spell(program, "a") == (
        "load2:3 act0.1+target0.1>c load3:4 act0.2>b target0.2>c "
        "load0:2 F0-0.0 act1.0+target0.0>c grad1.0<c B0-0.0 wgrad0.0>c "
        "wsum0.0<c take(wsum0.0) U0-0"
    )
    assert spell(program, "b") == (
        "act0.2<a F0-0.2 F1-1.2 act2.2>c grad2.2<c B1-1.2 wgrad1.2>c B0-0.2 wgrad0.2>c "
        "wsum1.2<c take(wsum1.2) U1-1 wsum0.2<c take(wsum0.2) U0-0"
    )
    assert spell(program, "c") == (
        "act0.1+target0.1<a F0-0.1 F1-1.1 act1.0+target0.0<a F1-1.0 "
        "F2-2.1 loss.1 F2-2.0 loss.0 act2.2<b F2-2.2 target0.2<a loss.2 "
        "B2-2.0 B2-2.2 grad2.2>b B2-2.1 B1-1.0 grad1.0>a B1-1.1 B0-0.1 U2-2 "
        "wgrad1.2<b add(wgrad1.2) wsum1.2>b U1-1 "
        "wgrad0.0<a wgrad0.2<b add(wgrad0.0,wgrad0.2) wsum0.0>a wsum0.2>b U0-0"
    )


def test_a_source_without_layers_feeds_every_lane_and_is_told_when_to_go_on(
    make_lanes: MakeLanes,
) -> None:
    program = lower(make_lanes((2, "bc"), (1, "cc"), source="d", ahead=2))
    assert (
        spell(program, "d") == "done0.0<c load0:2 act0.0>b target0.0>c load2:3 act0.1+target0.1>c"
    )
    assert program.code["d"][0].lag == 2
    assert spell(program, "c").endswith("U0-0 done0.0>d")
    assert "done" not in spell(program, "b")


@pytest.mark.parametrize("way", ["bab", "bba", "babab", "abab", "bacab", "abacb"])
def test_labels_ride_only_with_what_leaves_the_source_first(
    make_lanes: MakeLanes, way: str
) -> None:
    """A piece may come back to the source and leave again; its labels left the first time."""
    program = lower(make_lanes((2, way), (2, "a" * len(way))))
    validate(program)
    check_labels(program)


def check_labels(program: Program) -> None:
    """Both ends of a message agree on what rides in it, and every loss has its labels once."""
    sends = {
        (device, i.dest, i.tensor): i.also
        for device, code in program.code.items() for i in code if isinstance(i, Send)
    }  # fmt: skip
    there: Counter[tuple[str, int]] = Counter()
    for device, code in program.code.items():
        for i in code:
            if isinstance(i, Recv):
                assert i.also == sends[i.source, device, i.tensor]
                for tensor in (i.tensor, i.also):
                    if tensor is not None and tensor.kind == "target":
                        there[device, tensor.micro] += 1
            if isinstance(i, Loss) and device != program.plan.source:
                assert there.pop((device, i.micro)) == 1
    assert not there, "labels where nobody wants them"


@given(data=st.data())
def test_any_lanes_run_to_the_end_and_compute_every_sample_in_every_layer_once(
    any_lanes: AnyLanes, data: st.DataObject
) -> None:
    plan = data.draw(any_lanes())
    program = lower(plan)
    validate(program)
    pieces = layout_of(plan).pieces
    everything = {(n, m): 1 for n in range(plan.batch) for m in range(len(plan.profile.layers))}
    for what in (Forward, Backward):
        done: Counter[tuple[int, int]] = Counter()
        for code in program.code.values():
            for i in code:
                if isinstance(i, what):
                    piece = pieces[i.micro]
                    assert i.samples == piece.samples
                    for n in range(piece.first, piece.first + piece.samples):
                        done.update((n, m) for m in range(i.layers[0], i.layers[1] + 1))
        assert done == everything
    losses = [i for code in program.code.values() for i in code if isinstance(i, Loss)]
    assert sum(i.samples for i in losses) == plan.batch
    loads = [i for i in program.code[plan.source] if isinstance(i, Load)]
    assert sorted(n for i in loads for n in range(*i.samples)) == list(range(plan.batch))
    check_labels(program)


@given(data=st.data())
def test_every_shared_segment_is_added_up_once_and_its_sum_goes_to_every_holder(
    any_lanes: AnyLanes, data: st.DataObject
) -> None:
    codec = data.draw(st.sampled_from(["none", "fp16", "int8"]))
    plan = data.draw(any_lanes(gradient_codec=codec))
    program, lanes = lower(plan), layout_of(plan)
    rank = {device: n for n, device in enumerate(plan.devices)}
    for g, layers in enumerate(lanes.segments):
        holders, root = lanes.holders(g), lanes.root(g)
        others = {rank[d] for d in holders if d != root}
        for device, code in program.code.items():
            reduces = [i for i in code if isinstance(i, Reduce) and i.layers == layers]
            updates = [
                n for n, i in enumerate(code) if isinstance(i, Update) and i.layers == layers
            ]
            sums = [i for i in code if isinstance(i, Send)
                    and i.tensor.kind == "wsum" and i.tensor.at == layers[0]]  # fmt: skip
            given_ = [i for i in code if isinstance(i, Send)
                      and i.tensor.kind == "wgrad" and i.tensor.at == layers[0]]  # fmt: skip
            assert len(updates) == (device in holders)
            assert len(reduces) == (device in holders and len(holders) > 1)
            assert len(given_) == (device in holders and device != root)
            assert {i.tensor.micro for i in sums} == (others if device == root else set())
            assert all(i.codec == codec for i in (*sums, *given_))
            for i in reduces:
                assert code.index(i) < updates[0]
                assert i.replace == (device != root)
                # who adds rounds the sum as it leaves: else its copy of the weights drifts away
                assert i.codec == (codec if device == root else "none")
                expected = others if device == root else {rank[device]}
                assert {part.micro for part in i.parts} == expected
                assert {part.kind for part in i.parts} == {"wgrad" if device == root else "wsum"}


@pytest.mark.parametrize(
    ("codec", "size"), [("none", 3000), ("fp16", 1500), ("int8", 750 + 8)]
)  # fmt: skip
def test_gradients_of_weights_have_the_bytes_of_their_codec(
    make_lanes: MakeLanes, codec: str, size: int
) -> None:
    program = lower(make_lanes((2, "aa"), (2, "bb"), gradient_codec=codec))
    sizes = [
        i.bytes for code in program.code.values() for i in code
        if isinstance(i, Send) and i.tensor.kind in ("wgrad", "wsum")
    ]  # fmt: skip
    assert sizes == [size, size]


@pytest.mark.parametrize(
    ("codec", "samples", "cut"), [("none", 120, 20), ("fp16", 60, 10), ("int8", 38, 13)]
)
def test_samples_have_a_codec_of_their_own(
    make_lanes: MakeLanes, codec: str, samples: int, cut: int
) -> None:
    for field, act0, act1 in (("input_codec", samples, 20), ("codec", 120, cut)):
        program = lower(make_lanes((2, "bc"), source="a", **{field: codec}))
        sizes = {
            i.tensor.kind + str(i.tensor.at): i.bytes
            for code in program.code.values() for i in code if isinstance(i, Send)
        }  # fmt: skip
        assert sizes == {"act0": act0, "target0": 16, "act1": act1, "grad1": act1, "done0": 0}
