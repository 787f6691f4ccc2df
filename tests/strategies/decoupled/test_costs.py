"""A peer's computation is the paper's, and what the captured networks really do."""

from __future__ import annotations

import pytest
import torch

from weft import zoo
from weft.errors import InputError
from weft.graph.capture.module import capture
from weft.graph.split.classes.averaged import averaged
from weft.graph.split.classes.decouple import captured, decouple, score_filters
from weft.strategies.decoupled.costs import ClassCosts, class_costs, convolutions
from weft.zoo.chains import cnn5


@pytest.fixture(scope="module")
def vgg() -> dict[int, ClassCosts]:
    """VGG-16 at 32x32 by input channels, with one linear layer at its end."""
    found = {}
    for channels in (1, 3):
        with torch.device("meta"):
            net = averaged(zoo.build("vgg16", (channels, 32, 32), 10), 10)
            graph = capture(net, torch.empty(2, channels, 32, 32))
        found[channels] = class_costs(convolutions(graph), 6, 10)
    return found


def test_vgg16_has_the_reference_s_multiply_adds(vgg: dict[int, ClassCosts]) -> None:
    assert round(vgg[3].dense_macs() / 1e6, 1) == 313.2
    assert round(vgg[3].shared_macs() / 1e6, 1) == 190.5
    # decoupling alone cannot give more than this
    assert vgg[3].dense_macs() / vgg[3].shared_macs() < 1.65


@pytest.mark.parametrize(
    ("channels", "classes", "held", "filters", "hidden", "expected"),
    [
        (3, 10, 2, 52, (512, 512), 7.98),
        (3, 100, 20, 5, (512, 512), 8.07),
        (1, 30, 4, 52, (), 11.63),
        (3, 10, 5, 52, (512, 512), 3.05),
    ],
)
def test_the_table_of_loads(
    vgg: dict[int, ClassCosts], channels: int, classes: int, held: int, filters: int,
    hidden: tuple[int, ...], expected: float,
) -> None:  # fmt: skip
    base = vgg[channels]
    costs = ClassCosts(base.shared, base.decoupled, classes, hidden)
    assert round(costs.per_epoch([filters] * 6, held), 2) == expected
    assert costs.per_epoch([filters] * 6, held) == pytest.approx(
        costs.per_sample([filters] * 6, held) * classes / held
    )


def test_counted_and_captured_computation_agree() -> None:
    net = cnn5((3, 32, 32), 10, width=4)
    whole = captured(net, torch.zeros(2, 3, 32, 32))
    scores = score_filters(
        whole, torch.zeros(10, 3, 32, 32), torch.arange(10), last=3, how="random"
    )
    costs = class_costs(convolutions(capture(net, torch.zeros(2, 3, 32, 32))), 3, 10)
    assert costs.dense_macs() == capture(net, torch.zeros(2, 3, 32, 32)).forward_flops / 2
    part = decouple(whole, scores, last=3, keep=[[2, 3, 4]] * 10).sub_model([1, 5, 7])
    graph = part.graph
    logit_biases = 3  # a convolution's bias counts one operation each
    assert 2 * costs.peer_macs([2, 3, 4], 3) == graph.forward_flops - logit_biases
    weights = sum(t.numel() for t in part.structure(1).values())
    norms = sum(4 * n for n in (2, 3, 4))
    assert costs.structure_weights([2, 3, 4]) == weights - norms
    kernels = [t for t in part.shared_state().values() if t.dim() == 4]
    assert costs.shared_weights() == sum(t.numel() for t in kernels)


def test_all_layers_cannot_be_decoupled(vgg: dict[int, ClassCosts]) -> None:
    with pytest.raises(InputError, match=r"last = 13.*1 to 12"):
        class_costs([*vgg[3].shared, *vgg[3].decoupled], 13, 10)
