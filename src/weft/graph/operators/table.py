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
from weft.graph.operators.calls import COUNTER, GETITEM, LITERAL, RENEWED, SYNCED_NORM
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
    *_alike("conv1d.padding conv2d.padding conv3d.padding", weighted=True, flops=flops.convolution),
    _operator("conv_transpose3d.input", weighted=True, flops=flops.transposed_convolution),
    *_alike("bilinear einsum _weight_norm", weighted=True),
    _operator("embedding_bag.padding_idx", weighted=True, frequency=3),
    _operator("embedding", direct="torch.embedding", weighted=True, frequency=3,
              rows=sequences.EMBEDDING),
    _operator("scaled_dot_product_attention",
              direct="torch.nn.functional.scaled_dot_product_attention", flops=flops.attention,
              rows=sequences.ATTENTION, random=True, drop_probability=4),
    *_alike("mv dot vdot outer"),

    # Recurrent networks: one operator for all their steps. The cells are one step.
    *_alike("lstm.input gru.input rnn_tanh.input rnn_relu.input", weighted=True, recurrent=True,
            random=True, training_flag=6),
    *_alike("lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell", weighted=True, recurrent=True),

    # Normalisation. Instance norm has "use the batch's statistics" where batch norm has "training": it
    # holds in eval mode too, so it is no training flag.
    _operator("batch_norm", direct="torch.batch_norm", rows=sequences.PER_CHANNEL, units="elementwise",
              training_flag=5),
    Operator(SYNCED_NORM, direct="synced_norm.synced_norm"),
    _operator("layer_norm", direct="torch.layer_norm", rows=sequences.LAYER_NORM,
              normalises_sample=True),
    _operator("group_norm", direct="torch.group_norm", normalises_sample=True),
    _operator("rms_norm", rows=sequences.LAYER_NORM, normalises_sample=True),
    _operator("instance_norm", own_statistics=True),

    # Dropout.
    _operator("dropout", direct="torch.dropout", drops=True, random=True, training_flag=2,
              **_ELEMENTWISE),
    *_alike("feature_dropout alpha_dropout", drops=True, random=True, training_flag=2, **_ELEMENTWISE),
    _operator("rrelu", random=True, training_flag=3, **_ELEMENTWISE),

    # Random numbers, in inference too.
    *_alike("""
        bernoulli bernoulli.p exponential multinomial normal_functional rand rand_like randint randint.low
        randint_like randn randn_like randperm uniform
    """, random=True),

    # Each place of the result depends only on the same place of each operand.
    _operator("relu", direct="torch.relu", **_ELEMENTWISE),
    _operator("add.Tensor", direct="torch.add", **_ELEMENTWISE),
    _operator("mul.Tensor", direct="torch.mul", **_ELEMENTWISE),
    _operator("prelu", rows=sequences.PER_CHANNEL, units="elementwise"),
    _operator("contiguous", direct="torch.Tensor.contiguous", view=True, **_ELEMENTWISE),
    *_alike("alias detach", view=True, **_ELEMENTWISE),
    *_alike("""
        abs acos acosh add.Scalar addcdiv addcmul asin asinh atan atan2 atanh ceil celu clamp clamp.Tensor
        clamp_max clamp_max.Tensor clamp_min clamp_min.Tensor clone cos cosh div.Scalar div.Scalar_mode
        div.Tensor div.Tensor_mode elu eq.Scalar eq.Tensor erf erfc exp exp2 expm1 floor floor_divide
        fmod.Scalar fmod.Tensor frac full_like ge.Scalar ge.Tensor gelu gt.Scalar gt.Tensor hardshrink
        hardsigmoid hardswish hardtanh isfinite isinf isnan le.Scalar le.Tensor leaky_relu lerp.Scalar
        lerp.Tensor log log10 log1p log2 log_sigmoid logaddexp logical_and logical_not logical_or logical_xor
        logit lt.Scalar lt.Tensor masked_fill.Scalar max.other maximum min.other minimum mish mul.Scalar
        nan_to_num ne.Scalar ne.Tensor neg ones_like pow.Scalar pow.Tensor_Scalar pow.Tensor_Tensor reciprocal
        relu6 remainder.Scalar remainder.Tensor round rsqrt rsub.Scalar rsub.Tensor selu sigmoid sign silu sin
        sinh softplus softshrink sqrt square sub.Scalar sub.Tensor tan tanh threshold to.dtype trunc
        where.ScalarOther where.ScalarSelf where.self xlogy.Tensor zeros_like
    """, **_ELEMENTWISE),

    # Windows, resizing and joining of maps.
    _operator("max_pool2d", direct="torch.max_pool2d", rows=rows.MAX_POOL, **_POOL),
    _operator("avg_pool2d", direct="torch._C._nn.avg_pool2d", rows=rows.AVERAGE_POOL, **_POOL),
    _operator("adaptive_avg_pool2d", rows=rows.SAME_SIZE, **_POOL),
    _operator("max_pool1d", rows=sequences.MAX_POOL1D),
    _operator("avg_pool1d", rows=sequences.AVERAGE_POOL1D),
    *_alike("""
        adaptive_avg_pool1d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d
        affine_grid_generator avg_pool3d channel_shuffle col2im constant_pad_nd grid_sampler grid_sampler_2d
        im2col max_pool2d_with_indices max_pool3d max_unpool2d reflection_pad1d reflection_pad2d
        replication_pad1d replication_pad2d upsample_bicubic2d.vec upsample_bilinear2d.vec
        upsample_linear1d.vec upsample_nearest1d.vec upsample_nearest3d.vec upsample_trilinear3d.vec
        _upsample_bicubic2d_aa.vec _upsample_bilinear2d_aa.vec
    """),
    _operator("cat", direct="torch.cat", rows=sequences.JOINED_CHANNELS),
    _operator("pad", rows=rows.PADDING),
    _operator("pixel_shuffle", rows=rows.SHUFFLE),
    _operator("pixel_unshuffle", rows=rows.UNSHUFFLE),
    _operator("upsample_nearest2d.vec", rows=rows.UPSAMPLE),
    *_alike("softmax.int _softmax log_softmax.int _log_softmax", rows=sequences.SOFTMAX),

    # The same numbers in another shape or order.
    _operator("flatten.using_ints", direct="torch.flatten", view=True, rows=sequences.RESHAPE,
              units="reshape"),
    _operator("view", direct="torch.reshape", view=True, rows=sequences.RESHAPE, units="reshape",
              gives_sizes=True),
    _operator("reshape", direct="torch.reshape", view=True, rows=sequences.RESHAPE, units="reshape",
              gives_sizes=True),
    _operator("transpose.int", direct="torch.transpose", view=True, rows=sequences.TRANSPOSE),
    _operator("permute", direct="torch.permute", view=True, rows=sequences.PERMUTE),
    _operator("select.int", direct="torch.select", view=True, rows=sequences.SELECT),
    _operator("unbind.int", view=True, rows=sequences.SELECT),
    *_alike("slice.Tensor narrow", view=True, rows=sequences.SLICE),
    *_alike("chunk split.Tensor split_with_sizes", view=True, rows=sequences.CHUNK),
    _operator("squeeze.dim", direct="torch.squeeze", view=True, rows=sequences.SQUEEZE),
    _operator("unsqueeze", direct="torch.unsqueeze", view=True, rows=sequences.UNSQUEEZE),
    _operator("unflatten.int", direct="torch.unflatten", view=True, rows=sequences.UNFLATTEN),
    *_alike("""
        broadcast_to diagonal expand expand_as mT movedim.int movedim.intlist numpy_T reshape_as squeeze
        squeeze.dims swapaxes swapdims t unfold unsafe_split.Tensor view_as
    """, view=True),
    _operator("copy", direct="functions.copied"),
    Operator(GETITEM, direct="operator.getitem", view=True, rows=sequences.ITEM),
    *_alike("""
        broadcast_tensors diag_embed flip gather glu index.Tensor index_add index_copy
        index_fill.int_Scalar index_put index_select masked_scatter meshgrid.indexing repeat
        repeat_interleave.self_int roll scatter.src scatter.value scatter_add scatter_reduce.two
        select_scatter slice_scatter stack take_along_dim tile
    """),

    # Sums over many places, and operators whose result is no map.
    *_alike("""
        all all.dim amax amin any any.dim any.dims arange arange.start arange.start_step argmax.default argmin
        argsort bitwise_and.Scalar bitwise_and.Tensor bitwise_not bitwise_or.Scalar bitwise_or.Tensor
        bitwise_xor.Scalar bitwise_xor.Tensor bucketize.Tensor cdist cosine_similarity
        cummax cummin cumprod cumsum diff empty.memory_format empty_like eye eye.m fill.Scalar full
        isin.Tensor_Tensor lift_fresh_copy linalg_vector_norm linspace logcumsumexp logsumexp
        masked_fill.Tensor max max.dim mean median median.dim min min.dim new_empty new_full new_ones
        new_zeros one_hot ones prod prod.dim_int scalar_tensor searchsorted.Tensor sort std.correction std.dim
        sum sum.dim_IntList to.dtype_layout to.other _to_copy topk tril tril_indices triu triu_indices type_as
        var.correction var.dim var_mean.correction zeros
    """),

    _operator("mean.dim", normalises_sample=True),

    # Complex numbers: they live inside a layer, since no cut carries them.
    *_alike("""
        angle complex conj fft_fft fft_fft2 fft_fftn fft_fftshift fft_ifft fft_ifft2 fft_ifftn fft_ifftshift
        fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftn imag istft polar real resolve_conj
        stft stft.center view_as_complex view_as_real
    """),

    # Losses.
    *_alike("""
        binary_cross_entropy binary_cross_entropy_with_logits cross_entropy_loss ctc_loss.IntList
        ctc_loss.Tensor huber_loss kl_div
        l1_loss mse_loss nll_loss nll_loss_nd smooth_l1_loss
    """),

    Operator(LITERAL, direct="functions.literal"),

    # The in-place operators that stay: counting batches in a buffer, and a new value of a buffer.
    Operator(COUNTER, direct="torch.Tensor.add_", training_only=True, changes_state=True),
    Operator(RENEWED, direct="functions.renew", changes_state=True),
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
