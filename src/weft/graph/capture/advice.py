"""What to do about a network that cannot be captured: torch's errors say what failed, and seldom what helps.

what_to_do("... aten._local_scalar_dense.default ...")      # "; keep the number in a tensor ..."
"""

from __future__ import annotations

import traceback

_PACKED = (
    "a packed sequence has sizes that depend on the lengths. Give the recurrent network the padded tensor, "
    "and take the last valid step of each sample from its result: y[torch.arange(y.shape[0]), lengths - 1]"
)
# Part of torch's words, of an operator's name or of a file that an error went through: what to do.
_ADVICE: tuple[tuple[str, str], ...] = (
    ("_local_scalar_dense", "keep the number in a tensor, without .item(), float() or int()"),
    ("torch/nn/modules/rnn.py", _PACKED),
    ("torch/nn/utils/rnn.py", _PACKED),
    (".numpy() is not supported", "leave NumPy out of forward; torch has the same functions"),
    (
        "a fake tensor in the exported program constant",
        "forward uses x.data, or a gradient of its own (torch.autograd.grad, requires_grad_). Use x.detach() "
        "in place of x.data, and leave gradients in forward out",
    ),
    (
        "torch.ops.higher_order",
        "use torch.where, which computes both sides and picks for each place",
    ),
)
_FOR_OPERATORS = "write it with other operators of torch, or compute it in the data"


def what_to_do(words: str) -> str:
    """Advice for the words of an error, to be put behind them; "" if there is none."""
    return next((f"; {advice}" for part, advice in _ADVICE if part in words), "")


def for_operator(name: str) -> str:
    """Advice for an operator that Weft does not know."""
    return what_to_do(name) or f"; {_FOR_OPERATORS}"


def for_error(error: BaseException) -> str:
    """Advice for an error of torch, by its words and by the files that it went through."""
    files = " ".join(frame.filename for frame in traceback.extract_tb(error.__traceback__))
    return what_to_do(f"{error} {files}")
