"""Inference with lost messages where several devices may hold the same neuron.

    accuracy_with_copies(net, data, channel, with_copies(spread, norms, 0.25), lost=[3])

With copies a neuron has one value per holder, because each holder hears its own inputs. So this computes
device by device, all samples of a batch at once. Without copies it equals the masked form.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.data.dataset import Dataset
from weft.draws import TESTING
from weft.graph.split.masked import Perceptron
from weft.reference.lossy import BATCH, LossyRadio
from weft.strategies.stitchnet.holders import Holders, sources, without


@torch.no_grad()
def accuracy_with_copies(
    net: Perceptron,
    data: Dataset,
    channel: LossyRadio,
    holders: Holders,
    lost: list[int],
    test: int = 0,
    batch: int = BATCH,
) -> float:
    """Test accuracy right after devices are lost, before anybody has noticed."""
    batches = max(len(data.test_x) // batch, 1)
    count = batches * min(batch, len(data.test_x))
    heard = channel.heard(TESTING, test * batches, batches)
    heard[:, :, lost] = heard[:, :, :, lost] = False
    x = net.prepared(data.test_x[:count]).view(batches, count // batches, -1)
    answers = output_with_copies(net, channel, x, without(holders, lost), heard).argmax(2)
    return float((answers.flatten() == data.test_y[:count]).double().mean())


@torch.no_grad()
def output_with_copies(
    net: Perceptron, channel: LossyRadio, x: Tensor, holders: Holders, heard: NDArray[np.bool_]
) -> Tensor:
    """Answers to batches x samples x features, each batch with the messages that were heard."""
    spread, c = channel.spread, channel.spread.coordinator
    # By device: its values of the layer, 0 for neurons it does not hold.
    values: dict[int, Tensor] = {}
    for device in np.flatnonzero(holders[0].any(axis=1)):
        got = torch.from_numpy(heard[:, 0, c, device]).to(x.dtype)[:, None, None]
        z = (x @ net.weights[0].t()) * got + net.biases[0]
        values[int(device)] = z.relu() * _held(holders[0][device], x)
    for layer in range(1, len(holders)):
        new: dict[int, Tensor] = {}
        for device in np.flatnonzero(holders[layer].any(axis=1)):
            took = sources(holders[layer - 1], spread.owners[layer - 1], heard[:, layer, :, device])
            z = _joined(values, took, x) @ net.weights[layer].t() + net.biases[layer]
            new[int(device)] = z.relu() * _held(holders[layer][device], x)
        values = new
    took = sources(holders[-1], spread.owners[-1], heard[:, len(holders), :, c])
    return _joined(values, took, x) @ net.weights[-1].t() + net.biases[-1]


def _held(mine: NDArray[np.bool_], like: Tensor) -> Tensor:
    return torch.from_numpy(mine).to(like.dtype)


def _joined(values: dict[int, Tensor], took: NDArray[np.int64], x: Tensor) -> Tensor:
    """A receiver's inputs: each neuron from the device it was taken from, 0 if from nobody."""
    inputs = torch.zeros(*x.shape[:2], took.shape[1], dtype=x.dtype)
    for device, mine in values.items():
        inputs += mine * torch.from_numpy(took == device).to(x.dtype)[:, None]
    return inputs
