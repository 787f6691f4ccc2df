"""The networks are the published ones, fit other inputs, and can be exported."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from weft import data, zoo
from weft.errors import InputError
from weft.graph.capture.module import capture
from weft.zoo.parts import Shape
from weft.zoo.transformer import Transformer

# name: parameters, weighted depth, and forward GFLOPs where CoopAI prints them
PUBLISHED: dict[str, tuple[int, int, float | None]] = {
    "lenet5": (61_706, 5, None),
    "alexnet": (62_378_344, 8, 2.27),
    "vgg16": (138_357_544, 16, 30.95),
    "vgg19": (143_667_240, 19, 39.28),
    "googlenet": (6_998_552, 22, None),
    "resnet18": (11_689_512, 18, None),
    "resnet34": (21_797_672, 34, None),
    "resnet50": (25_557_032, 50, None),
    # 23 convolutions; the passthrough's lies beside the others and adds no depth
    "yolov2": (50_962_889, 22, 62.94),
}


def on_meta(name: str, shape: Shape | None = None, classes: int | None = None) -> torch.Tensor:
    """What the network returns for two samples, computed without weights or time."""
    with torch.device("meta"):
        net = zoo.build(name, shape, classes)
        output: torch.Tensor = net(torch.empty(2, *(shape or zoo.get(name).input_shape)))
    return output


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_flops_and_weighted_depth_are_the_published_ones(name: str) -> None:
    parameters, depth, gflops = PUBLISHED[name]
    with torch.device("meta"):
        example = torch.empty(2, *zoo.get(name).input_shape)
        graph = capture(zoo.build(name), example, name=name)
    assert graph.parameters == parameters
    assert len(graph.layers) == depth
    if gflops is not None:
        assert round(graph.forward_flops / 1e9, 2) == gflops
    expected = (425, 19, 19) if name == "yolov2" else (zoo.get(name).classes,)
    assert graph.values[graph.output].shape[1:] == expected


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("mlp", 63_370),
        ("vgg-small", 467_818),
        ("cnn5", 98_330),
        ("resnet8", 77_754),
        ("transformer", 19_242),
        ("mobilenet", 4_231_976),
    ],
)
def test_the_other_models_have_their_parameters_and_classes(name: str, parameters: int) -> None:
    with torch.device("meta"):
        net = zoo.build(name)
    assert sum(p.numel() for p in net.parameters()) == parameters
    assert on_meta(name).shape == (2, zoo.get(name).classes)


def test_every_model_is_counted_above() -> None:
    assert set(zoo.names()) - set(PUBLISHED) == {
        "mlp", "vgg-small", "cnn5", "resnet8", "transformer", "mobilenet",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("alexnet", (3, 64, 64)),
        ("alexnet", (3, 32, 32)),
        ("alexnet", (1, 28, 28)),
        ("vgg16", (3, 32, 32)),
        ("vgg19", (1, 28, 28)),
        ("vgg16", (3, 96, 64)),
        ("vgg-small", (3, 32, 32)),
        ("lenet5", (3, 32, 32)),
        ("lenet5", (1, 17, 40)),
        ("mlp", (1, 8000)),
        ("mlp", (3, 8, 8)),
        ("resnet8", (3, 32, 32)),
        ("resnet50", (1, 33, 47)),
        ("googlenet", (1, 28, 28)),
        ("mobilenet", (3, 32, 32)),
        ("transformer", (3, 32, 20)),
    ],
)
def test_a_model_fits_another_input_and_number_of_classes(name: str, shape: Shape) -> None:
    assert on_meta(name, shape, 7).shape == (2, 7)


def test_yolov2_predicts_five_boxes_a_cell_of_32_pixels() -> None:
    assert on_meta("yolov2", (3, 96, 64), 20).shape == (2, 5 * 25, 3, 2)


def test_lenet5_has_the_same_dense_layers_for_28_and_32_pixels() -> None:
    with torch.device("meta"):
        nets = [zoo.build("lenet5", (1, side, side)) for side in (28, 32)]
    sizes = [{name: p.shape for name, p in net.named_parameters()} for net in nets]
    assert sizes[0] == sizes[1]


def test_the_transformer_reads_token_numbers_too() -> None:
    net = zoo.build("transformer", (64,), 4)
    assert net(torch.randint(0, 8192, (3, 64))).shape == (3, 4)


def test_the_transformer_minds_the_order_of_the_rows() -> None:
    net = Transformer((1, 28, 28), 10, dropout=0.0)
    x = torch.rand(2, 1, 28, 28)
    with torch.no_grad():
        assert not torch.allclose(net(x), net(x.flip(2)))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("vgg-small", (3, 8, 8)),
        ("resnet8", (3, 16, 16)),
        ("transformer", (1, 28, 28)),
    ],
)
def test_an_exported_model_computes_the_same_for_any_batch_size(name: str, shape: Shape) -> None:
    torch.manual_seed(0)
    net = zoo.build(name, shape, 5)
    batch = {0: torch.export.Dim.DYNAMIC}
    example = torch.rand(3, *shape)
    exported = torch.export.export(net, (example,), dynamic_shapes=(batch,), strict=False).module()
    for size in (1, 4):
        x = torch.rand(size, *shape)
        torch.manual_seed(1)  # dropout draws the same numbers on both sides
        expected = net(x)
        torch.manual_seed(1)
        torch.testing.assert_close(exported(x), expected)


# As many steps as each needs to get well below the loss of guessing, so that the test is short.
@pytest.mark.parametrize(
    ("name", "images", "steps"),
    [
        ("mlp", "digits", 60),
        ("lenet5", "mnist5k", 40),
        ("vgg-small", "digits", 40),
        ("resnet8", "digits", 60),
        ("transformer", "digits", 120),
    ],
)
def test_a_small_model_learns(name: str, images: str, steps: int) -> None:
    torch.manual_seed(0)
    samples = data.load(images)
    net = zoo.build(name, samples.input_shape, samples.classes)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    losses = []
    for step in range(steps):
        rows = data.batch_indices(len(samples.train_x), 32, step, seed=0)
        loss = nn.functional.cross_entropy(net(samples.train_x[rows]), samples.train_y[rows])
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-10:]) / 10 < 0.6 * math.log(10)


def test_a_deep_chain_starts_with_a_signal_that_neither_vanishes_nor_explodes() -> None:
    torch.manual_seed(0)
    net = zoo.build("vgg16", (3, 32, 32), 10).eval()
    with torch.no_grad():
        logits = net(torch.randn(4, 3, 32, 32))
    assert 0.05 < logits.std().item() < 5


@pytest.mark.parametrize(
    ("name", "near"), [("resnet43", "resnet34"), ("VGG16", "vgg16"), ("lenet", "lenet5")]
)
def test_an_unknown_name_is_answered_with_the_nearest_ones(name: str, near: str) -> None:
    with pytest.raises(InputError, match=f"{name}.*did you mean.*{near}.*allowed: mlp"):
        zoo.get(name)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "says"),
    [
        ("lenet5", (1, 8, 8), 10, r"\(1, 8, 8\) is too small.*conv2.*5x5.*4x4"),
        ("alexnet", (64, 64), 10, r"\(64, 64\) has 2 dimensions"),
        ("resnet18", (3, 64), 10, "3 are needed"),
        ("transformer", (1, 28), 10, "has 2 dimensions"),
        ("yolov2", (3, 100, 64), 80, "height 100.*multiples of 32"),
        ("mlp", (1, 0, 28), 10, "at least 1"),
        ("mlp", (), 10, "at least 1"),
        ("mlp", None, 0, "classes 0"),
    ],
)
def test_an_input_that_cannot_fit_is_refused_with_its_value(
    name: str, shape: Shape | None, classes: int, says: str
) -> None:
    with pytest.raises(InputError, match=says):
        zoo.build(name, shape, classes)
