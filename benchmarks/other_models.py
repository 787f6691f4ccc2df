"""40 more models for benchmarks/models.py: `python benchmarks/models.py --other`.

The names were fixed, and this list was committed, before the first of them was tried. Weights are random,
configurations are tiny.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tiny_models import (
    AUDIO,
    SIZES,
    WORDS,
    B,
    Variants,
    boxes,
    classifier,
    decoder,
    labels,
    masked,
    next_words,
    of_boxes,
    padding,
    tokens,
)
from torch import Tensor
from torch.nn import functional as F

NAMES = """
    bloom falcon gptj gpt_bigcode starcoder2 qwen3 mixtral mamba deberta_v2 convbert mpnet xlnet pegasus mt5
    clip vilt beit vit_mae swinv2 convnextv2 mobilevit cvt poolformer dpt wavlm sew patchtst rt_detr
    timm_efficientnetv2 timm_maxvit timm_fastvit timm_hrnet timm_cait timm_davit timm_nfnet
    tv_swin_v2 tv_deeplab tv_r3d smp_unetplusplus smp_deeplabplus
"""
MODELS: dict[str, Callable[[], Variants]] = {}
SHORT: dict[str, Any] = {"vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4}
VISION: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip


def other(build: Callable[[], Variants]) -> Callable[[], Variants]:
    """Adds a model of the list, under the function's name."""
    assert build.__name__ in NAMES.split()
    MODELS[build.__name__] = build
    return build


def pictures(size: int = 32) -> Tensor:
    return torch.rand(B, 3, size, size)


def of_tensor(output: Any, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target)


def of_map(output: dict[str, Tensor], target: Tensor) -> Tensor:
    return F.cross_entropy(output["out"], target)


@other
def bloom() -> Variants:
    return decoder(
        "BloomConfig", "BloomForCausalLM", vocab_size=WORDS, hidden_size=32, n_layer=2, n_head=4
    )


@other
def falcon() -> Variants:
    return decoder(
        "FalconConfig", "FalconForCausalLM", vocab_size=WORDS, hidden_size=32, num_hidden_layers=2,
        num_attention_heads=4, alibi=True,
    )  # fmt: skip


@other
def gptj() -> Variants:
    return decoder("GPTJConfig", "GPTJForCausalLM", rotary_dim=8, n_positions=64, **SHORT)


@other
def gpt_bigcode() -> Variants:
    return decoder("GPTBigCodeConfig", "GPTBigCodeForCausalLM", n_positions=64, **SHORT)


@other
def starcoder2() -> Variants:
    more = {"num_key_value_heads": 2, "sliding_window": 8}
    return decoder("Starcoder2Config", "Starcoder2ForCausalLM", **more, **SIZES)


@other
def qwen3() -> Variants:
    return decoder("Qwen3Config", "Qwen3ForCausalLM", num_key_value_heads=2, head_dim=8, **SIZES)


@other
def mixtral() -> Variants:
    """Experts. Those that transformers chooses by default depend on the data; those in batches do not."""
    settings = {"num_key_value_heads": 2, "num_local_experts": 4, **SIZES}
    ((_, network, *rest),) = decoder("MixtralConfig", "MixtralForCausalLM", **settings)
    network.set_experts_implementation("batched_mm")
    plain = decoder("MixtralConfig", "MixtralForCausalLM", **settings)
    return [*plain, ("batched_mm", network, *rest)]


@other
def mamba() -> Variants:
    return decoder(
        "MambaConfig", "MambaForCausalLM", vocab_size=WORDS, hidden_size=32, state_size=4,
        num_hidden_layers=2,
    )  # fmt: skip


@other
def deberta_v2() -> Variants:
    return classifier(
        "DebertaV2Config", "DebertaV2ForSequenceClassification", masked(), relative_attention=True,
        pos_att_type=["p2c", "c2p"], position_buckets=8, **SIZES,
    )  # fmt: skip


@other
def convbert() -> Variants:
    model = "ConvBertForSequenceClassification"
    return classifier("ConvBertConfig", model, masked(), embedding_size=16, **SIZES)


@other
def mpnet() -> Variants:
    return classifier("MPNetConfig", "MPNetForSequenceClassification", masked(), **SIZES)


