"""Copies of neurons: none is the masked form; with them a lost device is less of a loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from weft.data.dataset import Dataset
from weft.draws import TESTING
from weft.graph.split.masked import Perceptron
from weft.reference.copies import accuracy_with_copies
from weft.reference.lossy import LossyRadio, train
from weft.strategies.stitchnet.budget import spend
from weft.strategies.stitchnet.dealing import dealt
from weft.strategies.stitchnet.holders import owners_only, sources, with_copies
from weft.strategies.stitchnet.importance import drop, importance
from weft.strategies.stitchnet.mapping import NOBODY, Spread, elect, near_each_other
from weft.strategies.stitchnet.paths import packets
from weft.strategies.stitchnet.topology import find_topology

WIDTHS = (16, 16, 16, 16)
PLACE = find_topology()
PRR = PLACE.measured(3.9)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def data() -> Dataset:
    random = torch.Generator().manual_seed(1)
    y = torch.randint(4, (400,), generator=random)
    x = torch.rand(400, 1, 1, 8, generator=random) + torch.eye(8)[y][:, None, None]
    return Dataset("small", x, y, x, y, 4)


@pytest.fixture(scope="module")
def channel() -> LossyRadio:
    """Two devices to a layer: without copies half of a layer is missed."""
    c = elect(PRR)
    order = near_each_other(PRR, c, [d for d in range(9) if d != c])
    spread = Spread(9, c, dealt(WIDTHS, order, [1.0] * 9))
    return LossyRadio(spread, spend(spread, PRR, 150), PLACE.delivery(3.9), seed=2)


@pytest.fixture(scope="module")
def net(data: Dataset, channel: LossyRadio) -> Perceptron:
    net = Perceptron((8, *WIDTHS, 4), seed=3, rate=1e-2)
    train(net, data, channel, epochs=40, batch=40)
    return net


def norms(net: Perceptron) -> list[np.ndarray]:
    return importance([w.numpy() for w in net.weights[:-1]])


def test_without_copies_it_is_the_masked_form(
    net: Perceptron, data: Dataset, channel: LossyRadio
) -> None:
    for failed in (None, channel.spread.workers[0], channel.spread.workers[-1]):
        lost = [] if failed is None else [failed]
        spread = channel.spread if failed is None else drop(channel.spread, failed)
        after = LossyRadio(spread, channel.routes, channel.delivery, seed=2)
        heard = channel.heard(TESTING, 0, 10)
        heard[:, :, lost] = heard[:, :, :, lost] = False
        expected = net.accuracy(data.test_x.flatten(1), data.test_y, after.as_masks(heard))
        holders = owners_only(channel.spread)
        assert accuracy_with_copies(net, data, channel, holders, lost, batch=40) == expected


def test_copies_keep_the_answer_where_one_device_of_a_layer_is_lost(
    net: Perceptron, data: Dataset, channel: LossyRadio
) -> None:
    spread, copied = channel.spread, with_copies(channel.spread, norms(net), 1.0)
    whole = accuracy_with_copies(net, data, channel, copied, [], batch=40)
    bare, kept = [], []
    for failed in spread.workers:
        bare.append(
            accuracy_with_copies(net, data, channel, owners_only(spread), [failed], batch=40)
        )
        kept.append(accuracy_with_copies(net, data, channel, copied, [failed], batch=40))
    assert np.mean(kept) > whole - 0.02
    assert np.mean(kept) > np.mean(bare) + 0.05
    assert packets(channel.routes) <= 150, "copies take no packet"


def test_the_most_important_neurons_are_copied_to_the_layer_s_other_devices(
    net: Perceptron, channel: LossyRadio
) -> None:
    spread, weights = channel.spread, norms(net)
    for layer, holds in enumerate(with_copies(spread, weights, 0.5)):
        copied = holds.sum(axis=0) > 1
        for device in np.flatnonzero((spread.owners[layer][None] == np.arange(9)[:, None]).any(1)):
            units = spread.units(int(device), layer)
            assert copied[units].sum() == len(units) // 2
            assert (
                weights[layer][units[copied[units]]].min()
                >= weights[layer][units[~copied[units]]].max()
            )
        assert (holds.any(axis=1) == np.isin(np.arange(9), spread.owners[layer])).all()


def test_a_value_comes_from_its_owner_else_from_the_first_copy_heard() -> None:
    holds = np.array([[True, True, False], [True, True, True], [False, True, False]])
    owners = np.array([1, 2, NOBODY])
    heard = np.array([[True, True, True], [True, False, False], [False, False, False]])
    found = sources(holds, owners, heard)
    assert found.tolist() == [[1, 2, 1], [0, 0, NOBODY], [NOBODY] * 3]
