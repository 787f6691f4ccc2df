"""Parts of the tiny models in more_models.py and other_models.py: sizes, inputs, targets and losses."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Variants = list[tuple[str, nn.Module, Any, Any, Any]]
B, WORDS, LENGTH = 4, 100, 16
SIZES: dict[str, Any] = {
    "vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 64, "max_position_embeddings": 64,
}  # fmt: skip
AUDIO: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3),
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4, "classifier_proj_size": 16,
    "mask_time_prob": 0.0, "apply_spec_augment": False, "layerdrop": 0.0,
}  # fmt: skip


# A torchvision wheel that was built for another torch lacks its operators, and transformers imports it.
# Declaring them lets it be imported; none of these models calls them.
if not hasattr(torch.ops.torchvision, "nms"):
    TORCHVISION = torch.library.Library("torchvision", "FRAGMENT")
    for operator in ("nms", "qnms"):
        TORCHVISION.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def tokens() -> Tensor:
    return torch.randint(3, WORDS, (B, LENGTH))


def padding() -> Tensor:
    """An attention mask: the first sample is shorter than the others."""
    mask = torch.ones(B, LENGTH, dtype=torch.long)
    mask[0, 10:] = 0
    return mask


def labels(classes: int = 3) -> Tensor:
    return torch.randint(0, classes, (B,))


def next_words(output: Any, target: Tensor) -> Tensor:
    """The loss of a language model."""
    return F.cross_entropy(output.logits.flatten(0, 1), target.flatten(0, 1))


def of_logits(output: Any, target: Tensor) -> Tensor:
    return F.cross_entropy(output.logits, target)


def decoder(config: str, model: str, **settings: Any) -> Variants:
    """A decoder of transformers, with padding and a mask."""
    import transformers

    made = getattr(transformers, config)(**settings)
    network = getattr(transformers, model)(made)
    inputs = {"input_ids": tokens(), "attention_mask": padding()}
    return [("mask", network, inputs, tokens(), next_words)]


def classifier(config: str, model: str, inputs: Any, **settings: Any) -> Variants:
    """A classifier of transformers."""
    import transformers

    made = getattr(transformers, config)(num_labels=3, **settings)
    return [("raw", getattr(transformers, model)(made), inputs, labels(), of_logits)]


def masked() -> dict[str, Tensor]:
    return {"input_ids": tokens(), "attention_mask": padding()}


def boxes() -> dict[str, Tensor]:
    """Five objects in each image: classes and boxes."""
    return {"labels": torch.randint(0, 5, (B, 5)), "boxes": torch.rand(B, 5, 4)}


def of_boxes(output: Any, target: dict[str, Tensor]) -> Tensor:
    """The loss of a detector whose boxes are matched already."""
    classes = F.cross_entropy(output.logits.flatten(0, 1), target["labels"].flatten(0, 1))
    return classes + F.l1_loss(output.pred_boxes, target["boxes"])