@other
def xlnet() -> Variants:
    return classifier(
        "XLNetConfig", "XLNetForSequenceClassification", masked(), vocab_size=WORDS, d_model=32,
        n_layer=2, n_head=4, d_inner=64,
    )  # fmt: skip


@other
def pegasus() -> Variants:
    import transformers

    config = transformers.PegasusConfig(
        vocab_size=WORDS, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=64,
    )  # fmt: skip
    network = transformers.PegasusForConditionalGeneration(config)
    inputs = {**masked(), "decoder_input_ids": tokens(), "decoder_attention_mask": padding()}
    return [("mask", network, inputs, tokens(), next_words)]


@other
def mt5() -> Variants:
    import transformers

    config = transformers.MT5Config(
        vocab_size=WORDS, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4
    )  # fmt: skip
    network = transformers.MT5ForConditionalGeneration(config)
    inputs = {**masked(), "decoder_input_ids": tokens()}
    return [("mask", network, inputs, tokens(), next_words)]


@other
def clip() -> Variants:
    """Texts and images in one space; the loss reads the two vectors of a pair."""
    import transformers

    text = {"eos_token_id": WORDS - 1, **SIZES}
    config = transformers.CLIPConfig(text_config=text, vision_config=VISION, projection_dim=16)

    def loss(output: Any, target: Tensor) -> Tensor:
        return F.cosine_embedding_loss(output.text_embeds, output.image_embeds, target)

    inputs = {**masked(), "pixel_values": pictures()}
    return [("pairs", transformers.CLIPModel(config), inputs, labels(2).float() * 2 - 1, loss)]


@other
def vilt() -> Variants:
    inputs = {**masked(), "pixel_values": pictures()}
    return classifier("ViltConfig", "ViltForQuestionAnswering", inputs, **{**SIZES, **VISION})


@other
def beit() -> Variants:
    return classifier(
        "BeitConfig",
        "BeitForImageClassification",
        pictures(),
        use_relative_position_bias=True,
        **VISION,
    )


@other
def vit_mae() -> Variants:
    """A masked autoencoder: it draws which patches it sees."""
    import transformers

    config = transformers.ViTMAEConfig(
        decoder_num_attention_heads=2, decoder_hidden_size=16, decoder_num_hidden_layers=1,
        decoder_intermediate_size=32, **VISION,
    )  # fmt: skip

    def loss(output: Any, target: Tensor) -> Tensor:
        return F.mse_loss(output.logits, target)

    network = transformers.ViTMAEForPreTraining(config)
    return [("raw", network, pictures(), torch.rand(B, 16, 192), loss)]


@other
def swinv2() -> Variants:
    return classifier(
        "Swinv2Config", "Swinv2ForImageClassification", pictures(), image_size=32, patch_size=2,
        embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4,
    )  # fmt: skip


@other
def convnextv2() -> Variants:
    return classifier(
        "ConvNextV2Config", "ConvNextV2ForImageClassification", pictures(), hidden_sizes=[8, 16, 16, 32],
        depths=[1, 1, 2, 1],
    )  # fmt: skip


@other
def mobilevit() -> Variants:
    return classifier(
        "MobileViTConfig", "MobileViTForImageClassification", pictures(64), image_size=64,
        hidden_sizes=[16, 24, 32], neck_hidden_sizes=[8, 8, 16, 16, 24, 32, 64],
    )  # fmt: skip


@other
def cvt() -> Variants:
    return classifier(
        "CvtConfig", "CvtForImageClassification", pictures(), embed_dim=[8, 16, 32], num_heads=[1, 2, 4],
        depth=[1, 2, 3], drop_rate=[0.0, 0.0, 0.0], drop_path_rate=[0.0, 0.0, 0.0],
    )  # fmt: skip


@other
def poolformer() -> Variants:
    return classifier(
        "PoolFormerConfig", "PoolFormerForImageClassification", pictures(), hidden_sizes=[8, 16, 16, 32],
        depths=[1, 1, 1, 1],
    )  # fmt: skip


@other
def dpt() -> Variants:
    """Depth from one image: a transformer whose layers are joined by convolutions."""
    import transformers

    config = transformers.DPTConfig(
        neck_hidden_sizes=[8, 8, 16, 16], fusion_hidden_size=16, backbone_out_indices=[0, 1, 2, 3],
        **{**VISION, "num_hidden_layers": 4, "patch_size": 16, "image_size": 64},
    )  # fmt: skip

    def loss(output: Any, target: Tensor) -> Tensor:
        return F.smooth_l1_loss(output.predicted_depth, target)

    network = transformers.DPTForDepthEstimation(config)
    return [("raw", network, pictures(64), torch.rand(B, 64, 64), loss)]


