"""Ten transformers with padding and masks on three unequal emulated devices: the losses of one process.

    python benchmarks/transformers_split.py            all ten
    python benchmarks/transformers_split.py gpt2 t5    those whose names contain one of these words

Every network is captured, cut by `chain` over a phone, a box and a server, and trained for 20 minibatches by
three processes over emulated links. Sequences are of unequal length, and so are their targets. The losses
must equal those of the eager module in one process to 1e-5 (dropout off). If they do not in float32, the same
limit in float64 decides: rounding that training amplifies is then 1e-9 of what it was, a wrong gradient is as
large as before. The line says so. It needs transformers.
"""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from models import FLEET, without_dropout
from tiny_models import SIZES, WORDS
from torch import Tensor, nn
from torch.nn import functional as F

import weft

STEPS, BATCH, LENGTH, RATE, CLOSE = 20, 4, 16, 0.05, 1e-5
IGNORED = -100
Inputs = dict[str, Tensor]


class Case(NamedTuple):
    """A network, its minibatches by number, its loss, and how many pieces a minibatch is cut into."""

    network: nn.Module
    data: Callable[[int], Inputs]  # the targets are `labels`
    loss: Callable[[Any, Tensor], Tensor]
    pieces: int = 2


def words(number: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """(word numbers, mask): sequences of unequal length, padded at the end."""
    draw = torch.Generator().manual_seed(1000 * seed + number)
    lengths = torch.randint(LENGTH // 2, LENGTH + 1, (BATCH, 1), generator=draw)
    mask = (torch.arange(LENGTH) < lengths).long()
    return torch.randint(3, WORDS, (BATCH, LENGTH), generator=draw) * mask, mask


def next_word(output: Any, target: Tensor) -> Tensor:
    """The loss of a decoder: word n + 1 from the words before it; padding does not count."""
    logits, labels = output.logits[:, :-1].flatten(0, 1), target[:, 1:].flatten(0, 1)
    return F.cross_entropy(logits, labels, ignore_index=IGNORED)


def same_word(output: Any, target: Tensor) -> Tensor:
    """The loss of an encoder with a decoder, whose words are shifted already."""
    return F.cross_entropy(output.logits.flatten(0, 1), target.flatten(0, 1), ignore_index=IGNORED)


def classes(output: Any, target: Tensor) -> Tensor:
    return F.cross_entropy(output.logits, target)


def sentences(number: int) -> Inputs:
    ids, mask = words(number)
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, IGNORED)}


def translated(number: int) -> Inputs:
    """Two languages, each with its own lengths."""
    (ids, mask), (made, made_mask) = words(number), words(number, seed=1)
    return {
        "input_ids": ids, "attention_mask": mask, "decoder_input_ids": made,
        "decoder_attention_mask": made_mask, "labels": made.masked_fill(made_mask == 0, IGNORED),
    }  # fmt: skip


def sentiments(number: int) -> Inputs:
    ids, mask = words(number)
    return {"input_ids": ids, "attention_mask": mask, "labels": ids[:, 0] % 3}


def pictures(number: int) -> Tensor:
    return torch.rand(BATCH, 3, 32, 32, generator=torch.Generator().manual_seed(number))


def decoder(name: str, **sizes: Any) -> Case:
    """A language model of transformers by the name of its classes."""
    import transformers

    config = getattr(transformers, f"{name}Config")(**{**SIZES, **sizes})
    return Case(getattr(transformers, f"{name}ForCausalLM")(config), sentences, next_word)


def gpt2() -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=WORDS, n_embd=32, n_layer=3, n_head=2, n_positions=32)
    return Case(GPT2LMHeadModel(config), sentences, next_word)


def llama() -> Case:
    return decoder("Llama", num_key_value_heads=2)


def qwen2() -> Case:
    return decoder("Qwen2", num_key_value_heads=2)


def gemma2() -> Case:
    return decoder("Gemma2", num_key_value_heads=2, head_dim=8, sliding_window=8)


def t5() -> Case:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=WORDS, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2)
    return Case(T5ForConditionalGeneration(config), translated, same_word)


def bert() -> Case:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(**SIZES, num_labels=3)
    return Case(BertForSequenceClassification(config), sentiments, classes)


def whisper() -> Case:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=WORDS, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=20,
        max_source_positions=50, max_target_positions=32, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip

    def spoken(number: int) -> Inputs:
        made, mask = words(number)
        draw = torch.Generator().manual_seed(number)
        return {
            "input_features": torch.rand(BATCH, 20, 100, generator=draw), "decoder_input_ids": made,
            "decoder_attention_mask": mask, "labels": made.masked_fill(mask == 0, IGNORED),
        }  # fmt: skip

    return Case(WhisperForConditionalGeneration(config), spoken, same_word)


