"""CoopAI's cost model: seconds of every block of layers on k equal devices behind one gateway.

    costs = block_costs(geometry, work, Speeds(13.6e9, 100e6))
    costs.seconds[k - 2, i, j]      # equation (3); inf if layers i..j cannot be one block

Equation (3): a device computes F FLOP/s and has G/k of the gateway's bandwidth for both directions
together. A round takes as long as its slowest device. There are four kinds of blocks: convolutions;
convolutions and a fully connected layer on a device's own rows (the partial sums are added); one fully
connected layer by outputs (model) or by inputs (data); two of them, the first by outputs and the second
by inputs (hybrid). Layers that cannot be cut are a block for one device alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.plans.rounds import RoundMode
from weft.strategies.coopai.geometry import DenseLayer, Geometry, RowLayer, Uncut
from weft.strategies.coopai.rows import Floats, RowWork

HEADERS = 1500 / 1460  # bytes with TCP and IP headers, per byte of data
BITS = 32
MODES: tuple[RoundMode, ...] = ("rows", "rows+data", "model", "data", "hybrid", "whole")


@dataclass(frozen=True)
class Speeds:
    """The paper's two numbers: the speed of a device and the rate of the gateway."""

    flops_per_s: float  # F, of one device
    bits_per_s: float  # G, of the gateway

    def number_s(self, k: int = 1) -> float:
        """Seconds per number if a device has 1/k of the bandwidth."""
        return BITS * HEADERS * k / self.bits_per_s


@dataclass(frozen=True)
class BlockCosts:
    """By k - 2, first and last layer: seconds of the slowest device, in the best mode."""

    compute_s: Floats
    transfer_s: Floats
    mode: NDArray[np.int8]  # index into MODES

    @property
    def seconds(self) -> Floats:
        """Computing and sending together."""
        return self.compute_s + self.transfer_s


def block_costs(geometry: Geometry, work: RowWork, speeds: Speeds) -> BlockCosts:
    """The paper's cost of every block of layers, for every number of devices."""
    layers, most = len(geometry.layers), len(work.columns.sizes) + 1
    shape = (most - 1, layers, layers)
    costs = BlockCosts(np.full(shape, np.inf), np.zeros(shape), np.zeros(shape, np.int8))
    for k in range(2, most + 1):
        of_k = BlockCosts(costs.compute_s[k - 2], costs.transfer_s[k - 2], costs.mode[k - 2])
        _rows(geometry, work, speeds, k, of_k)
        for i, layer in enumerate(geometry.layers):
            if isinstance(layer, DenseLayer):
                _dense(geometry, speeds, k, i, of_k)
            elif isinstance(layer, Uncut):
                _uncut(geometry, speeds, k, i, of_k)
    return costs


def one_device(geometry: Geometry, speeds: Speeds) -> tuple[float, float]:
    """k = 1: seconds of computing and of sending for the whole network on one device.

    Equation (2) for k = 1 adds up single layers. The text says that transfers inside are not paid. But the
    printed numbers include what some layers send when they are done: the last convolution before a fully
    connected layer, and outputs that the next layer does not read.
    """
    numbers = geometry.inputs + geometry.outputs
    for index, layer in enumerate(geometry.layers[:-1]):
        if isinstance(layer, RowLayer) and (
            not geometry.is_rows(index + 1) or layer.after or layer.output in geometry.relayed
        ):
            numbers += geometry.sizes[layer.output]
    return geometry.flops / speeds.flops_per_s, numbers * speeds.number_s()


def _rows(geometry: Geometry, work: RowWork, speeds: Speeds, k: int, costs: BlockCosts) -> None:
    """Blocks of convolutions, and those with a fully connected layer after them."""
    of_k = work.columns.of(k - 2)
    compute = work.flops[..., of_k] / speeds.flops_per_s
    fetch = work.fetched[..., of_k] * speeds.number_s(k)
    compute_s, transfer_s = _slowest(compute, fetch + work.sent[..., of_k] * speeds.number_s(k))
    possible = ~np.isnan(compute_s)
    costs.compute_s[possible] = compute_s[possible]
    costs.transfer_s[possible] = transfer_s[possible]
    for j, dense in enumerate(geometry.layers[1:]):
        layer = geometry.rows(j)
        if layer is None or not isinstance(dense, DenseLayer) or dense.flattens != layer.output:
            continue
        first, end = work.columns.shares(geometry.heights[layer.output])
        share = (end - first)[of_k] / geometry.heights[layer.output]
        compute_s, transfer_s = _slowest(
            compute[:, j] + share * dense.flops / speeds.flops_per_s,
            fetch[:, j] + dense.outputs * speeds.number_s(k),
        )
        for i in np.flatnonzero(~np.isnan(compute_s)):
            _better(costs, int(i), j + 1, "rows+data", float(compute_s[i]), float(transfer_s[i]))


def _slowest(compute: Floats, transfer: Floats) -> tuple[Floats, Floats]:
    """Both parts for the device (the last dimension) whose sum is largest."""
    last = np.argmax(compute + transfer, axis=-1)[..., None]
    return (
        np.take_along_axis(compute, last, -1)[..., 0],
        np.take_along_axis(transfer, last, -1)[..., 0],
    )


def _dense(geometry: Geometry, speeds: Speeds, k: int, i: int, costs: BlockCosts) -> None:
    """One fully connected layer in model or data mode; two in hybrid mode."""
    layer = geometry.layers[i]
    assert isinstance(layer, DenseLayer)
    ways: tuple[tuple[RoundMode, float], ...] = (
        ("model", layer.inputs + layer.outputs / k),
        ("data", layer.inputs / k + layer.outputs),
    )
    for mode, numbers in ways:
        seconds = layer.flops / k / speeds.flops_per_s
        _better(costs, i, i, mode, seconds, numbers * speeds.number_s(k))
    after = geometry.layers[i + 1] if i + 1 < len(geometry.layers) else None
    if isinstance(after, DenseLayer) and after.inputs == layer.outputs:
        seconds = (layer.flops + after.flops) / k / speeds.flops_per_s
        numbers = layer.inputs + after.outputs
        _better(costs, i, i + 1, "hybrid", seconds, numbers * speeds.number_s(k))


def _uncut(geometry: Geometry, speeds: Speeds, k: int, i: int, costs: BlockCosts) -> None:
    """Neighbouring layers that cannot be cut: one device computes them alone."""
    flops = 0.0
    enters = sum(geometry.sizes[name] for name in geometry.cuts[i])
    for j in range(i, len(geometry.layers)):
        layer = geometry.layers[j]
        if not isinstance(layer, Uncut):
            break
        flops += layer.flops
        leaves = sum(geometry.sizes[name] for name in geometry.cuts[j + 1])
        seconds = (enters + leaves) * speeds.number_s(k)
        _better(costs, i, j, "whole", flops / speeds.flops_per_s, seconds)


def _better(
    costs: BlockCosts, i: int, j: int, mode: RoundMode, compute_s: float, transfer_s: float
) -> None:
    if compute_s + transfer_s < costs.compute_s[i, j] + costs.transfer_s[i, j]:
        costs.compute_s[i, j], costs.transfer_s[i, j] = compute_s, transfer_s
        costs.mode[i, j] = MODES.index(mode)
