"""HierTrain's cost model (the paper's equations 5 to 12), for all of its cells at once.

    costs = HierCosts.of(task, ("pi", "nuc", "cloud"))
    cells = all_cells(costs)                       # one cell for every (roles, m_s, m_l)
    cells.seconds(b_o, b_s, b_l)                   # the step time T in each cell

Worker o trains all N layers on b_o samples, s the first m_s layers on b_s samples, l the first m_l layers
on b_l samples. Worker o computes the remaining layers for the samples of s and l. In a cell everything
is linear in b, except for four maxima:

    T = const + max(o1 b_o, s1 b_s, l1 b_l) + max(o2 b_o, s2 b_s, l2 b_l)          layers 1..m_s
              + max(o3 (b_o + b_s), l3 b_l) + max(o4 (b_o + b_s), l4 b_l)          m_s+1..m_l

1 and 3 are forward, 2 and 4 backward. With two workers nobody has role s, and m_s = 0. The paper's
bandwidth B_os is one number. If a link's two directions differ, each transfer takes its direction's
rate. Latency is not in the paper's model.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from weft.codecs.registry import coded_bytes
from weft.plans import options
from weft.plans.task import Task

Array = NDArray[np.float64]
Ints = NDArray[np.int64]

# The six ways to give the three workers (by index) the roles o, s and l.
ROLES: Ints = np.array(list(permutations(range(3))), dtype=np.int64)
NOBODY = 2  # with two workers: the index of the worker that does not exist
ROLES_OF_TWO: Ints = np.array([(0, NOBODY, 1), (1, NOBODY, 0)], dtype=np.int64)


@dataclass(frozen=True)
class HierCosts:
    """What the model reads of a task with two or three workers. The first worker holds the samples.

    Arrays always have three rows. The row of a missing worker is 0, and it never gets samples.
    """

    workers: tuple[str, ...]
    batch: int
    forward: Array  # [worker, a, b]: seconds per sample of layers a..b-1
    backward: Array
    update: Array  # [worker, a, b]: seconds per step
    weights: Array  # [m]: bytes of the first m layers' parameters
    output: Array  # [m]: bytes per sample over the cut after m layers
    enter: Array  # [worker]: seconds per sample from the first worker
    per_byte: Array  # [from, to]: seconds per byte

    @property
    def layers(self) -> int:
        """N, the number of layers."""
        return len(self.weights) - 1

    @staticmethod
    def of(task: Task, workers: tuple[str, ...]) -> HierCosts:
        """The costs of a task for these workers."""
        profile, batch = task.profile, task.batch
        times = [profile.devices[name] for name in workers]
        route, codec = options.route(task), options.codec(task)
        sent = [coded_bytes(batch * layer.output_bytes, codec) / batch for layer in profile.layers]
        per_byte = np.zeros((3, 3))
        for i, a in enumerate(workers):
            for j, b in enumerate(workers):
                per_byte[i, j] = 1 / task.fleet.path_rate(a, b, route)
        return HierCosts(
            workers=workers,
            batch=batch,
            forward=_sections([_per_sample(t.forward_s, t.forward_call_s, batch) for t in times]),
            backward=_sections(
                [_per_sample(t.backward_s, t.backward_call_s, batch) for t in times]
            ),
            update=_sections([_floats(t.update_s) for t in times]),
            weights=np.cumsum([0.0, *(layer.param_bytes for layer in profile.layers)]),
            output=_floats((0.0, *sent)),
            enter=profile.input_bytes * per_byte[0],
            per_byte=per_byte,
        )


def _floats(values: tuple[float, ...]) -> Array:
    return np.array(values, dtype=np.float64)


def _per_sample(each: tuple[float, ...], call: tuple[float, ...], batch: int) -> Array:
    """Seconds per sample. The model has no cost per call, so the call's cost is divided by the batch."""
    return _floats(each) + _floats(call) / batch if call else _floats(each)


def _sections(rows: list[Array]) -> Array:
    """[worker, a, b]: the sum of layers a..b-1.

    Each sum is added up from its own a. A difference of two prefix sums would lose small layers that
    come after large ones.
    """
    values = np.zeros((3, len(rows[0])))
    values[: len(rows)] = np.stack(rows)
    workers, layers = values.shape
    sums = np.zeros((workers, layers + 1, layers + 1))
    np.cumsum(
        np.triu(np.repeat(values[:, None, :], layers + 1, axis=1)), axis=2, out=sums[:, :, 1:]
    )
    return sums


