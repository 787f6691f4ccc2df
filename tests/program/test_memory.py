"""What a plan needs of memory, reckoned by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from weft.errors import InputError, WeftError
from weft.graph.optimizer import SLOTS
from weft.plans.plan import Plan
from weft.program.lower.lower import lower
from weft.program.memory import COPIES, check_memory, fits, memory_bytes
from weft.program.validate import validate

MakePlan = Callable[..., Plan]


@pytest.mark.parametrize(("optimizer", "copies"), [("sgd", 2), ("momentum", 3), ("adamw", 4)])
def test_training_keeps_weights_gradients_and_the_optimizers_state(
    make_plan: MakePlan, optimizer: str, copies: int
) -> None:
    plan = make_plan("d", "d", optimizer=optimizer)
    assert memory_bytes(plan) == {"d": copies * 3000 + 4 * 2 * 100}


def test_the_copies_of_a_weight_agree_with_the_optimizers() -> None:
    assert {name: 2 + slots for name, slots in SLOTS.items()} == COPIES


def test_a_pipeline_keeps_what_is_in_flight(make_plan: MakePlan) -> None:
    plan = make_plan("a", "b", batch=8, micro_batches=4, in_flight=3)
    # a: 3 micro-batches of 2 samples under way; b: one. Between them 3 messages of 2 * 10 bytes.
    assert memory_bytes(plan) == {"a": 2000 + 6 * 100 + 60, "b": 4000 + 2 * 100 + 60}
    one = make_plan("a", "b", batch=8, micro_batches=4, in_flight=1)
    assert memory_bytes(one) == {"a": 2000 + 2 * 100 + 20, "b": 4000 + 2 * 100 + 20}


def test_a_source_without_layers_may_fill_the_first_stages_buffers(make_plan: MakePlan) -> None:
    plan = make_plan("a", source="home", batch=8, micro_batches=4)
    assert memory_bytes(plan) == {"home": 8 * 60, "a": 2000 + 2 * 100 + 8 * 60}


def test_inference_keeps_one_copy_and_one_layers_ends(make_plan: MakePlan) -> None:
    plan = make_plan("d", "d", mode="infer", optimizer="adam")
    assert memory_bytes(plan) == {"d": 3000 + 4 * (60 + 10)}


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
