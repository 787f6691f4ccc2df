"""Broken programs are caught before they run, and the error names what is broken."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec
import pytest

from weft.errors import WeftError
from weft.plans.plan import Plan
from weft.program.instructions import (
    Backward,
    Forward,
    Instruction,
    Load,
    Loss,
    Recv,
    Send,
    Tensor,
    Update,
)
from weft.program.lower.lower import lower
from weft.program.program import Program
from weft.program.validate import validate

MakePlan = Callable[..., Plan]
Code = list[Instruction]


def changed(program: Program, device: str, change: Callable[[Code], Code]) -> Program:
    code = tuple(change(list(program.code[device])))
    return msgspec.structs.replace(program, code={**program.code, device: code})


def without(gone: Instruction, code: Code) -> Code:
    return [i for i in code if i != gone]


def followed_by(extra: Instruction, code: Code) -> Code:
    return [*code, extra]


@pytest.fixture
def program(make_plan: MakePlan) -> Program:
    return lower(make_plan("phone", "phone", "edge", micro_batches=2))


def test_a_lowered_program_is_valid(program: Program) -> None:
    validate(program)


def test_a_dropped_send_is_caught(program: Program) -> None:
    sends = [i for i in program.code["phone"] if isinstance(i, Send)]
    for send in sends:
        broken = changed(program, "phone", partial(without, send))
        with pytest.raises(WeftError, match=f"{send.tensor} from phone to edge is sent 0 times"):
            validate(broken)


def test_a_dropped_receive_is_caught(program: Program) -> None:
    recv = Recv(Tensor("grad", 2, 1), "edge")
    broken = changed(program, "phone", partial(without, recv))
    with pytest.raises(WeftError, match=r"grad2\.1 from edge to phone .* received 0 times"):
        validate(broken)


def test_a_doubled_send_is_caught(program: Program) -> None:
    send = next(i for i in program.code["edge"] if isinstance(i, Send))
    with pytest.raises(WeftError, match="sent 2 times"):
        validate(changed(program, "edge", partial(followed_by, send)))


def test_swapped_receives_that_wait_for_each_other_are_caught(program: Program) -> None:
    def swap(code: Code) -> Code:
        first, second = (
            next(k for k, i in enumerate(code)
                 if isinstance(i, Recv) and i.tensor == Tensor("act", 2, m))
            for m in (0, 1)
        )  # fmt: skip
        code[first], code[second] = code[second], code[first]
        return code

    with pytest.raises(WeftError) as caught:
        validate(changed(program, "edge", swap))
    assert "edge waits for act2.1 of minibatch 0 from phone" in str(caught.value)
    assert "phone waits for grad2.0 of minibatch 0 from edge" in str(caught.value)


def test_a_send_to_itself_or_to_nobody_is_caught(program: Program) -> None:
    for dest in ("phone", "ghost"):
        send = Send(Tensor("act", 2, 9), dest, 1)
        with pytest.raises(WeftError, match=f"to {dest}: allowed are the other devices"):
            validate(changed(program, "phone", partial(followed_by, send)))


@pytest.mark.parametrize(
    ("device", "word", "says"),
    [
        ("phone", Load, r"forward of layers 0-1, micro-batch 0 .* input act0\.0"),
        ("phone", Forward, r"send act2\.0 to edge .* input act2\.0"),
        ("edge", Forward, r"loss of micro-batch 0 .* input act3\.0"),
        ("edge", Loss, r"backward of layers 2-2, micro-batch 0 .* input grad3\.0"),
        ("edge", Backward, r"send grad2\.0 to phone .* input grad2\.0"),
    ],
)
def test_a_missing_input_is_caught(
    program: Program, device: str, word: type[Instruction], says: str
) -> None:
    def drop_first(code: Code) -> Code:
        code.remove(next(i for i in code if isinstance(i, word)))
        return code

    with pytest.raises(WeftError, match=says):
        validate(changed(program, device, drop_first))


def test_an_update_before_the_last_backward_is_caught(program: Program) -> None:
    def hasten(code: Code) -> Code:
        return [*code[:-3], code[-1], *code[-3:-1]]

    with pytest.raises(WeftError, match="phone: update of layers 0-1 comes after 1 of its 2"):
        validate(changed(program, "phone", hasten))


def two_in_flight(program: Program, lag: int) -> Program:
    """The phone is one minibatch ahead of the gradients, as in the instructions' docstring."""

    def late(code: Code) -> Code:
        back = [
            msgspec.structs.replace(i, lag=lag) for i in code
            if isinstance(i, Recv | Backward | Update)
        ]  # fmt: skip
        there = [i for i in code if not isinstance(i, Recv | Backward | Update)]
        return [*there, *back]

    return changed(program, "phone", late)


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_a_pipelined_loop_is_valid(make_plan: MakePlan, lag: int) -> None:
    validate(two_in_flight(lower(make_plan("phone", "edge")), lag))


def test_lags_that_do_not_agree_on_a_device_are_caught(make_plan: MakePlan) -> None:
    """The backward works on the minibatch whose gradient comes only in the next tick."""

    def hasten(code: Code) -> Code:
        return [msgspec.structs.replace(i, lag=0) if isinstance(i, Backward) else i for i in code]

    program = two_in_flight(lower(make_plan("phone", "edge")), 1)
    with pytest.raises(WeftError, match=r"backward of layers 0-0, .* input grad1\.0"):
        validate(changed(program, "phone", hasten))


def test_lags_that_wait_for_the_future_are_caught(make_plan: MakePlan) -> None:
    """The edge sends each gradient after the next activation has come, and nobody is ahead."""

    def late(code: Code) -> Code:
        return [msgspec.structs.replace(i, lag=1) if isinstance(i, Send) else i for i in code]

    program = lower(make_plan("phone", "edge"))
    with pytest.raises(WeftError, match="standstill"):
        validate(changed(program, "edge", late))


def test_a_negative_lag_is_caught(make_plan: MakePlan) -> None:
    with pytest.raises(WeftError, match="lag -1 is negative"):
        validate(two_in_flight(lower(make_plan("phone", "edge")), -1))