def detr() -> Case:
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

    backbone = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic",
                            out_features=["stage2"])  # fmt: skip
    config = DetrConfig(
        use_timm_backbone=False, backbone_config=backbone, use_pretrained_backbone=False,
        backbone=None, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, num_queries=5,
        num_labels=4,
    )  # fmt: skip

    def found(number: int) -> Inputs:
        draw = torch.Generator().manual_seed(number)
        widths = torch.randint(16, 33, (BATCH, 1, 1), generator=draw)
        mask = (torch.arange(32) < widths).expand(BATCH, 32, 32).long().contiguous()
        kinds = torch.randint(0, 5, (BATCH, 5), generator=draw)
        return {"pixel_values": pictures(number), "pixel_mask": mask, "labels": kinds}

    return Case(DetrForObjectDetection(config), found, same_word)


def segformer() -> Case:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    config = SegformerConfig(
        num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[8, 16],
        patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2],
        decoder_hidden_size=16, num_labels=4,
    )  # fmt: skip

    def mapped(number: int) -> Inputs:
        draw = torch.Generator().manual_seed(number)
        labels = torch.randint(0, 5, (BATCH, 8, 8), generator=draw)  # 4: no class is known there
        return {"pixel_values": pictures(number), "labels": labels}

    def loss(output: Any, target: Tensor) -> Tensor:
        return F.cross_entropy(output.logits, target, ignore_index=4)

    return Case(
        SegformerForSemanticSegmentation(config), mapped, loss, pieces=1
    )  # it has a batch norm


def swin() -> Case:
    from transformers import SwinConfig, SwinForImageClassification

    config = SwinConfig(image_size=32, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4],
                        window_size=4, num_labels=3)  # fmt: skip

    def shown(number: int) -> Inputs:
        draw = torch.Generator().manual_seed(number)
        return {
            "pixel_values": pictures(number),
            "labels": torch.randint(0, 3, (BATCH,), generator=draw),
        }

    return Case(SwinForImageClassification(config), shown, classes)


CASES = (gpt2, llama, qwen2, gemma2, t5, bert, whisper, detr, segformer, swin)


def alone(case: Case) -> list[float]:
    """The losses of the eager module in one process."""
    network = copy.deepcopy(case.network).train()
    optimizer = torch.optim.SGD(network.parameters(), RATE)
    losses = []
    for step in range(STEPS):
        inputs = dict(case.data(step))
        target = inputs.pop("labels")
        optimizer.zero_grad()
        value = case.loss(network(**inputs), target)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses


def split(case: Case) -> tuple[list[float], str]:
    """(the losses on three emulated devices, the layers of each of them)."""
    devices = ",".join(device.name for device in FLEET.devices)
    result = weft.train(
        case.network, case.data, case.loss, fleet=FLEET, strategy="chain", steps=STEPS, batch=BATCH,
        lr=RATE, local=True, options={"devices": devices, "micro_batches": case.pieces},
    )  # fmt: skip
    shards = (f"{s.device} {s.layers[0]}-{s.layers[1]}" for s in result.plan.shards)
    return list(result.losses), ", ".join(shards)


def in_float64(case: Case) -> Case:
    """The same network and minibatches with numbers of 64 bits."""

    def data(number: int) -> Inputs:
        inputs = case.data(number)
        return {n: t.double() if t.is_floating_point() else t for n, t in inputs.items()}

    return case._replace(network=case.network.double(), data=data)


def built(make: Callable[[], Case]) -> Case:
    torch.manual_seed(0)
    case = make()
    without_dropout(case.network)
    return case


def difference(case: Case) -> tuple[float, list[float], str]:
    """(the largest difference of a loss, the losses, the layers of each device)."""
    wanted = alone(case)
    losses, layers = split(case)
    return max(abs(a - b) for a, b in zip(losses, wanted, strict=True)), losses, layers


def main(chosen: list[str]) -> int:
    """Prints a line for each network; the exit code is 1 if one differs."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    wrong = 0
    print(f"{'network':10} {'loss 1':>8} {'loss ' + str(STEPS):>8} {'off':>8}  layers")
    for make in CASES:
        if chosen and not any(word in make.__name__ for word in chosen):
            continue
        off, losses, layers = difference(built(make))
        if not off <= CLOSE:
            precise, _, _ = difference(in_float64(built(make)))
            layers += f"; in float64 {precise:.1e} off"
            wrong += not precise <= CLOSE
        print(
            f"{make.__name__:10} {losses[0]:8.4f} {losses[-1]:8.4f} {off:8.1e}  {layers}",
            flush=True,
        )
    print("all equal" if not wrong else f"{wrong} differ by more than {CLOSE:g}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
