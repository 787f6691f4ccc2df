"""All operators, one record each.

An operator that is not in this table is refused when a network is captured, and again by every node that
is asked to run it.

The names in one call of `_alike` share all fields of the record. `conv3d` means PyTorch's
`aten.conv3d.default`, `add.Tensor` means `aten.add.Tensor`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from weft.errors import InputError
from weft.graph.operators import flops, rows, sequences
from weft.graph.operators.calls import COUNTER, GETITEM, SYNCED_NORM
from weft.graph.operators.record import Keeps, Operator


def _alike(names: str, **fields: Any) -> Iterator[Operator]:
    """Records that differ only in their names."""
    for name in names.split():
        yield _operator(name, **fields)


def _operator(name: str, **fields: Any) -> Operator:
    return Operator(f"aten.{name}" if "." in name else f"aten.{name}.default", **fields)


_ELEMENTWISE: dict[str, Any] = {"rows": sequences.ELEMENTWISE, "units": "elementwise"}
_WEIGHTED_MATRIX: dict[str, Any] = {
    "weighted": True,
    "flops": flops.product,
    "rows": sequences.PRODUCT,
}
_POOL: dict[str, Any] = {"units": "per_channel"}

_RECORDS: tuple[Operator, ...] = (
    # With weights: a layer begins at each of these.
    _operator("conv1d", direct="torch.conv1d", weighted=True, flops=flops.convolution,
              rows=sequences.CONVOLUTION1D),
    _operator("conv2d", direct="torch.conv2d", weighted=True, flops=flops.convolution,
              rows=rows.CONVOLUTION, units="channels"),
    _operator("conv3d", weighted=True, flops=flops.convolution),
    _operator("conv_transpose1d", weighted=True, flops=flops.transposed_convolution),
    _operator("conv_transpose2d.input", weighted=True, flops=flops.transposed_convolution,
              rows=sequences.TRANSPOSED),
    _operator("linear", direct="torch.nn.functional.linear", weighted=True, flops=flops.dense,
              rows=sequences.TOKENS, units="dense"),
    _operator("matmul", direct="torch.matmul", **_WEIGHTED_MATRIX),
    *_alike("mm bmm", **_WEIGHTED_MATRIX),
    *_alike("addmm baddbmm", weighted=True, flops=flops.product_added),
    _operator("embedding", direct="torch.embedding", weighted=True,
              rows=sequences.EMBEDDING),
    _operator("scaled_dot_product_attention",
              direct="torch.nn.functional.scaled_dot_product_attention", flops=flops.attention,
              rows=sequences.ATTENTION, random=True, drop_probability=4),
    _operator("mv"),

    # Normalisation. Instance norm has "use the batch's statistics" where batch norm has "training": it
    # holds in eval mode too, so it is no training flag.
    _operator("batch_norm", direct="torch.batch_norm", rows=sequences.PER_CHANNEL, units="elementwise",
              training_flag=5),
    Operator(SYNCED_NORM, direct="synced_norm.synced_norm"),
    _operator("layer_norm", direct="torch.layer_norm", rows=sequences.LAYER_NORM),
    _operator("group_norm", direct="torch.group_norm"),
    _operator("rms_norm", rows=sequences.LAYER_NORM),
    _operator("instance_norm"),

    # Dropout.
    _operator("dropout", direct="torch.dropout", random=True, training_flag=2, **_ELEMENTWISE),
    *_alike("feature_dropout alpha_dropout", random=True, training_flag=2, **_ELEMENTWISE),
    _operator("bernoulli.p"),

    # Each place of the result depends only on the same place of each operand.
    _operator("relu", direct="torch.relu", **_ELEMENTWISE),
    _operator("add.Tensor", direct="torch.add", **_ELEMENTWISE),
    _operator("mul.Tensor", direct="torch.mul", **_ELEMENTWISE),
    _operator("prelu", rows=sequences.PER_CHANNEL, units="elementwise"),
    *_alike("alias contiguous detach", view=True, **_ELEMENTWISE),
    *_alike("""
        abs add.Scalar atan ceil celu clamp clamp_min clone cos div.Scalar div.Tensor elu eq.Scalar eq.Tensor
        erf exp floor full_like ge.Scalar gelu gt.Scalar hardshrink hardsigmoid hardswish hardtanh
        le.Scalar leaky_relu log log1p log_sigmoid logical_and logical_not logical_or lt.Scalar
        masked_fill.Scalar maximum minimum mish mul.Scalar ne.Scalar neg ones_like pow.Tensor_Scalar
        pow.Tensor_Tensor reciprocal relu6 rsqrt rsub.Scalar selu sigmoid silu sin softplus softshrink
        sqrt square sub.Scalar sub.Tensor tanh threshold to.dtype where.ScalarOther where.ScalarSelf
        where.self zeros_like
    """, **_ELEMENTWISE),

    # Windows, resizing and joining of maps.
    _operator("max_pool2d", direct="torch.max_pool2d", rows=rows.MAX_POOL, **_POOL),
    _operator("avg_pool2d", direct="torch._C._nn.avg_pool2d", rows=rows.AVERAGE_POOL, **_POOL),
    _operator("adaptive_avg_pool2d", rows=rows.SAME_SIZE, **_POOL),
    _operator("max_pool1d", rows=sequences.MAX_POOL1D),
    _operator("avg_pool1d", rows=sequences.AVERAGE_POOL1D),
    *_alike("adaptive_avg_pool1d adaptive_max_pool2d channel_shuffle upsample_bilinear2d.vec"),
    _operator("cat", direct="torch.cat", rows=sequences.JOINED_CHANNELS),
    _operator("pad", rows=rows.PADDING),
    _operator("pixel_shuffle", rows=rows.SHUFFLE),
    _operator("pixel_unshuffle", rows=rows.UNSHUFFLE),
    _operator("upsample_nearest2d.vec", rows=rows.UPSAMPLE),
    *_alike("softmax.int _softmax log_softmax.int _log_softmax", rows=sequences.SOFTMAX),

    # The same numbers in another shape or order.
    _operator("flatten.using_ints", direct="torch.flatten", view=True, rows=sequences.RESHAPE,
              units="reshape"),
    _operator("view", direct="torch.Tensor.view", view=True, rows=sequences.RESHAPE, units="reshape",
              gives_sizes=True),
    _operator("reshape", direct="torch.reshape", view=True, rows=sequences.RESHAPE, units="reshape",
              gives_sizes=True),
    _operator("transpose.int", direct="torch.transpose", view=True, rows=sequences.TRANSPOSE),
    _operator("permute", direct="torch.permute", view=True, rows=sequences.PERMUTE),
    *_alike("select.int unbind.int", view=True, rows=sequences.SELECT),
    *_alike("slice.Tensor narrow", view=True, rows=sequences.SLICE),
    *_alike("chunk split.Tensor split_with_sizes", view=True, rows=sequences.CHUNK),
    _operator("squeeze.dim", view=True, rows=sequences.SQUEEZE),
    _operator("unsqueeze", view=True, rows=sequences.UNSQUEEZE),
    _operator("unflatten.int", view=True, rows=sequences.UNFLATTEN),
    *_alike("expand expand_as movedim.int numpy_T squeeze squeeze.dims t view_as", view=True),
    Operator(GETITEM, direct="operator.getitem", view=True, rows=sequences.ITEM),
    *_alike("broadcast_tensors gather glu index.Tensor index_select repeat roll stack"),

    # Sums over many places, and operators whose result is no map.
    *_alike("""
        amax amin arange arange.start arange.start_step argmax.default bitwise_and.Tensor bitwise_not
        bitwise_or.Tensor cumsum full lift_fresh_copy linalg_vector_norm logsumexp masked_fill.Tensor
        max.dim mean mean.dim min.dim one_hot ones sum sum.dim_IntList to.dtype_layout tril triu type_as
        var.correction var.dim zeros
    """),

    # Losses.
    *_alike("""
        binary_cross_entropy binary_cross_entropy_with_logits cross_entropy_loss huber_loss kl_div
        l1_loss mse_loss nll_loss nll_loss_nd smooth_l1_loss
    """),

    # The one in-place operator that stays: counting batches in a buffer.
    Operator(COUNTER, direct="torch.Tensor.add_", training_only=True),
)  # fmt: skip

# What autograd keeps, by PyTorch's names without overloads. Operators that are not listed keep their result.
_KEEP_INPUTS = """
    conv1d conv2d conv3d conv_transpose1d conv_transpose2d linear matmul mm bmm addmm baddbmm embedding
    batch_norm layer_norm group_norm instance_norm max_pool1d max_pool2d avg_pool1d avg_pool2d
    adaptive_avg_pool1d adaptive_avg_pool2d gelu silu hardswish hardsigmoid hardtanh relu6 leaky_relu
    mul div pow square abs sin cos log
"""
_KEEP_NEITHER = "add sub neg cat mean sum dropout pad clone"
_KEEPS: dict[str, Keeps] = {
    **dict.fromkeys(_KEEP_INPUTS.split(), "inputs"),
    **dict.fromkeys(_KEEP_NEITHER.split(), "neither"),
    "scaled_dot_product_attention": "both",
}


def _with_keeps(record: Operator) -> Operator:
    kind = record.name.split(".")[1] if record.name.startswith("aten.") else record.name
    return replace(record, keeps=_KEEPS.get(kind, record.keeps))


OPERATORS: dict[str, Operator] = {record.name: _with_keeps(record) for record in _RECORDS}


def operator_named(name: str) -> Operator:
    """The record of that name. Raises InputError for an unknown name, because no other function may be
    called."""
    try:
        return OPERATORS[name]
    except KeyError:
        raise InputError(
            f"operator {name[:80]!r} is not one that Weft knows; nothing was run"
        ) from None
