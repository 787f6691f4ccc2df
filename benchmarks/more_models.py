"""25 more models for benchmarks/models.py: decoders, encoders, detectors, audio and recommenders.

The list of names was fixed before the first of them was tried. Each function gives a list of (variant,
module, inputs, target, loss), as the 55 models do. Weights are random, configurations are tiny.
"""

from __future__ import annotations

from collections.abc import Callable

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
    masked,
    next_words,
    of_boxes,
    padding,
    tokens,
)
from torch import Tensor, nn
from torch.nn import functional as F

MODELS: dict[str, Callable[[], Variants]] = {}


def listed(build: Callable[[], Variants]) -> Callable[[], Variants]:
    """Adds a model to the list, under the function's name."""
    MODELS[build.__name__] = build
    return build


@listed
def qwen2() -> Variants:
    return decoder("Qwen2Config", "Qwen2ForCausalLM", num_key_value_heads=2, **SIZES)


@listed
def gemma2() -> Variants:
    return decoder("Gemma2Config", "Gemma2ForCausalLM", num_key_value_heads=2, head_dim=8, **SIZES)


@listed
def mistral() -> Variants:
    return decoder("MistralConfig", "MistralForCausalLM", num_key_value_heads=2, **SIZES)


@listed
def phi() -> Variants:
    return decoder("PhiConfig", "PhiForCausalLM", **SIZES)


@listed
def gpt_neox() -> Variants:
    return decoder("GPTNeoXConfig", "GPTNeoXForCausalLM", **SIZES)


@listed
def opt() -> Variants:
    return decoder(
        "OPTConfig", "OPTForCausalLM", vocab_size=WORDS, hidden_size=32, num_hidden_layers=2,
        num_attention_heads=4, ffn_dim=64, max_position_embeddings=64, word_embed_proj_dim=32,
    )  # fmt: skip


@listed
def bart() -> Variants:
    from transformers import BartConfig, BartForConditionalGeneration

    network = BartForConditionalGeneration(
        BartConfig(
            vocab_size=WORDS, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
            decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64,
            max_position_embeddings=64,
        )
    )  # fmt: skip
    inputs = {
        "input_ids": tokens(), "attention_mask": padding(), "decoder_input_ids": tokens()
    }  # fmt: skip
    return [("mask", network, inputs, tokens(), next_words)]


@listed
def roberta() -> Variants:
    return classifier("RobertaConfig", "RobertaForSequenceClassification", masked(), **SIZES)


@listed
def albert() -> Variants:
    return classifier(
        "AlbertConfig", "AlbertForSequenceClassification", masked(), embedding_size=16, **SIZES
    )


@listed
def electra() -> Variants:
    return classifier(
        "ElectraConfig", "ElectraForSequenceClassification", masked(), embedding_size=16, **SIZES
    )


@listed
def dinov2() -> Variants:
    return classifier(
        "Dinov2Config", "Dinov2ForImageClassification", torch.rand(B, 3, 28, 28), hidden_size=32,
        num_hidden_layers=2, num_attention_heads=2, image_size=28, patch_size=14, mlp_ratio=2,
    )  # fmt: skip


@listed
def yolos() -> Variants:
    from transformers import YolosConfig, YolosForObjectDetection

    network = YolosForObjectDetection(
        YolosConfig(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
            image_size=[32, 32], patch_size=8, num_detection_tokens=5, num_labels=4,
        )
    )  # fmt: skip
    return [("raw", network, torch.rand(B, 3, 32, 32), boxes(), of_boxes)]


@listed
def conditional_detr() -> Variants:
    from transformers import (
        ConditionalDetrConfig,
        ConditionalDetrForObjectDetection,
        ResNetConfig,
    )

    backbone = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic",
        out_features=["stage2"],
    )  # fmt: skip
    network = ConditionalDetrForObjectDetection(
        ConditionalDetrConfig(
            use_timm_backbone=False, backbone_config=backbone, use_pretrained_backbone=False,
            backbone=None, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
            decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, num_queries=5,
            num_labels=5,
        )
    )  # fmt: skip
    return [("raw", network, torch.rand(B, 3, 32, 32), boxes(), of_boxes)]


