"""Messages that several lowerings send: their codecs and their bytes."""

from __future__ import annotations

from weft.codecs.registry import CodecName, coded_bytes
from weft.plans.plan import Plan
from weft.program.instructions import Send, Tensor


def codec_at(plan: Plan, cut: int) -> CodecName:
    """The codec of the values that cross a cut. The samples cross cut 0."""
    return plan.codec if cut else plan.input_codec


def send_activation(plan: Plan, cut: int, micro: int, samples: int, dest: str) -> Send:
    """The message with the activations of a cut."""
    codec = codec_at(plan, cut)
    size = coded_bytes(plan.profile.activation_bytes(cut, samples), codec)
    return Send(Tensor("act", cut, micro), dest, size, codec)


def send_gradient(plan: Plan, cut: int, micro: int, samples: int, dest: str) -> Send:
    """The message with the gradients that come back over a cut."""
    codec = codec_at(plan, cut)
    size = coded_bytes(plan.profile.returned_bytes(cut, samples), codec)
    return Send(Tensor("grad", cut, micro), dest, size, codec)


def send_labels(plan: Plan, micro: int, samples: int, dest: str) -> Send:
    """The message with the labels of a micro-batch."""
    return Send(Tensor("target", 0, micro), dest, plan.profile.labels_bytes(samples))
