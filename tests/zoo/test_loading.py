"""A network comes from the zoo or from the user's file, or an error says what is wrong with it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from weft.errors import InputError
from weft.graph.capture.module import capture
from weft.zoo.loading import load, short_name

SOURCE = """
import torch
from torch import nn
from neighbour import WIDTH

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))

def bare(): return Net()
def pair(): return Net(), torch.zeros(1, 8)
def with_example():
    net = Net()
    net.example_input = torch.zeros(3, 8)
    return net
def broken(): raise RuntimeError("no weights here")
def number(): return 5
def odd_example(): return Net(), "text"
def flat_example(): return Net(), torch.zeros(())
def needs_argument(width): return Net()
ready = Net()
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "neighbour.py").write_text("WIDTH = 16\n")
    (tmp_path / "net.py").write_text(SOURCE)
    return tmp_path / "net.py"


def test_a_zoo_network_comes_with_an_example_of_its_input() -> None:
    module, example = load("lenet5")
    assert isinstance(example, Tensor)
    assert module(example).shape == (2, 10)


def test_a_zoo_network_takes_another_input_and_number_of_classes() -> None:
    module, example = load("lenet5", (3, 32, 32), 7)
    assert isinstance(example, Tensor)
    assert module(example).shape == (2, 7)


def test_without_weights_a_network_is_the_same_graph() -> None:
    light, light_example = load("lenet5", weights=False)
    assert next(light.parameters()).is_meta
    whole, example = load("lenet5")
    assert capture(light, light_example) == capture(whole, example)


def test_a_network_that_looks_tokens_up_gets_token_numbers() -> None:
    module, example = load("transformer", (16,), 4)
    assert isinstance(example, Tensor)
    assert example.dtype == torch.long
    assert module(example).shape == (2, 4)


@pytest.mark.parametrize("factory", ["pair", "with_example"])
def test_a_file_gives_its_own_example(file: Path, factory: str) -> None:
    module, example = load(f"{file}:{factory}")
    assert isinstance(example, Tensor)
    assert example.shape[0] >= 2
    assert module(example).shape == (example.shape[0], 4)


@pytest.mark.parametrize("factory", ["bare", "ready", "Net", "pair"])
def test_the_user_can_say_the_input_shape_of_any_network(file: Path, factory: str) -> None:
    module, example = load(f"{file}:{factory}", (8,))
    assert isinstance(module, nn.Module)
    assert len(capture(module, example).layers) == 2


def test_reading_a_file_leaves_the_import_path_as_it_was(file: Path) -> None:
    before = list(sys.path)
    load(f"{file}:pair")
    with pytest.raises(InputError):
        load(f"{file}:broken")
    assert sys.path == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("net.py:bare", "gives no example of its input.*--input-shape 1x28x28"),
        ("net.py:nothing", "has no 'nothing'; it has: Net, bare, pair"),
        ("net.py:", "has no ''"),
        ("net.py:broken", "net.py:broken line 20 raised RuntimeError: no weights here"),
        ("net.py:needs_argument", "raised TypeError.*width"),
        ("net.py:number", "gave a int; it must return an nn.Module"),
        ("net.py:odd_example", "its example input is a str"),
        ("net.py:flat_example", "no dimension for samples"),
        ("net.py", "names no factory; write .*net.py:FUNCTION"),
        ("none.py:build", "there is no such file"),
        ("syntax.py:build", "syntax.py.* raised SyntaxError"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_one_line(file: Path, text: str, message: str) -> None:
    (file.parent / "syntax.py").write_text("def build(:\n")
    with pytest.raises(InputError, match=message) as raised:
        load(str(file.parent / text))
    assert "\n" not in str(raised.value)


def test_an_unknown_name_offers_near_ones_and_the_way_to_ones_own() -> None:
    with pytest.raises(InputError, match=r"did you mean lenet5.*file\.py:factory"):
        load("lenet")


def test_classes_are_only_for_the_zoo(file: Path) -> None:
    with pytest.raises(InputError, match="classes 3 is only for networks of the zoo"):
        load(f"{file}:pair", classes=3)


def test_an_input_too_small_for_a_network_is_bad_input() -> None:
    with pytest.raises(InputError):
        load("lenet5", (0, 28, 28))


def test_tables_call_a_network_by_its_name_or_its_files() -> None:
    assert short_name("lenet5") == "lenet5"
    assert short_name("some/where/net.py:build") == "net"
