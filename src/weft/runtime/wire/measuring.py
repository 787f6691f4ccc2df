"""The command that measures a network's layers on a node, its answer, and what a node refuses to measure."""

from __future__ import annotations

from msgspec import Struct

from weft.codecs.registry import CodecName
from weft.codecs.times import CodecTimes
from weft.errors import InputError
from weft.graph.measure import LayerTimes
from weft.graph.network import Graph
from weft.graph.optimizers.optimizer import Optimizer

MOST_SIZES = 8
MOST_SAMPLES = 1 << 16
MOST_ROUNDS = 50
MOST_BUDGET_S = 120.0


class MeasureLayers(Struct, frozen=True, tag="measure_layers"):
    """Time each layer of this network at these batch sizes. The node makes up the weights itself."""

    graph: Graph
    sizes: tuple[int, ...]
    training: bool = True
    optimizer: Optimizer = Optimizer()
    repeats: int = 7
    rest_s: float = 0.01  # before each pass: a device waits for others between its turns
    budget_s: float = 20.0  # after which no further round begins


class LayersMeasured(Struct, frozen=True, tag="layers_measured"):
    """Seconds of each layer by the node's wall clock, how much memory a step took, and the CPU time of its
    codecs."""

    times: LayerTimes
    memory_bytes: int = 0  # 0: this machine does not tell
    codecs: dict[CodecName, CodecTimes] = {}


def check_measuring(command: MeasureLayers, room: int, state_bytes: int) -> None:
    """Raises InputError for a measurement that would take too long or too much of `room` bytes. `state_bytes`
    are those of the weights; a step has them four times: with gradients and the optimizer's memory."""
    if not 1 <= len(command.sizes) <= MOST_SIZES:
        raise InputError(f"{len(command.sizes)} batch sizes; 1 to {MOST_SIZES} are allowed")
    for value, most, what in (
        (max(command.sizes), MOST_SAMPLES, "samples"),
        (command.repeats, MOST_ROUNDS, "rounds"),
        (command.budget_s, MOST_BUDGET_S, "seconds of measuring"),
        (command.rest_s, 1.0, "seconds of rest"),
    ):
        if not 0 <= value <= most:
            raise InputError(f"{value:g} {what}; this node takes {most:g} at most")
    if min(command.sizes) < 1 or command.repeats < 1:
        raise InputError("a batch size and a number of rounds must be at least 1")
    if 4 * state_bytes > room:
        raise InputError(
            f"a step of {command.graph.name[:80]} takes {4 * state_bytes} bytes of weights, gradients and "
            f"optimizer's memory; this node has {room} for a measurement"
        )