class Pyramid(nn.Module):
    """A one-stage detector: three maps, joined from coarse to fine, with two heads that all maps share."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.ModuleList(
            nn.Sequential(nn.Conv2d(i, o, 3, 2, 1), nn.BatchNorm2d(o), nn.ReLU(inplace=True))
            for i, o in ((3, 8), (8, 16), (16, 32))
        )
        self.sides = nn.ModuleList(nn.Conv2d(c, 16, 1) for c in (8, 16, 32))
        self.classes, self.boxes = nn.Conv2d(16, 5, 3, padding=1), nn.Conv2d(16, 4, 3, padding=1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        maps = []
        for step in self.steps:
            x = step(x)
            maps.append(x)
        top = self.sides[2](maps[2])
        levels = [top]
        for n in (1, 0):
            top = F.interpolate(top, scale_factor=2.0, mode="nearest") + self.sides[n](maps[n])
            levels.append(top)
        classes = torch.cat([self.classes(level).flatten(2) for level in levels], 2)
        boxes = torch.cat([self.boxes(level).flatten(2) for level in levels], 2)
        return {"classes": classes.transpose(1, 2), "boxes": boxes.transpose(1, 2).sigmoid()}


@listed
def own_pyramid_detector() -> Variants:
    places = 16 * 16 + 8 * 8 + 4 * 4

    def loss(output: dict[str, Tensor], target: dict[str, Tensor]) -> Tensor:
        classes = F.cross_entropy(output["classes"].transpose(1, 2), target["classes"])
        return classes + F.smooth_l1_loss(output["boxes"], target["boxes"])

    target = {"classes": torch.randint(0, 5, (B, places)), "boxes": torch.rand(B, places, 4)}
    return [("raw", Pyramid(), torch.rand(B, 3, 32, 32), target, loss)]


class CentreNet(nn.Module):
    """A detector by centres: a heat map and sizes, from an encoder and a decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.GELU(), nn.Conv2d(8, 16, 3, 2, 1))
        self.up = nn.ConvTranspose2d(16, 8, 4, 2, 1)
        self.heat, self.size = nn.Conv2d(8, 3, 1), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = F.gelu(self.up(F.gelu(self.down(x))))
        return self.heat(h).sigmoid().clamp(1e-4, 1 - 1e-4), self.size(h)


@listed
def own_centre_detector() -> Variants:
    def loss(output: tuple[Tensor, Tensor], target: dict[str, Tensor]) -> Tensor:
        heat, size = output
        return F.binary_cross_entropy(heat, target["heat"]) + F.l1_loss(size, target["size"])

    target = {"heat": torch.rand(B, 3, 16, 16), "size": torch.rand(B, 2, 16, 16)}
    return [("raw", CentreNet(), torch.rand(B, 3, 32, 32), target, loss)]


@listed
def whisper() -> Variants:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    network = WhisperForConditionalGeneration(
        WhisperConfig(
            vocab_size=WORDS, d_model=32, encoder_layers=1, decoder_layers=1,
            encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=64,
            decoder_ffn_dim=64, max_source_positions=50, max_target_positions=64, num_mel_bins=20,
            pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        )
    )  # fmt: skip
    inputs = {"input_features": torch.rand(B, 20, 100), "decoder_input_ids": tokens()}
    return [("raw", network, inputs, tokens(), next_words)]


@listed
def wav2vec2() -> Variants:
    sound = torch.randn(B, 800)
    return classifier("Wav2Vec2Config", "Wav2Vec2ForSequenceClassification", sound, **AUDIO)


@listed
def hubert() -> Variants:
    sound = torch.randn(B, 800)
    return classifier("HubertConfig", "HubertForSequenceClassification", sound, **AUDIO)


@listed
def audio_spectrogram() -> Variants:
    return classifier(
        "ASTConfig", "ASTForAudioClassification", torch.randn(B, 64, 32), hidden_size=32,
        num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, patch_size=8,
        frequency_stride=8, time_stride=8, max_length=64, num_mel_bins=32,
    )  # fmt: skip