@other
def wavlm() -> Variants:
    return classifier("WavLMConfig", "WavLMForSequenceClassification", torch.randn(B, 800), **AUDIO)


@other
def sew() -> Variants:
    return classifier("SEWConfig", "SEWForSequenceClassification", torch.randn(B, 800), **AUDIO)


@other
def patchtst() -> Variants:
    """Forecasts of several series, from patches of their past."""
    import transformers

    config = transformers.PatchTSTConfig(
        num_input_channels=3, context_length=32, patch_length=8, patch_stride=8, d_model=16,
        num_hidden_layers=2, num_attention_heads=2, ffn_dim=32, prediction_length=8, loss="mse",
    )  # fmt: skip

    def loss(output: Any, target: Tensor) -> Tensor:
        return F.mse_loss(output.prediction_outputs, target)

    network = transformers.PatchTSTForPrediction(config)
    return [("raw", network, {"past_values": torch.randn(B, 32, 3)}, torch.randn(B, 8, 3), loss)]


@other
def rt_detr() -> Variants:
    """A detector whose decoder starts from the best places of a pyramid."""
    import transformers

    backbone = transformers.RTDetrResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1], layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip
    config = transformers.RTDetrConfig(
        backbone_config=backbone, encoder_hidden_dim=16, encoder_in_channels=[16, 16, 32], d_model=16,
        encoder_ffn_dim=32, encoder_attention_heads=2, num_queries=5, decoder_in_channels=[16, 16, 16],
        decoder_ffn_dim=32, decoder_layers=2, decoder_attention_heads=2, num_labels=5,
        anchor_image_size=None,
    )  # fmt: skip
    network = transformers.RTDetrForObjectDetection(config)
    target = {**boxes(), "labels": torch.randint(0, 5, (B, 5))}
    return [("raw", network, pictures(64), target, of_boxes)]


def _of_timm(name: str, model: str, size: int, **settings: Any) -> None:
    def build() -> Variants:
        import timm

        network = timm.create_model(model, pretrained=False, num_classes=3, **settings)
        return [("raw", network, pictures(size), labels(), of_tensor)]

    build.__name__ = name
    other(build)


_of_timm("timm_efficientnetv2", "efficientnetv2_rw_t", 32)
_of_timm("timm_maxvit", "maxvit_rmlp_pico_rw_256", 64, img_size=64)
_of_timm("timm_fastvit", "fastvit_t8", 64)
_of_timm("timm_hrnet", "hrnet_w18_small", 64)
_of_timm("timm_cait", "cait_xxs24_224", 32, img_size=32)
_of_timm("timm_davit", "davit_tiny", 64)
_of_timm("timm_nfnet", "dm_nfnet_f0", 32)


@other
def tv_swin_v2() -> Variants:
    import torchvision

    return [("raw", torchvision.models.swin_v2_t(num_classes=3), pictures(64), labels(), of_tensor)]


@other
def tv_deeplab() -> Variants:
    import torchvision

    network = torchvision.models.segmentation.deeplabv3_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=4
    )
    return [("raw", network, pictures(64), torch.randint(0, 4, (B, 64, 64)), of_map)]


@other
def tv_r3d() -> Variants:
    import torchvision

    network = torchvision.models.video.r3d_18(weights=None, num_classes=3)
    return [("raw", network, torch.rand(B, 3, 4, 32, 32), labels(), of_tensor)]


@other
def smp_unetplusplus() -> Variants:
    import segmentation_models_pytorch as smp

    network = smp.UnetPlusPlus("resnet18", encoder_weights=None, classes=4)
    return [("raw", network, pictures(64), torch.randint(0, 4, (B, 64, 64)), of_tensor)]


@other
def smp_deeplabplus() -> Variants:
    import segmentation_models_pytorch as smp

    network = smp.DeepLabV3Plus("resnet18", encoder_weights=None, classes=4)
    return [("raw", network, pictures(64), torch.randint(0, 4, (B, 64, 64)), of_tensor)]


assert list(MODELS) == NAMES.split()
