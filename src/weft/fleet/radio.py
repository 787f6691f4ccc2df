"""Devices on lossy radio: their positions, the share of packets that their links deliver, and their
measurements.

    place = topology(seed=3)
    place.delivery(3.9)        # n x n: the true probability that a packet from i reaches j
    place.measured(3.9)        # the same, measured with 50 probe packets; a planner knows only this
    radio_fleet(place, 3.9)    # the same as a Fleet, a link for each pair

Received power = sent - 40 - 10 n log10(max(d, 1 m)) + S_ij + F dBm: n the path-loss exponent, S_ij static
shadowing (a part common to both directions and a part of each), F fading, new for every packet. A packet is
delivered if its received power reaches the threshold, so PRR_ij = Phi(margin_ij / sigma_F).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import erf

import numpy as np
from numpy.typing import NDArray

from weft.errors import InputError
from weft.fleet.fleet import Device, Fleet, Link

Matrix = NDArray[np.float64]

WORST_LOSS = 0.999  # of a link in a fleet; a link that delivers nothing at all is no link
_phi = np.vectorize(lambda z: 0.5 * (1 + erf(z / 2**0.5)), otypes=[np.float64])


@dataclass(frozen=True)
class Radio:
    """The model's constants. Change `side` for another area, `probes` for finer measurements."""

    devices: int = 9
    side: float = 40.0  # side of the square with the devices, metres
    sent_dbm: float = 0.0
    loss_at_1m_db: float = 40.0
    threshold_dbm: float = -91.5
    shared_shadow_db: float = 3.0  # deviation of the shadowing that is the same in both directions
    own_shadow_db: float = 1.5  # deviation of each direction's own shadowing
    fading_db: float = 3.0
    probes: int = 50  # packets that a PRR is measured with


@dataclass(frozen=True)
class Topology:
    """Positions and shadowing. They do not depend on the path-loss exponent."""

    seed: int
    radio: Radio
    positions: Matrix  # n x 2, metres
    shadow: Matrix  # n x n dB, row sends, column receives

    def delivery(self, exponent: float) -> Matrix:
        """The probability that one packet of the row's device reaches the column's; 1 to itself."""
        radio = self.radio
        apart = np.linalg.norm(self.positions[:, None] - self.positions[None], axis=2)
        path = radio.loss_at_1m_db + 10 * exponent * np.log10(np.maximum(apart, 1.0))
        margin = radio.sent_dbm - path + self.shadow - radio.threshold_dbm
        probability: Matrix = _phi(margin / radio.fading_db)
        np.fill_diagonal(probability, 1.0)
        return probability

    def measured(self, exponent: float) -> Matrix:
        """The share of the probe packets that arrived. Every call returns the same numbers."""
        key = [self.seed, 1, round(exponent * 1000)]
        return probed(self.delivery(exponent), self.radio.probes, key)


def probed(delivery: Matrix, probes: int, key: list[int]) -> Matrix:
    """Measured packet reception ratios: Binomial(probes, p) / probes; 1 to itself."""
    random = np.random.RandomState(np.random.MT19937(np.random.SeedSequence(key)))
    ratios: Matrix = random.binomial(probes, delivery) / probes
    np.fill_diagonal(ratios, 1.0)
    return ratios


def topology(seed: int, radio: Radio = Radio()) -> Topology:  # noqa: B008 - frozen
    """Devices at random positions, which depend only on the seed."""
    if radio.devices < 2:
        raise InputError(f"radio: devices = {radio.devices} is not allowed; at least 2 are needed")
    # RandomState's streams never change between versions of numpy: a seed always gives the same positions.
    random = np.random.RandomState(np.random.MT19937(np.random.SeedSequence([seed, 0])))
    n = radio.devices
    positions = random.uniform(0, radio.side, (n, 2))
    common = np.triu(random.normal(0, radio.shared_shadow_db, (n, n)), 1)
    shadow = common + common.T + random.normal(0, radio.own_shadow_db, (n, n))
    np.fill_diagonal(shadow, 0.0)
    return Topology(seed, radio, positions, shadow)


def mean_link(delivery: Matrix) -> float:
    """The mean over all links between different devices."""
    n = len(delivery)
    return float((delivery.sum() - n) / (n * (n - 1)))


def radio_fleet(
    place: Topology, exponent: float, *, mbps: float = 1.0, gflops: float = 0.5
) -> Fleet:
    """A fleet with these devices (n1, n2, ...), and a link between every two with its loss in each direction.

    The losses are the true ones, for emulation. A strategy measures them with `--set probes=50`.
    """
    delivery = place.delivery(exponent)
    names = [f"n{index + 1}" for index in range(len(delivery))]
    loss = np.clip(1 - delivery, 0.0, WORST_LOSS)
    links = tuple(
        Link(
            (names[i], names[j]), mbps, mbps,
            up_loss=float(loss[i, j]), down_loss=float(loss[j, i]),
        )
        for i in range(len(names)) for j in range(i + 1, len(names))
    )  # fmt: skip
    return Fleet(tuple(Device(name, gflops=gflops) for name in names), links)


def fleet_delivery(fleet: Fleet) -> Matrix:
    """The share of packets that a fleet's direct links deliver. The row sends, the column receives; 0 without
    a link."""
    index = {name: i for i, name in enumerate(fleet.names)}
    delivery: Matrix = np.zeros((len(index), len(index)))
    for hop in fleet.hops():
        i, j = index[hop.source], index[hop.dest]
        delivery[i, j] = max(delivery[i, j], 1 - hop.loss)
    np.fill_diagonal(delivery, 1.0)
    return delivery
