"""The operators a captured network may use: the only functions a node will ever call.

A graph names its operators; a node looks the name up here and refuses what is not listed. Frequent
ones are bound to PyTorch's direct entry points, which cost less per call than the dispatcher's.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from weft.dtypes import DTYPE_BYTES

Operator = Callable[..., Any]

# Bound by hand: the same mathematics as the ATen overload of that name, with a shorter way there.
_DIRECT: dict[str, Operator] = {
    "aten.conv1d.default": torch.conv1d,
    "aten.conv2d.default": torch.conv2d,
    "aten.linear.default": functional.linear,
    "aten.batch_norm.default": torch.batch_norm,
    "aten.layer_norm.default": torch.layer_norm,
    "aten.group_norm.default": torch.group_norm,
    "aten.dropout.default": torch.dropout,
    "aten.relu.default": torch.relu,
    "aten.max_pool2d.default": torch.max_pool2d,
    "aten.avg_pool2d.default": torch._C._nn.avg_pool2d,
    "aten.add.Tensor": torch.add,
    "aten.mul.Tensor": torch.mul,
    "aten.matmul.default": torch.matmul,
    "aten.flatten.using_ints": torch.flatten,
    "aten.view.default": torch.Tensor.view,
    "aten.reshape.default": torch.reshape,
    "aten.transpose.int": torch.transpose,
    "aten.permute.default": torch.permute,
    "aten.cat.default": torch.cat,
    "aten.scaled_dot_product_attention.default": functional.scaled_dot_product_attention,
    "aten.embedding.default": torch.embedding,
    "getitem": operator.getitem,
    # the one in-place operator that stays: counting batches in a buffer
    "buffer.add_": torch.Tensor.add_,
}

# Taken from PyTorch's operator library by name. The names are ours, never a message's.
_NAMED = """
_log_softmax _softmax abs adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool2d add.Scalar
addmm alias alpha_dropout amax amin arange arange.start arange.start_step argmax.default
avg_pool1d baddbmm bernoulli.p binary_cross_entropy binary_cross_entropy_with_logits
bitwise_and.Tensor bitwise_not bitwise_or.Tensor bmm broadcast_tensors ceil celu
channel_shuffle chunk clamp
clamp_min clone contiguous conv3d conv_transpose1d conv_transpose2d.input cos cross_entropy_loss
cumsum detach div.Scalar div.Tensor elu eq.Scalar eq.Tensor erf exp expand expand_as
feature_dropout floor full full_like gather ge.Scalar gelu glu gt.Scalar hardshrink hardsigmoid
hardswish hardtanh huber_loss index.Tensor index_select instance_norm kl_div l1_loss le.Scalar
leaky_relu lift_fresh_copy linalg_vector_norm log log1p log_sigmoid log_softmax.int logical_and
logical_not logical_or logsumexp lt.Scalar masked_fill.Scalar masked_fill.Tensor max.dim
max_pool1d maximum mean mean.dim min.dim minimum mish mm movedim.int mse_loss mul.Scalar mv narrow
ne.Scalar neg nll_loss nll_loss_nd numpy_T one_hot ones ones_like pad pixel_shuffle
pixel_unshuffle pow.Tensor_Scalar pow.Tensor_Tensor prelu reciprocal relu6 repeat rms_norm roll
rsqrt rsub.Scalar select.int selu sigmoid silu sin slice.Tensor smooth_l1_loss softmax.int
softplus softshrink split.Tensor split_with_sizes sqrt square squeeze squeeze.dim squeeze.dims
stack sub.Scalar sub.Tensor sum sum.dim_IntList t tanh threshold to.dtype to.dtype_layout tril
triu type_as unbind.int unflatten.int unsqueeze upsample_bilinear2d.vec upsample_nearest2d.vec
var.correction var.dim view_as where.self zeros zeros_like
""".split()  # noqa: SIM905 (a wall of quotes would hide the names)


def _resolve(name: str) -> tuple[str, Operator] | None:
    base, _, overload = name.partition(".")
    packet = getattr(torch.ops.aten, base, None)
    function = getattr(packet, overload or "default", None)
    return (f"aten.{base}.{overload or 'default'}", function) if function is not None else None


OPERATORS: dict[str, Operator] = {
    **dict(filter(None, map(_resolve, _NAMED))),
    **_DIRECT,
}

# Their result shares memory with their first argument; changing one in place changes the other.
VIEWS = frozenset(
    f"aten.{name}"
    for name in (
        "view.default", "reshape.default", "flatten.using_ints", "transpose.int", "permute.default",
        "squeeze.default", "squeeze.dim", "squeeze.dims", "unsqueeze.default", "select.int",
        "slice.Tensor", "expand.default", "expand_as.default", "alias.default", "detach.default",
        "unflatten.int", "contiguous.default", "narrow.default", "movedim.int", "view_as.default",
        "t.default", "numpy_T.default", "chunk.default", "split.Tensor", "split_with_sizes.default",
        "unbind.int",
    )
) | {"getitem"}  # fmt: skip

# Position of the argument that says "training" (a flag) or how much to drop (a probability).
TRAINING_FLAG = {
    "aten.batch_norm.default": 5,
    "aten.instance_norm.default": 5,
    "aten.dropout.default": 2,
    "aten.feature_dropout.default": 2,
    "aten.alpha_dropout.default": 2,
}
DROP_PROBABILITY = {"aten.scaled_dot_product_attention.default": 4}
RANDOM = frozenset(
    ["aten.dropout.default", "aten.feature_dropout.default", "aten.alpha_dropout.default",
     "aten.scaled_dot_product_attention.default"]
)  # fmt: skip

# A new layer begins where one of these reads a parameter.
WEIGHTED = frozenset(
    f"aten.{name}"
    for name in (
        "conv1d.default", "conv2d.default", "conv3d.default", "conv_transpose1d.default",
        "conv_transpose2d.input", "linear.default", "addmm.default", "mm.default", "bmm.default",
        "baddbmm.default", "matmul.default", "embedding.default",
    )
)  # fmt: skip

DTYPES = {name: getattr(torch, name) for name in DTYPE_BYTES}
