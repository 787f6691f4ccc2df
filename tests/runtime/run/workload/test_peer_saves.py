"""A save of peers: every peer's weights under its name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from weft.errors import InputError
from weft.runtime.run.workload.networks import Own
from weft.runtime.run.workload.peer_saves import by_device, joined, resumed, whole_parts

NOTHING: Any = None


def own(**state: torch.Tensor) -> Own:
    return Own(NOTHING, state, NOTHING, {})


def test_what_is_joined_comes_apart_again() -> None:
    states = {"pi": {"fc/a": torch.ones(2)}, "nuc": {"fc/a": torch.zeros(3)}}
    assert by_device(joined(states)).keys() == states.keys()
    assert torch.equal(by_device(joined(states))["nuc"]["fc/a"], torch.zeros(3))


def test_means_over_rounds_and_structures_of_others_are_not_saved_as_weights() -> None:
    states = {"pi": {"w": torch.ones(2), "mean/w": torch.zeros(2), "kept/3/w": torch.zeros(2)}}
    assert list(whole_parts({"pi": own(w=torch.zeros(2))}, states)) == ["pi/w"]


def test_a_tensor_that_no_layer_reads_is_saved_as_it_was() -> None:
    parts = whole_parts(
        {"pi": own(w=torch.zeros(2), odd=torch.ones(1))}, {"pi": {"w": torch.ones(2)}}
    )
    assert torch.equal(parts["pi/odd"], torch.ones(1))
    assert torch.equal(parts["pi/w"], torch.ones(2))


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"pi/w": torch.zeros(2)}, "nuc/w differ"),
        ({"pi/w": torch.zeros(2), "nuc/w": torch.zeros(3)}, r"nuc/w is torch.float32 \[3\] there"),
    ],
)
def test_the_save_of_other_peers_is_refused(parts: dict[str, torch.Tensor], words: str) -> None:
    networks = {"pi": own(w=torch.zeros(2)), "nuc": own(w=torch.zeros(2))}
    with pytest.raises(InputError, match=words):
        resumed(networks, parts)