@dataclass(frozen=True)
class Cells:
    """Columns with one entry per cell. The slopes are those of the formula at the top of this file."""

    batch: int
    roles: Ints  # [3, cell]: the workers in the roles o, s, l
    m_s: Ints
    m_l: Ints
    const: Array
    first: Array  # [6, cell]: o1, s1, l1, o2, s2, l2
    rest: Array  # [4, cell]: o3, l3, o4, l4

    def __len__(self) -> int:
        return len(self.const)

    def take(self, which: Ints) -> Cells:
        """Only the cells with these indices."""
        return Cells(
            self.batch,
            self.roles[:, which],
            self.m_s[which],
            self.m_l[which],
            self.const[which],
            self.first[:, which],
            self.rest[:, which],
        )

    def seconds(self, b_o: Array, b_s: Array, b_l: Array) -> Array:
        """T (eq 12) in seconds, for shares of shape [..., cell]."""
        return early(self.first, b_o, b_s, b_l) + late(self.rest, b_o + b_s, b_l) + self.const


def early(first: Array, b_o: Array, b_s: Array, b_l: Array) -> Array:
    """Layers 1..m_s (eqs 5 and 6, and backward): each worker computes its own samples."""
    o1, s1, l1, o2, s2, l2 = first
    forward = np.maximum(np.maximum(o1 * b_o, s1 * b_s), l1 * b_l)
    backward = np.maximum(np.maximum(o2 * b_o, s2 * b_s), l2 * b_l)
    return np.asarray(forward + backward)


def late(rest: Array, b_os: Array, b_l: Array) -> Array:
    """Layers m_s+1..m_l (eq 7, and backward): o also computes the samples of s."""
    o3, l3, o4, l4 = rest
    return np.asarray(np.maximum(o3 * b_os, l3 * b_l) + np.maximum(o4 * b_os, l4 * b_l))


def all_cells(costs: HierCosts) -> Cells:
    """Every (roles, m_s, m_l) with 0 <= m_s <= m_l <= N; with two workers m_s is 0.

    A worker without layers must get no samples: there a sample is given a cost above that of any plan.
    """
    layers, batch = costs.layers, costs.batch
    m_s, m_l = np.triu_indices(layers + 1)
    roles = ROLES
    if len(costs.workers) == 2:
        roles = ROLES_OF_TWO
        m_s, m_l = m_s[m_s == 0], m_l[m_s == 0]
    o, s, l = roles.T  # noqa: E741 - the paper's letter
    up_s, down_s = costs.per_byte[s, o][:, None], costs.per_byte[o, s][:, None]
    up_l, down_l = costs.per_byte[l, o][:, None], costs.per_byte[o, l][:, None]
    enter = costs.enter[:, None]
    # First by [worker, pair], so that the roles only choose rows.
    forward_s, backward_s = costs.forward[:, 0, m_s], costs.backward[:, 0, m_s]
    forward_d, backward_d = costs.forward[:, m_s, m_l], costs.backward[:, m_s, m_l]
    out_s, out_l = costs.output[m_s], costs.output[m_l]
    first = np.stack(
        [
            (enter + forward_s)[o],
            (enter + forward_s)[s] + out_s * up_s,
            (enter + forward_s)[l],
            backward_s[o],
            backward_s[s] + out_s * down_s,
            backward_s[l],
        ]
    ).reshape(6, -1)
    rest = np.stack(
        [
            forward_d[o],
            forward_d[l] + out_l * up_l,
            backward_d[o],
            backward_d[l] + out_l * down_l,
        ]
    ).reshape(4, -1)
    update = costs.update[:, 0]
    alone = batch * (costs.forward + costs.backward)[:, m_l, layers]
    updates = np.maximum(
        np.maximum(update[o, layers][:, None], update[:, m_s][s]), update[:, m_l][l]
    )
    exchange = np.maximum(
        costs.weights[m_s] * (up_s + down_s), costs.weights[m_l] * (up_l + down_l)
    )
    const = (alone[o] + updates + exchange).reshape(-1)
    pairs = len(m_s)
    cells = Cells(
        batch,
        np.repeat(roles.T, pairs, axis=1),
        np.tile(m_s, len(roles)),
        np.tile(m_l, len(roles)),
        const,
        first,
        rest,
    )
    # The time when o does everything: no better plan takes longer.
    whole = float(np.min(const + batch * (first[0] + first[3] + rest[0] + rest[2])))
    dear = 1e6 * whole or 1.0
    first[1, cells.m_s == 0] = dear
    first[2, cells.m_l == 0] = dear
    return cells
