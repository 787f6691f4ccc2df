"""The activations that a profile counts are those that autograd keeps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from weft import zoo
from weft.graph.capture.module import capture
from weft.plans.derive import layer_costs

BATCH = 4
NETWORKS: dict[str, tuple[int, ...]] = {
    "lenet5": (1, 28, 28), "alexnet": (3, 64, 64), "vgg-small": (1, 28, 28), "resnet18": (3, 64, 64),
    "googlenet": (3, 64, 64), "mobilenet": (3, 64, 64), "transformer": (1, 28, 28),
}  # fmt: skip


def kept_by_autograd(module: nn.Module, x: Tensor) -> int:
    """Bytes of all tensors that the graph of a forward pass holds, weights and input apart."""
    apart = {t.untyped_storage().data_ptr() for t in (*module.parameters(), *module.buffers(), x)}
    storages: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in apart:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = module(x)
    storages[output.untyped_storage().data_ptr()] = output.untyped_storage().nbytes()
    return sum(storages.values())


@pytest.mark.parametrize("name", NETWORKS)
def test_saved_bytes_are_what_autograd_keeps(name: str) -> None:
    torch.manual_seed(0)
    shape = NETWORKS[name]
    module = zoo.build(name, shape, 10).train()
    graph = capture(module, torch.zeros(2, *shape))
    predicted = BATCH * sum(layer.saved_bytes for layer in layer_costs(graph))
    kept = kept_by_autograd(module, torch.randn(BATCH, *shape))
    assert predicted == pytest.approx(kept, rel=0.1)
