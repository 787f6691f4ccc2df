"""What a plan needs of memory, reckoned by hand."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import InputError, WeftError
from weft.plans.plan import Part, Plan, Shard
from weft.program.lower.lower import lower
from weft.program.memory import check_memory, fits, memory_bytes
from weft.program.validate import validate

MakePlan = Callable[..., Plan]


@pytest.mark.parametrize(("optimizer", "copies"), [("sgd", 2), ("momentum", 3)])
def test_training_keeps_weights_gradients_the_optimizers_state_and_activations(
    make_plan: MakePlan, optimizer: str, copies: int
) -> None:
    """In the backward pass there are, per sample, the input (60), what both layers keep (200), the
    gradient of the output (20), and what the pass works on, the first layer's ends and inside (170)."""
    plan = make_plan("d", "d", optimizer=optimizer)
    assert memory_bytes(plan) == {"d": copies * 3000 + 4 * (60 + 200 + 20 + 170)}


def test_adam_needs_room_for_two_tensors_of_the_largest_layer(make_plan: MakePlan) -> None:
    assert memory_bytes(make_plan("d", "d", optimizer="adamw")) == {
        "d": 4 * 3000 + 4 * 60 + 2 * 2000
    }


def test_each_word_after_the_optimizers_name_is_one_tensor_more(make_plan: MakePlan) -> None:
    plain, largest = (
        memory_bytes(make_plan("d", "d", optimizer=words))["d"]
        for words in ("adam", "adam amsgrad")
    )
    assert largest - plain == 3000


def test_a_pipeline_keeps_what_is_in_flight(make_plan: MakePlan) -> None:
    """One more piece of 2 samples: at a its activations (200), its message with labels (20 + 16) and a
    gradient that may wait (20); at b a message that may wait."""
    one, two, three = (
        memory_bytes(make_plan("a", "b", batch=8, micro_batches=4, in_flight=k)) for k in (1, 2, 3)
    )
    assert two["a"] - one["a"] == three["a"] - two["a"] == 200 + 36 + 20
    assert two["b"] - one["b"] == three["b"] - two["b"] == 36


def test_a_source_without_layers_may_fill_the_first_devices_mailbox(make_plan: MakePlan) -> None:
    """Each minibatch that the source is ahead: 8 samples of 60 bytes and their labels of 8."""
    plans = [make_plan("a", source="home", batch=8, micro_batches=4, ahead=k) for k in (1, 3)]
    one, three = (memory_bytes(plan) for plan in plans)
    assert three["a"] - one["a"] == 2 * 8 * 68
    assert three["home"] == one["home"] >= 8 * 60 + 8 * 68


def test_inference_keeps_one_copy_and_what_one_layer_works_on(make_plan: MakePlan) -> None:
    """Per sample: the input until the next is loaded (60), what a layer works on (170), the output (20)."""
    plan = make_plan("d", "d", mode="infer", optimizer="adam")
    assert memory_bytes(plan) == {"d": 3000 + 4 * (60 + 170 + 20)}


@given(data=st.data())
def test_a_chain_has_one_memory_whether_written_as_stages_or_as_a_share_of_all_samples(
    make_plan: MakePlan, data: st.DataObject
) -> None:
    owners = data.draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=5))
    source, batch = data.draw(st.sampled_from("abcd")), data.draw(st.integers(1, 6))
    optimizer = data.draw(st.sampled_from(["sgd", "adam"]))
    plan = make_plan(*owners, source=source, batch=batch, optimizer=optimizer)
    lane = tuple(Shard(s.device, s.layers, Part(batch, 0)) for s in plan.shards)
    shares = msgspec.structs.replace(plan, shards=lane)
    assert memory_bytes(plan) == memory_bytes(shares)


def test_shares_of_samples_add_the_messages_of_the_gradients(make_lanes: MakePlan) -> None:
    """c adds up what a and itself found for layer 0: a's gradient and the packed sum are beside it."""
    plan = make_lanes((2, "ac"), (2, "cc"))
    weights = [layer.param_bytes for layer in plan.profile.layers]
    need = memory_bytes(plan)
    assert need["a"] >= 3 * weights[0]  # weights, gradient, the message with the gradient
    assert need["c"] >= 2 * sum(weights) + 2 * weights[0]


def test_a_plan_that_does_not_fit_says_who_lacks_how_much_and_what_to_try(
    make_plan: MakePlan,
) -> None:
    plan = make_plan("a", "b", memory_mb={"a": 0.001}, optimizer="adam")
    assert not fits(plan)
    with pytest.raises(WeftError) as caught:
        validate(lower(plan))
    text = str(caught.value)
    need = memory_bytes(plan)["a"]
    for part in ("device a", f"needs {need / 1e6:.5g} MB", "has 0.001 MB",
                 f"{(need - 1000) / 1e6:.5g} MB too little",
                 "a batch smaller than 4", "sgd in place of adam"):  # fmt: skip
        assert part in text
    assert "device b" not in text


def test_exactly_enough_memory_is_enough(make_plan: MakePlan) -> None:
    need = memory_bytes(make_plan("a", "b"))["a"]
    plan = make_plan("a", "b", memory_mb={"a": need / 1e6})
    assert fits(plan)
    check_memory(plan)
    assert not fits(make_plan("a", "b", memory_mb={"a": (need - 1) / 1e6}))


def test_an_unknown_optimizer_is_named_with_what_is_allowed(make_plan: MakePlan) -> None:
    with pytest.raises(InputError, match="'lion'; allowed are sgd, momentum"):
        memory_bytes(make_plan("a", optimizer="lion"))
