"""What 8-bit codecs drop: relative error and extra bytes of activations and gradients.

Networks train for 24 steps on random images; the 25th step's tensors are coded with one scale for the
tensor (int8), with a scale for each channel, and with a scale for every 256 numbers (int8-blocks).
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import mean

import torch
from torch import Tensor, nn
from torch.nn import functional

from weft.codecs.registry import CODECS
from weft.codecs.tensors import rounded
from weft.zoo.loading import load

NETWORKS: dict[str, tuple[int, ...]] = {
    "lenet5": (1, 28, 28), "resnet18": (3, 32, 32), "mobilenet": (3, 32, 32),
}  # fmt: skip
BATCH, STEPS = 32, 25
Coded = tuple[Tensor, int]  # what arrives, bytes


def by_channel(tensor: Tensor, dim: int) -> Coded:
    """A scale for each channel: 8 bits for each number, and two float32 for each channel."""
    channels = tensor.movedim(dim, 0)
    arrived = torch.stack([rounded(channel, "int8") for channel in channels]).movedim(0, dim)
    return arrived, tensor.numel() + 8 * len(channels)


def by_codec(name: str) -> Callable[[Tensor, int], Coded]:
    return lambda tensor, dim: (rounded(tensor, name), CODECS[name].wire_bytes(4 * tensor.numel()))


WAYS = {"int8": by_codec("int8"), "per channel": by_channel, "int8-blocks": by_codec("int8-blocks")}


def tensors_of(network: str) -> dict[str, list[Tensor]]:
    """Activations, their gradients and weight gradients of one step, after some steps of training."""
    torch.manual_seed(0)
    module = load(network, NETWORKS[network])[0].train()
    images = torch.randn(4 * BATCH, *NETWORKS[network])
    labels = torch.randint(0, 10, (4 * BATCH,))
    optimizer = torch.optim.SGD(module.parameters(), 0.05, momentum=0.9)
    seen: list[Tensor] = []

    def keep(module: nn.Module, inputs: object, output: Tensor) -> None:
        output.retain_grad()
        seen.append(output)

    for step in range(STEPS):
        if step == STEPS - 1:
            for part in module.modules():
                if isinstance(part, nn.Conv2d | nn.Linear | nn.BatchNorm2d | nn.ReLU):
                    part.register_forward_hook(keep)
        first = step % 4 * BATCH
        output = module(images[first : first + BATCH])
        optimizer.zero_grad()
        torch.autograd.backward([functional.cross_entropy(output, labels[first : first + BATCH])])
        if step < STEPS - 1:
            optimizer.step()
    gradients = [p.grad for p in module.parameters() if p.dim() > 1 and p.grad is not None]
    return {
        "maps": [t.detach() for t in seen if t.dim() == 4],
        "gradients of maps": [t.grad for t in seen if t.dim() == 4 and t.grad is not None],
        "vectors": [t.detach() for t in seen if t.dim() == 2],
        "gradients of weights": gradients,
    }


def main() -> None:
    print(
        f"{'network':<10} {'tensors':<21} {'code':<12} {'error':>8} {'worst':>8} {'more bytes':>11}"
    )
    for network in NETWORKS:
        for kind, tensors in tensors_of(network).items():
            dim = 0 if kind == "gradients of weights" else 1
            for way, code in WAYS.items():
                errors, more = [], []
                for tensor in tensors:
                    arrived, size = code(tensor, dim)
                    errors.append(100 * float((arrived - tensor).norm() / tensor.norm()))
                    more.append(100 * (size / tensor.numel() - 1))
                print(f"{network:<10} {kind:<21} {way:<12} {mean(errors):>6.2f} % "
                      f"{max(errors):>6.2f} % {mean(more):>9.1f} %", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