class Denoiser(nn.Module):
    """A mask over a spectrogram: Fourier transform, a recurrent network, and back to sound."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(64))
        self.memory = nn.GRU(33, 24, batch_first=True, bidirectional=True)
        self.mask = nn.Linear(48, 33)

    def forward(self, sound: Tensor) -> Tensor:
        spectrum = torch.stft(sound, 64, 32, window=self.window, return_complex=True)
        states, _ = self.memory(spectrum.abs().transpose(1, 2))
        mask = torch.sigmoid(self.mask(states)).transpose(1, 2)
        return torch.istft(spectrum * mask, 64, 32, window=self.window, length=sound.shape[1])


@listed
def own_denoiser() -> Variants:
    return [("raw", Denoiser(), torch.randn(B, 512), torch.randn(B, 512), nn.MSELoss())]


class DeepFM(nn.Module):
    """Factorisation machine and dense layers over the same embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offsets", torch.arange(6) * 20)
        self.first, self.factors = nn.Embedding(120, 1), nn.Embedding(120, 8)
        self.deep = nn.Sequential(
            nn.Linear(48, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1)
        )

    def forward(self, fields: Tensor) -> Tensor:
        index = fields + self.offsets
        v = self.factors(index)
        pairs = 0.5 * (v.sum(1).square() - v.square().sum(1)).sum(1, keepdim=True)
        return (self.first(index).sum(1) + pairs + self.deep(v.flatten(1))).squeeze(1)


@listed
def own_deepfm() -> Variants:
    clicks = torch.randint(0, 2, (B,)).float()
    return [("raw", DeepFM(), torch.randint(0, 20, (B, 6)), clicks, nn.BCEWithLogitsLoss())]


class CrossNetwork(nn.Module):
    """Deep and cross: every cross layer multiplies with the input again."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(50, 12, mode="sum")
        self.cross = nn.ModuleList(nn.Linear(20, 20) for _ in range(3))
        self.deep = nn.Sequential(nn.Linear(20, 32), nn.Dropout(0.1), nn.PReLU(), nn.Linear(32, 20))
        self.head = nn.Linear(40, 1)

    def forward(self, numbers: Tensor, items: Tensor) -> Tensor:
        x0 = torch.cat([numbers, self.table(items)], 1)
        x = x0
        for layer in self.cross:
            x = x0 * layer(x) + x
        return self.head(torch.cat([x, self.deep(x0)], 1))[:, 0]


@listed
def own_cross_network() -> Variants:
    inputs = (torch.rand(B, 8), torch.randint(0, 50, (B, 5)))
    return [("raw", CrossNetwork(), inputs, torch.rand(B), nn.MSELoss())]


class TwoTowers(nn.Module):
    """Users and items in one space; the score is their cosine."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(40, 16), nn.Embedding(60, 16)
        self.left = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 8))
        self.right = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 8))

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        u = F.normalize(self.left(self.users(user)), dim=-1)
        v = F.normalize(self.right(self.items(item)), dim=-1)
        return (u * v).sum(-1) * 5.0


@listed
def own_two_towers() -> Variants:
    inputs = {"user": torch.randint(0, 40, (B,)), "item": torch.randint(0, 60, (B,))}
    return [("raw", TwoTowers(), inputs, torch.rand(B), nn.BCEWithLogitsLoss())]


class NextItem(nn.Module):
    """What a user takes next: causal attention over items, scored with the items' own embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.places = nn.Embedding(60, 16, padding_idx=0), nn.Embedding(10, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, history: Tensor) -> Tensor:
        length = history.shape[1]
        h = self.items(history) + self.places(torch.arange(length))
        causal = torch.ones(length, length, dtype=torch.bool).triu(1)
        h = self.body(h, mask=causal, src_key_padding_mask=history == 0)
        return h @ self.items.weight.T


@listed
def own_next_item() -> Variants:
    history = torch.randint(1, 60, (B, 10))
    history[1, 7:] = 0

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=0)

    return [("raw", NextItem(), history, torch.randint(0, 60, (B, 10)), loss)]


class Collaborative(nn.Module):
    """Neural collaborative filtering: a product of embeddings beside dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, 8) for n in (40, 60, 40, 60))
        self.dense = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
        self.head = nn.Linear(16, 1)

    def forward(self, pair: Tensor) -> Tensor:
        user, item = pair.unbind(1)
        product = self.tables[0](user) * self.tables[1](item)
        joined = torch.cat((self.tables[2](user), self.tables[3](item)), dim=-1)
        return self.head(torch.cat((product, self.dense(joined)), dim=-1)).flatten()


@listed
def own_collaborative() -> Variants:
    pairs = torch.stack([torch.randint(0, 40, (B,)), torch.randint(0, 60, (B,))], 1)
    return [("raw", Collaborative(), pairs, torch.rand(B), nn.BCEWithLogitsLoss())]
